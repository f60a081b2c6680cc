// Continues broken event streams of `chat_routes`. `useChat` sees an error only if it takes too long.
// To use it, copy this file: `new DefaultChatTransport({ fetch: reconnectingFetch })`.

/** Milliseconds before each attempt. After 8 attempts (48 s) without a new frame it gives up. */
const PAUSES = [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000];
/** A connection that is silent for so many milliseconds is broken: the server writes every 15 s. */
const MAX_SILENCE = 45_000;

/** @type {typeof globalThis.fetch} */
export async function reconnectingFetch(url, init = {}) {
  const unread = new AbortController(); // aborted when the body is cancelled
  const signal = AbortSignal.any([unread.signal, ...(init.signal ? [init.signal] : [])]);
  const first = await fetch(url, { ...init, signal });
  if (!isEventStream(first)) return first;
  const frames = allFrames(first, url, { ...init, signal });
  const pull = async body => {
    const { value, done } = await frames.next();
    return done ? body.close() : body.enqueue(new TextEncoder().encode(value));
  };
  const body = new ReadableStream({ pull, cancel: () => unread.abort() }, { highWaterMark: 0 });
  return new Response(body, first);
}

/** Yields each frame of a response once, over as many connections as it takes. */
async function* allFrames(response, url, init) {
  // The newest id, `<run>.<number>`, and the frames without an id since then. Before the first id the
  // same request is repeated, which changes nothing: the server recognizes a POST. Then these frames
  // must come again. To hold them back until the first id would hide a message while its tool runs.
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
      yield `${frame}\n\n`;
    }
    if (isComplete) return; // every other end is a break
    do {
      init.signal.throwIfAborted();
      if (failed === PAUSES.length) throw lost();
      await sleep(PAUSES[failed++], init.signal);
      response = await fetch(...(last ? rest(url, init, last) : [url, init])).catch(Response.error);
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

/** The request for the frames after one. The id of the chat is in the body of a POST. */
function rest(url, { body, ...init }, last) {
  const headers = new Headers(init.headers);
  headers.set('last-event-id', last);
  const path = body && `/${encodeURIComponent(JSON.parse(body).id)}/stream`;
  return [body ? `${url}`.replace(/\/?(?=\?|$)/, path) : url, { ...init, method: 'GET', headers }];
}

const follows = ([run, at], [last, before]) => run !== last || +at > +before; // or resumes it
const isEventStream = ({ headers }) => headers.get('content-type')?.startsWith('text/event-stream');
const lost = () => new DOMException('The connection to the server was lost.', 'NetworkError');
const sleep = (time, signal) =>
  new Promise((wake, fail) => {
    signal.onabort = () => fail(signal.reason);
    setTimeout(wake, time);
  });
