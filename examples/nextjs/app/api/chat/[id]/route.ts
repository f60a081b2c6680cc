import { pipe } from '../pipe';

/** The history: the newest messages of a chat, for a page that is opened again. */
export async function GET(request: Request, { params }: { params: Promise<{ id: string }> }) {
  const { id } = await params;
  return pipe(request, `/api/chat/${encodeURIComponent(id)}`);
}
