import { pipe } from '../../pipe';

type Chat = { params: Promise<{ id: string }> };

async function pipeStream(request: Request, { params }: Chat) {
  const { id } = await params;
  return pipe(request, `/api/chat/${encodeURIComponent(id)}/stream`);
}

/** Reconnects to an answer that is still being written. */
export const GET = pipeStream;

/** Stops it: closing the connection alone leaves the answer running on the server. */
export const DELETE = pipeStream;
