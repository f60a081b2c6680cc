// Has the recorded conversations with a server, cuts the responses, and continues them: by
// `Last-Event-ID` with `reconnecting-fetch.js` of `packages/client`, and by replay in a page that is
// opened again. The real client must hold the messages that it holds without a cut.
//   node cut-conversations.mjs BASE_URL [--frames N|all] [--bytes N] [--replays N] [--only TEXT] [--version V]
// `cut_conversations.rs` has the server. Prints a line for each failure, then
// "cut conversations: … ran, N failed".
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { loadClient, REFERENCE } from './clients.mjs';
import { until } from '../support/until.mjs';
import { memoryChat } from './memory-chat.mjs';
import { json } from './wire.mjs';

const {
  values: options,
  positionals: [baseUrl],
} = parseArgs({
  allowPositionals: true,
  options: {
    frames: { type: 'string', default: 'all' },
    bytes: { type: 'string', default: '1000' },
    replays: { type: 'string', default: '1000' },
    only: { type: 'string', default: '' },
    version: { type: 'string', default: REFERENCE },
  },
});
if (!baseUrl) throw new Error('which server? node cut-conversations.mjs BASE_URL');

const client = await loadClient(options.version);
const MemoryChat = memoryChat(client);
const api = `${baseUrl}/api/chat`;

/** The file, whose pauses are not waited for. The time before headers, 10 s, is no pause. */
const source = readFileSync(
  new URL('../../packages/client/src/reconnecting-fetch.js', import.meta.url),
  'utf8',
);
const isPause = delay => delay <= 16_000 && delay !== 10_000;
globalThis.setTimerOfFetch = (act, delay) => setTimeout(act, isPause(delay) ? 1 : delay);
const withoutPauses = 'const setTimeout = (...timer) => setTimerOfFetch(...timer);';
const { reconnectingFetch } = await import(
  `data:text/javascript,${encodeURIComponent(withoutPauses + source)}`
);

const realFetch = globalThis.fetch;
/** By chat: after how many bytes its next response is cut, and what its last response has brought. */
const cuts = new Map();
const bytesOf = new Map();
/** The chats whose response was cut, and those whose request was repeated then. */
const wasCut = new Set();
const repeated = new Set();

/**
 * A response whose connection is closed after some bytes, if the chat has a cut and the request has a
 * body: another page of the chat may receive the answer earlier than the page that asked.
 */
globalThis.fetch = async (url, init = {}) => {
  const connection = new AbortController();
  const signal = AbortSignal.any([connection.signal, ...(init.signal ? [init.signal] : [])]);
  const response = await realFetch(url, { ...init, signal });
  const id = init.body ? JSON.parse(init.body).id : new URL(url).pathname.split('/').at(-2);
  if (!response.headers.get('content-type')?.startsWith('text/event-stream')) return response;
  let left = Infinity;
  if (init.body) {
    if (wasCut.has(id)) repeated.add(id);
    left = cuts.get(id) ?? left;
    cuts.delete(id);
  }
  const read = [];
  if (left === Infinity) bytesOf.set(id, read);
  const cut = controller => {
    wasCut.add(id);
    controller.error(new TypeError('terminated'));
    connection.abort();
  };
  const cutting = new TransformStream({
    start: controller => void (left === 0 && cut(controller)),
    transform(bytes, controller) {
      read.push(bytes);
      if (left > 0) controller.enqueue(bytes.subarray(0, left));
      left -= bytes.length;
      if (left <= 0) cut(controller);
    },
  });
  return new Response(response.body.pipeThrough(cutting), response);
};

let chats = 0;

/** A page with a chat of its own. */
class Page {
  calls = [];
  errors = [];

