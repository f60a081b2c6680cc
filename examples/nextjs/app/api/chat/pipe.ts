const CHAT_SERVER = process.env.CHAT_SERVER ?? 'http://127.0.0.1:3000';

// Named one by one: what else came along (content-encoding, content-length) described bytes that
// `fetch` has already decoded.
const RESPONSE_HEADERS = [
  'content-type',
  'cache-control',
  'x-vercel-ai-ui-message-stream',
  'x-accel-buffering',
];

// `sec-fetch-site` lets the chat server go on refusing what another site's page sends. `origin`
// would name this app, a stranger to it. Add what your users are known by, such as `cookie`.
const REQUEST_HEADERS = ['content-type', 'authorization', 'sec-fetch-site'];

/**
 * Hands the request to the chat server and its answer back, byte by byte as it comes.
 *
 * A Route Handler, because `rewrites` in next.config compress the answer and hold it back.
 */
export async function pipe(request: Request, path: string): Promise<Response> {
  const init: RequestInit & { duplex: 'half' } = {
    method: request.method,
    headers: pick(request.headers, REQUEST_HEADERS),
    body: request.body,
    duplex: 'half', // what `fetch` asks for when a body is a stream; TypeScript's DOM types lack it
    signal: request.signal, // whoever stops reading here stops reading there
  };
  let upstream: Response;
  try {
    upstream = await fetch(new URL(path, CHAT_SERVER), init);
  } catch {
    // useChat shows the text of an answer that is not 2xx as its error.
    return new Response('The chat server cannot be reached.', { status: 502 });
  }
  return new Response(upstream.body, {
    status: upstream.status,
    headers: pick(upstream.headers, RESPONSE_HEADERS),
  });
}

function pick(headers: Headers, names: string[]): Headers {
  const picked = new Headers();
  for (const name of names) {
    const value = headers.get(name);
    if (value !== null) picked.set(name, value);
  }
  return picked;
}
