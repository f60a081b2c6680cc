// Continues broken event streams of `chat_routes`. `useChat` sees an error only if it takes too long.
// To use it, copy this file: `new DefaultChatTransport({ fetch: reconnectingFetch })`.

/** Milliseconds before each attempt. After 8 attempts (48 s) without a new frame it gives up. */
const PAUSES = [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000];
/** Milliseconds without a byte, or before headers: the server writes every 15 s. Then it hangs. */
const [MAX_SILENCE, MAX_WAIT] = [45_000, 10_000];

/** @type {typeof globalThis.fetch} */
export async function reconnectingFetch(url, init = {}) {
  const unread = new AbortController(); // aborted when the body is cancelled
  const signal = AbortSignal.any([unread.signal, ...(init.signal ? [init.signal] : [])]);
  const first = await fetch(url, { ...init, signal });
  if (!isEventStream(first)) return first;
  const frames = allFrames(first, url, { ...init, signal });
  const pull = body =>
    frames.next().then(({ value, done }) => (done ? body.close() : body.enqueue(value)));
  const cancel = () => unread.abort();
  return new Response(new ReadableStream({ pull, cancel }, { highWaterMark: 0 }), first);
}

/** Yields the bytes of each frame once, over as many connections as it takes. */
async function* allFrames(response, url, init) {
  // The newest id, `<run>.<number>`, and the frames without an id since then, which must come again:
  // before the first id the same request is repeated. The server recognizes a POST.
  let [last, withoutId, failed, isComplete] = ['', [], 0, false];
  for (;;) {
    const known = [...withoutId];
    for await (const frame of wholeFrames(response.body.getReader())) {
      const [id, expected] = [/^id: ?(.+)/m.exec(frame)?.[1], known.shift()];
      if (expected === frame) continue;
      if (expected || (id && last && !follows(id.split('.'), last.split('.')))) throw lost();
      if (id) [last, withoutId] = [id, []];
      else withoutId.push(frame);
      [failed, isComplete] = [0, /^data: ?\[DONE\]$/m.test(frame)];
      yield new TextEncoder().encode(`${frame}\n\n`);
    }
    if (isComplete) return; // every other end is a break
    do {
      init.signal.throwIfAborted();
      if (failed === PAUSES.length) throw lost();
      await sleep(PAUSES[failed++], init.signal);
      response = await again(url, init, last).catch(Response.error);
    } while (!response.status || response.status >= 500 || response.headers.has('retry-after'));
    if (!isEventStream(response)) throw lost(); // 204: the server has not kept the rest
  }
}

/** Yields the frames with data that arrive whole, until the connection ends in any way. */
async function* wholeFrames(reader, decoder = new TextDecoder(), incomplete = '') {
  for (;;) {
    const silence = setTimeout(() => reader.cancel().catch(() => {}), MAX_SILENCE);
    const { value } = await reader.read().catch(() => ({}));
    clearTimeout(silence);
    if (!value) return;
    const frames = (incomplete + decoder.decode(value, { stream: true })).split('\n\n');
    incomplete = frames.pop();
    yield* frames.filter(frame => /^data:/m.test(frame)); // the others are comments
  }
}

/** Asks for the frames after one. The id of the chat is in the body of a POST. */
function again(url, { body, ...init }, last) {
  const [hung, headers] = [new AbortController(), new Headers(init.headers)];
  const timer = setTimeout(() => hung.abort(), MAX_WAIT);
  if (last) headers.set('last-event-id', last);
  const path = last && body && `/${encodeURIComponent(JSON.parse(body).id)}/stream`;
  if (path) url = `${url}`.replace(/\/?(?=\?|$)/, path);
  const request = last ? { ...init, headers, method: 'GET' } : { ...init, body };
  request.signal = AbortSignal.any([init.signal, hung.signal]);
  return fetch(url, request).finally(() => clearTimeout(timer));
}

const follows = ([run, at], [last, before]) => run !== last || +at > +before; // or resumes it
const isEventStream = ({ headers }) => headers.get('content-type')?.startsWith('text/event-stream');
const lost = () => new DOMException('The connection to the server was lost.', 'NetworkError');
const sleep = (time, signal) => new Promise((wake, fail) => {
  signal.onabort = () => fail(signal.reason);
  setTimeout(wake, time);
});