  constructor(id = `chat-${chats++}`) {
    this.id = id;
    this.chat = new MemoryChat({
      id,
      generateId: () => 'user-1',
      transport: new client.DefaultChatTransport({ api, fetch: this.#fetch }),
      onError: error => this.errors.push(error.message),
      onToolCall: ({ toolCall }) => void this.calls.push(toolCall.toolCallId),
    });
  }

  /** As `stored-chat.ts` of the Next.js example: a page that reconnects loads the history as well. */
  #fetch = async (url, init) => {
    const response = await reconnectingFetch(url, init);
    if (init.method === 'GET' && response.ok) {
      const history = await (await realFetch(`${api}/${this.id}`)).json();
      this.chat.messages = history.messages;
    }
    return response;
  };

  /** Says the name of a recording. Of a recording that continues a message, gives all outputs. */
  async start({ name, continues }, before = '') {
    const sending = this.chat.sendMessage({ text: before + name });
    if (!continues) return () => sending;
    await sending;
    this.calls.length = 0;
    for (const part of this.chat.lastMessage.parts) {
      if (part.state !== 'input-available') continue;
      await this.chat.addToolOutput({ toolCallId: part.toolCallId, output: 'done' });
    }
    return () => this.chat.sendMessage();
  }

  /** What the page holds. Ids of the server are other ones in each run. */
  get held() {
    const messages = JSON.stringify(json(this.chat.messages));
    const id = this.chat.messages[1]?.id;
    const held = JSON.parse(id ? messages.replaceAll(id, 'message-1') : messages);
    // The text of the user may hold how long the agent waits.
    held[0].parts[0].text = '';
    return { messages: held, errors: this.errors, status: this.chat.status };
  }
}

/** Has the conversation, with the last response cut after so many bytes. */
async function have(recording, cut) {
  const page = new Page();
  if (!recording.continues && cut !== undefined) cuts.set(page.id, cut);
  const last = await page.start(recording);
  if (recording.continues && cut !== undefined) cuts.set(page.id, cut);
  await last();
  const bytes = Buffer.concat(bytesOf.get(page.id) ?? []);
  assert(!cuts.has(page.id), 'the response was cut');
  bytesOf.delete(page.id);
  return { held: page.held, calls: page.calls, bytes };
}

/**
 * Has the conversation with an agent that waits after so many events. The first page is cut then and
 * continues. A second page is opened, which reads all from the beginning.
 */
async function replay(recording, events, cut) {
  const [firstEnd = 0] = endsOfFrames(uncut.get(recording).bytes);
  // The first frame is written at once. Before it has arrived, the page repeats its request.
  const isRepeated = cut < firstEnd;
  const key = `key-${chats}`;
  const first = new Page();
  const before = `hold ${key} ${events} `;
  if (!recording.continues) cuts.set(first.id, cut);
  const last = await first.start(recording, before);
  if (recording.continues) cuts.set(first.id, cut);
  const done = last();
  const second = new Page(first.id);
  // The run has begun as soon as there is a stream of it.
  const isLive = async () => {
    const reading = new AbortController();
    const response = await realFetch(`${api}/${first.id}/stream`, { signal: reading.signal });
    reading.abort();
    return response.status === 200;
  };
  await until('the run is live', isLive);
  const resumed = second.chat.resumeStream();
  await until('the second page has the history', () => second.chat.messages.length > 0);
  if (isRepeated) await until('the request is repeated', () => repeated.has(first.id));
  await realFetch(`${baseUrl}/release/${key}`, { method: 'POST' });
  await Promise.all([done, resumed]);
  // A response that was complete before is not cut.
  cuts.delete(first.id);
  return { first: first.held, second: second.held, calls: second.calls };
}

const recordings = (await (await realFetch(`${baseUrl}/recordings`)).json())
  // `events`: after at most so many events its run is live.
  .map(([name, events, continues]) => ({ name, events, continues }))
  .filter(({ name }) => name.includes(options.only));

let seed = 1;
const random = below => (seed = (seed * 48_271) % 2_147_483_647) % below;
let failed = 0;

/** Runs the cases, some at the same time. */
async function run(cases) {
  const waiting = cases.values();
  const lane = async () => {
    for (const [name, act] of waiting) {
      try {
        await act();
      } catch (error) {
        failed++;
        console.log(`FAIL ${name}: ${error.stack}`);
      }
    }
  };
  await Promise.all(Array.from({ length: 8 }, lane));
  return cases.length;
}

const uncut = new Map();
await run(
  recordings.map(recording => [
    recording.name,
    async () => void uncut.set(recording, await have(recording)),
  ]),
);

/**
 * A response that is cut there, and continued by `Last-Event-ID`. Before the first frame has arrived,
 * the request is repeated: then the run is live, because afterwards the stored message is the response.
 */
const cutAt = (recording, at) => [
  `${recording.name}, cut after ${at} bytes`,
  async () => {
    const expected = uncut.get(recording);
    const [firstEnd = 0] = endsOfFrames(expected.bytes);
    if (at < firstEnd) {
      const { first } = await replay(recording, 0, at);
      return assert.deepEqual(first, expected.held);
    }
    const { held, calls } = await have(recording, at);
    assert.deepEqual(held, expected.held);
    assert.deepEqual(calls, expected.calls);
  },
];

/** The places of a response where a frame ends, but not its end. */
function* endsOfFrames(bytes) {
  for (let at = bytes.indexOf('\n\n'); at !== -1; at = bytes.indexOf('\n\n', at + 2)) {
    if (at + 2 < bytes.length) yield at + 2;
  }
}

let frames = [...uncut].flatMap(([recording, { bytes }]) =>
  [0, ...endsOfFrames(bytes)].map(at => cutAt(recording, at)),
);
const allFrames = frames.length;
if (options.frames !== 'all') {
  const every = Math.max(1, Math.floor(allFrames / Number(options.frames)));
  frames = frames.filter((_, at) => at % every === 0);
}
const pick = () => recordings[random(recordings.length)];
const atBytes = Array.from({ length: Number(options.bytes) }, () => {
  const recording = pick();
  return cutAt(recording, random(uncut.get(recording).bytes.length - 1));
});
const replays = Array.from({ length: Number(options.replays) }, () => {
  const recording = pick();
  const [events, at] = [random(recording.events + 1), random(uncut.get(recording).bytes.length - 1)];
  return [
    `${recording.name}, replayed after ${events} events and cut after ${at} bytes`,
    async () => {
      const { first, second, calls } = await replay(recording, events, at);
      assert.deepEqual(first, uncut.get(recording).held, 'the page that was cut');
      assert.deepEqual(second, uncut.get(recording).held, 'the page that was opened again');
      // The tools of the client whose outputs were sent do not run again.
      assert.deepEqual(calls, uncut.get(recording).calls, 'tools of the client that run');
    },
  ];
});

const [atFrames, atRandom, replayed] = [await run(frames), await run(atBytes), await run(replays)];
console.log(
  `cut conversations: ${recordings.length} recordings, ${atFrames} of ${allFrames} cuts at frames, ` +
    `${atRandom} at random bytes, ${replayed} replays ran, ${failed} failed`,
);
process.exit(failed ? 1 : 0);
