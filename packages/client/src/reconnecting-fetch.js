// Continues broken event streams of `chat_routes`. `useChat` sees an error only if it takes too long.
// Without a build: `new DefaultChatTransport({ fetch: reconnectingFetch })`.

/** Milliseconds before each attempt. After 8 attempts (48 s) without a new frame it gives up. */
const PAUSES = [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000];
/** Milliseconds without a byte: the server writes every 15 s. Then it hangs. */
const MAX_SILENCE = 45_000;
/** Milliseconds before the headers. */
const MAX_WAIT = 10_000;

/**
 * @typedef {object} Reconnecting
 * @property {typeof globalThis.fetch} [fetch] Sends each request.
 * @property {(isReconnecting: boolean) => void} [onReconnecting] Called with `true` when a connection has
 *   broken, and with `false` when a new frame has come over another one, or none will come.
 * @property {string} [lost] The text of the error when it gives up.
 */

/**
 * `fetch` for a stream of `chat_routes`: its response goes on over another connection when one breaks.
 *
 * @param {string | URL | Request} url
 * @param {RequestInit} [init]
 * @param {Reconnecting} [options]
 * @returns {Promise<Response>}
 */
export async function reconnectingFetch(url, init = {}, options = {}) {
  const { fetch = globalThis.fetch, onReconnecting = () => {}, lost = 'The connection to the server was lost.' } = options;
  const unread = new AbortController(); // aborted when the body is cancelled
  const signal = AbortSignal.any([unread.signal, ...(init.signal ? [init.signal] : [])]);
  const first = await fetch(url, { ...init, signal });
  if (!isEventStream(first)) return first;
  const frames = allFrames(first, url, { ...init, signal }, { fetch, onReconnecting, lost });
  const body = new ReadableStream(
    {
      async pull(body) {
        const { value, done } = await frames.next();
        if (done) body.close();
        else body.enqueue(value);
      },
      cancel: () => unread.abort(),
    },
    { highWaterMark: 0 },
  );
  return new Response(body, first);
}

/**
 * Yields the bytes of each frame once, over as many connections as it takes.
 *
 * @param {Response} response
 * @param {string | URL | Request} url
 * @param {RequestInit & { signal: AbortSignal }} init
 * @param {Required<Reconnecting>} options
 */
async function* allFrames(response, url, init, { fetch, onReconnecting, lost }) {
  // The newest id, `<run>.<number>`, and the frames without an id since then, which must come again:
  // before the first id the same request is repeated. The server recognizes a POST.
  let last = '';
  /** @type {string[]} */
  let withoutId = [];
  let failed = 0;
  let isComplete = false;
  try {
    for (;;) {
      const known = [...withoutId];
      for await (const frame of wholeFrames(response)) {
        const id = /^id: ?(.+)/m.exec(frame)?.[1];
        const expected = known.shift();
        if (expected === frame) continue;
        if (expected || (id && last && !follows(id, last))) throw new DOMException(lost, 'NetworkError');
        if (id) [last, withoutId] = [id, []];
        else withoutId.push(frame);
        if (failed) onReconnecting(false);
        failed = 0;
        isComplete = /^data: ?\[DONE\]$/m.test(frame);
        yield new TextEncoder().encode(`${frame}\n\n`);
      }
      if (isComplete) return; // every other end is a break
      do {
        init.signal.throwIfAborted();
        const pause = PAUSES[failed++];
        if (pause === undefined) throw new DOMException(lost, 'NetworkError');
        onReconnecting(true);
        await sleep(pause, init.signal);
        response = await again(url, init, last, fetch).catch(() => Response.error());
      } while (!response.status || response.status >= 500 || response.headers.has('retry-after'));
      if (!isEventStream(response)) throw new DOMException(lost, 'NetworkError'); // 204: the server has not kept the rest
    }
  } finally {
    if (failed) onReconnecting(false);
  }
}

/**
 * Yields the frames with data that arrive whole, until the connection ends in any way.
 *
 * @param {Response} response
 */
export async function* wholeFrames({ body }) {
  const reader = body?.getReader();
  const decoder = new TextDecoder();
  const cancel = () => reader?.cancel().catch(() => {});
  let incomplete = '';
  try {
    while (reader) {
      const silence = setTimeout(cancel, MAX_SILENCE);
      const read = await reader.read().catch(() => undefined);
      clearTimeout(silence);
      if (!read?.value) return;
      const frames = (incomplete + decoder.decode(read.value, { stream: true })).split('\n\n');
      incomplete = frames.pop() ?? '';
      yield* frames.filter(frame => /^data:/m.test(frame)); // the others are comments
    }
  } finally {
    cancel();
  }
}

/**
 * Asks for the frames after one. The id of the chat is in the body of a POST.
 *
 * @param {string | URL | Request} url
 * @param {RequestInit & { signal: AbortSignal }} init
 * @param {string} last
 * @param {typeof globalThis.fetch} fetch
 */
function again(url, { body, ...init }, last, fetch) {
  const hung = new AbortController();
  const headers = new Headers(init.headers);
  const timer = setTimeout(() => hung.abort(), MAX_WAIT);
  if (last) headers.set('last-event-id', last);
  const path = last && body && `/${encodeURIComponent(JSON.parse(`${body}`).id)}/stream`;
  if (path) url = `${url}`.replace(/\/?(?=\?|$)/, path);
  const signal = AbortSignal.any([init.signal, hung.signal]);
  const request = last ? { ...init, headers, method: 'GET', signal } : { ...init, body: body ?? null, signal };
  return fetch(url, request).finally(() => clearTimeout(timer));
}

/**
 * Whether an id comes after another one of the same run, or is of a run that resumes it.
 *
 * @param {string} id
 * @param {string} last
 */
function follows(id, last) {
  const [run, at = ''] = id.split('.');
  const [lastRun, before = ''] = last.split('.');
  return run !== lastRun || +at > +before;
}

/** @param {Response} response */
const isEventStream = ({ headers }) => headers.get('content-type')?.startsWith('text/event-stream') ?? false;

/**
 * Waits. Fails when the signal is aborted.
 *
 * @param {number} time Milliseconds.
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export const sleep = (time, signal) =>
  new Promise((wake, fail) => {
    signal.throwIfAborted();
    const abort = () => {
      clearTimeout(timer);
      fail(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', abort);
      wake();
    }, time);
    signal.addEventListener('abort', abort);
  });
