// Has conversations with demos that are killed meanwhile, through the real client and the `fetch` of the
// Next.js example, 16 at once, until its standard input ends.
//   node random-kills.mjs BASE_URL [--forgetful]
// Checks that no approval has two effects, that a page shows what is stored, and that each response
// ends. With `--forgetful` the store loses chats, so pages are not compared with it. Prints a line for each failure, then "random kills: N conversations, …, M failed".
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { reconnectingFetch } from '../../packages/client/src/reconnecting-fetch.js';
import { loadClient, REFERENCE } from './clients.mjs';
import { memoryChat } from './memory-chat.mjs';
import { json } from './wire.mjs';

const [baseUrl, option] = process.argv.slice(2);
if (!baseUrl) throw new Error('which server? node random-kills.mjs BASE_URL [--forgetful]');
const isForgetful = option === '--forgetful';

const LANES = 16;
/**
 * A response that has not ended after this time never ends. The client waits up to 48 s for a frame, and
 * that again after each frame.
 */
const TIMEOUT = 180_000;
/**
 * The characters that a lost server has shown and not stored, at most: nothing more is shown while text waits for the
 * store for longer than two intervals of 50 ms, and the model writes a word in 12 ms.
 */
const MAX_LOST = 100;
const client = await loadClient(REFERENCE);
const MemoryChat = memoryChat(client);

let isOver = false;
process.stdin.resume().on('end', () => (isOver = true));

/** Repeats a request that no server has answered. A user would press a button again. */
async function patiently(send, ...request) {
  for (;;) {
    const response = await send(...request).catch(() => undefined);
    const isAnswered = response && response.status < 500 && !response.headers.has('retry-after');
    if (isAnswered) return response;
    await response?.body?.cancel().catch(() => {});
    await sleep(100);
  }
}

async function read(path) {
  for (;;) {
    const response = await patiently(fetch, baseUrl + path);
    // The server may be killed while it answers.
    const text = await response.text().catch(() => undefined);
    if (text === undefined) continue;
    if (isForgetful && response.status === 404) return undefined;
    assert.equal(response.status, 200, `${path}: ${text}`);
    return JSON.parse(text);
  }
}

/**
 * A request that is repeated gets what is stored, with the inputs of calls as streamed ones. The page keeps the
 * text of such an input in the error of its call.
 */
function withoutReplayedText(part) {
  const { rawInput, ...rest } = part;
  if (part.state !== 'output-error' || !('input' in part) || rawInput === undefined) return part;
  assert.deepEqual(JSON.parse(rawInput), part.input);
  return rest;
}

/**
 * Checks that a message is shown as it is stored. A call whose approval the ledger could not claim has
 * an error in this answer only: it is still open.
 */
function mustEqual(shown, stored) {
  const isOpen = part => part.state === 'approval-requested';
  const open = new Set(stored.parts.filter(isOpen).map(part => part.toolCallId));
  const without = ({ parts, ...message }) => ({
    ...message,
    parts: parts.filter(part => !open.has(part.toolCallId)),
  });
  for (const part of shown.parts.filter(part => open.has(part.toolCallId))) {
    assert(isOpen(part) || /^It is not known whether/.test(part.errorText), JSON.stringify(part));
  }
  const parts = shown.parts.map(withoutReplayedText);
  assert.deepEqual(without({ ...shown, parts }), without(stored));
}

const textOf = message =>
  (message?.parts ?? []).map(part => (part.type === 'text' ? part.text : '')).join('');

const callsOf = message => (message?.parts ?? []).filter(part => part.toolCallId);

const realFetch = globalThis.fetch;
/** By chat: its requests, and what the responses have brought. For the messages of failures. */
const exchanges = new Map();
globalThis.fetch = async (url, init = {}) => {
  const id = init.body ? JSON.parse(init.body).id : new URL(url).pathname.split('/').at(-2);
  if (!init.signal) return realFetch(url, init);
  const log = exchanges.get(id) ?? [];
  exchanges.set(id, log);
  const one = { method: init.method, last: new Headers(init.headers).get('last-event-id'), read: '' };
  log.push(one);
  const response = await realFetch(url, init).catch(error => {
    one.error = String(error.cause ?? error);
    throw error;
  });
  one.status = response.status;
  if (!response.body) return response;
  const decoder = new TextDecoder();
  const transform = (bytes, controller) => {
    one.read += decoder.decode(bytes, { stream: true });
    controller.enqueue(bytes);
  };
  return new Response(response.body.pipeThrough(new TransformStream({ transform })), response);
};

