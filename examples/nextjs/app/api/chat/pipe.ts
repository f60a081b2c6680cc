import { refusal } from './guard';

export const CHAT_SERVER = process.env.CHAT_SERVER ?? 'http://127.0.0.1:3000';

// Named one by one: what else came along (content-encoding, content-length) described bytes that
// `fetch` has already decoded.
const RESPONSE_HEADERS = [
  'content-type',
  'cache-control',
  'x-vercel-ai-ui-message-stream',
  'x-accel-buffering',
  'retry-after',
];

// Among them what the chat server knows its users by, and `accept`, with which a client asks for
// JSON instead of a stream. `origin` would name this app, a stranger to the chat server: `refusal`
// checks it here.
const REQUEST_HEADERS = ['accept', 'content-type', 'authorization', 'cookie', 'last-event-id'];

/**
 * Hands the request to the chat server and its answer back, byte by byte as it comes.
 *
 * A Route Handler, because `rewrites` in next.config do not check who asks, and compress the answer. Requests
 * of other sites' pages are refused, because the browser adds the user's cookies to them.
 */
export async function pipe(request: Request, path: string): Promise<Response> {
  const refused = refusal(request.headers);
  if (refused) return new Response(refused, { status: 403 });
  const init: RequestInit & { duplex: 'half' } = {
    method: request.method,
    headers: pick(request.headers, REQUEST_HEADERS),
    body: request.body,
    duplex: 'half', // what `fetch` asks for when a body is a stream; TypeScript's DOM types lack it
    signal: request.signal, // if the browser stops reading, this server stops reading too
  };
  let upstream: Response;
  try {
    const { search } = new URL(request.url);
    upstream = await fetch(new URL(path + search, CHAT_SERVER), init);
  } catch {
    // useChat shows the text of an answer that is not 2xx as its error.
    return new Response('The chat server cannot be reached.', { status: 502 });
  }
  const headers = pick(upstream.headers, RESPONSE_HEADERS);
  // Each on its own: a comma may stand within a cookie.
  for (const cookie of upstream.headers.getSetCookie()) headers.append('set-cookie', cookie);
  return new Response(upstream.body, { status: upstream.status, headers });
}

function pick(headers: Headers, names: string[]): Headers {
  const picked = new Headers();
  for (const name of names) {
    const value = headers.get(name);
    if (value !== null) picked.set(name, value);
  }
  return picked;
}
