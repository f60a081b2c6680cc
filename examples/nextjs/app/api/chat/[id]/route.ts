import { pipe } from '../pipe';

async function pipeChat(request: Request, { params }: { params: Promise<{ id: string }> }) {
  const { id } = await params;
  return pipe(request, `/api/chat/${encodeURIComponent(id)}`);
}

/** The history: the newest messages of a chat, for a page that is opened again. */
export const GET = pipeChat;

/** Renames the chat. */
export const PATCH = pipeChat;

/** Deletes the chat. */
export const DELETE = pipeChat;