class Page {
  id = randomUUID();
  errors = [];
  chat = new MemoryChat({
    id: this.id,
    transport: new client.DefaultChatTransport({
      api: `${baseUrl}/api/chat`,
      fetch: (url, init) => patiently(reconnectingFetch, url, init),
    }),
    onError: error => this.errors.push(error.message),
  });

  /** Sends, and waits for the end. Returns whether the answer has ended without an error. */
  async send(...message) {
    const timer = AbortSignal.timeout(TIMEOUT);
    const late = new Promise((_, fail) => {
      timer.onabort = () => fail(new Error(`no end: ${JSON.stringify(this.chat.messages)}`));
    });
    await Promise.race([this.chat.sendMessage(...message), late]);
    timer.onabort = null;
    if (!isForgetful) await this.mustBeStored();
    return this.errors.length === 0;
  }

  /**
   * Checks that the page shows the stored message. After an error it may show less, and it may show text that was lost
   * with its server: no other text, and no call.
   */
  async mustBeStored() {
    const shown = json(this.chat.messages);
    const deadline = Date.now() + TIMEOUT;
    for (;;) {
      const { messages } = await read(`/api/chat/${this.id}`);
      try {
        if (this.errors.length === 0) return mustEqual(shown.at(-1), json(messages).at(-1));
        const [read, stored] = [shown[1], messages[1]].map(textOf);
        const isKept = stored.startsWith(read) || (read.startsWith(stored) && read.length <= stored.length + MAX_LOST);
        assert(isKept, `${read} is shown, and ${stored} is stored: ${this.errors}`);
        const calls = new Set(callsOf(messages[1]).map(part => part.toolCallId));
        const lost = callsOf(shown[1]).filter(part => part.state !== 'input-streaming' && !calls.has(part.toolCallId));
        return assert.deepEqual(lost, []);
      } catch (error) {
        if (Date.now() > deadline) {
          const [, ...later] = exchanges.get(this.id);
          error.stack = `${error.message}\n${JSON.stringify(later, null, 1)}`;
          throw error;
        }
        await sleep(200);
      }
    }
  }
}

const counts = { conversations: 0, interrupted: 0, approvals: 0, transfers: 0, failed: 0 };
/** By amount: whether its approval was given. */
const approved = new Map();
/** The amounts whose transfers a chat shows. */
const shownTransfers = [];
let amount = 5_000;

async function converse() {
  counts.conversations += 1;
  const page = new Page();
  if (counts.conversations % 3 === 0) {
    if (!(await page.send({ text: 'slow 20' }))) counts.interrupted += 1;
    return;
  }
  const own = ++amount;
  if (!(await page.send({ text: `mixed ${own}` }))) return void (counts.interrupted += 1);
  const asked = page.chat.lastMessage.parts.filter(part => part.state === 'approval-requested');
  // The answer of a chat that its store has lost is aborted.
  if (isForgetful && asked.length < 2) return void (counts.interrupted += 1);
  assert.equal(asked.length, 2, `questions: ${JSON.stringify(exchanges.get(page.id), null, 1)}`);
  approved.set(own, true);
  counts.approvals += 1;
  for (const part of asked) {
    await page.chat.addToolApprovalResponse({ id: part.approval.id, approved: true });
  }
  if (!(await page.send())) counts.interrupted += 1;
  const stored = await read(`/api/chat/${page.id}`);
  // A chat that the store has lost is imported with less than the page holds.
  const parts = (isForgetful ? stored?.messages[1]?.parts : stored.messages[1].parts) ?? [];
  if (parts.some(part => part.type === 'tool-transfer' && part.state === 'output-available')) {
    shownTransfers.push(own);
  }
}

const failed = (what, error) => {
  counts.failed += 1;
  console.log(`FAIL ${what}: ${error.stack}`);
};

async function lane() {
  while (!isOver) await converse().catch(error => failed('a conversation', error));
}

await Promise.all(Array.from({ length: LANES }, lane));
try {
  const { transfers } = await read('/api/world');
  counts.transfers = transfers.length;
  const made = transfers.map(transfer => transfer.amount);
  assert.equal(new Set(made).size, made.length, `no amount is sent twice: ${made}`);
  for (const one of made) assert(approved.has(one), `${one} was not approved`);
  for (const one of shownTransfers) assert(made.includes(one), `${one} was not sent`);
} catch (error) {
  failed('the world', error);
}
const { conversations, interrupted, approvals, transfers } = counts;
if (!isForgetful && !(approvals && transfers)) failed('the run', new Error('nothing was approved'));
console.log(
  `random kills: ${conversations} conversations, ${interrupted} interrupted, ` +
    `${approvals} approvals, ${transfers} transfers, ${counts.failed} failed`,
);
process.exit(counts.failed ? 1 : 0);
