import { pipe } from './pipe';

/** What useChat posts: a new message, an answered approval, the output of a browser's tool. */
export function POST(request: Request) {
  return pipe(request, '/api/chat');
}

/** Deletes all chats of the user. */
export function DELETE(request: Request) {
  return pipe(request, '/api/chat');
}

/** The list of the user's chats. */
export function GET(request: Request) {
  return pipe(request, '/api/chat');
}
