// Cuts responses and checks that `reconnecting-fetch.js` of `packages/client` continues them, alone
// and below the real `AbstractChat`. The server is a real one on this machine.
//   node reconnecting-fetch.mjs
// Prints a line for each failure, then "reconnecting fetch: N ran, M failed".
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { setTimeout as wait } from 'node:timers/promises';
import { loadClient, REFERENCE, V6 } from './clients.mjs';
import { memoryChat } from './memory-chat.mjs';
import { CuttingServer } from './reconnecting-fetch/cutting-server.mjs';
import { byteStream, json } from './wire.mjs';

const ROOT = new URL('../../', import.meta.url);
/** The delays after which a connection hangs: without a byte, and before headers. */
const HANGS = [45_000, 10_000];

/** The other delays that the file has asked for. None of them is waited for. */
const delays = [];
let hang;
globalThis.setTimerOfFetch = (act, delay) => {
  if (!HANGS.includes(delay)) delays.push(delay);
  if (delay === hang) return setTimeout(act, 20);
  return setTimeout(act, HANGS.includes(delay) ? delay : 0);
};
const source = readFileSync(new URL('packages/client/src/reconnecting-fetch.js', ROOT), 'utf8');
const { reconnectingFetch } = await import(
  `data:text/javascript,${encodeURIComponent(`const setTimeout = (...timer) => setTimerOfFetch(...timer); ${source}`)}`
);

const server = await CuttingServer.start();
const USER = { id: 'user-1', role: 'user', parts: [{ type: 'text', text: 'Hi' }] };

/** The frames of a log. Some numbers are missing, as where a log of the server has notes. */
const numbered = datas => datas.map((data, at) => `id: run_1.${at + (at >> 2)}\ndata: ${data}\n\n`);
const unnumbered = datas => datas.map(data => `data: ${data}\n\n`);

/** The translator's fixtures: the message that each continues, and its frames. */
const fixtures = readdirSync(new URL('fixtures/chunks', ROOT)).map(name => {
  const text = readFileSync(new URL(`fixtures/chunks/${name}`, ROOT), 'utf8');
  const lines = text
    .trim()
    .split('\n')
    .map(line => JSON.parse(line));
  const message = lines.find(line => line.continues)?.continues;
  const datas = lines.flatMap(({ chunk }) => (chunk ? [JSON.stringify(chunk)] : []));
  return { name, message, log: numbered([...datas, '[DONE]']) };
});
const fixture = name => fixtures.find(fixture => fixture.name === `${name}.jsonl`);

const TEXT = numbered([
  '{"type":"start","messageId":"m1"}',
  '{"type":"start-step"}',
  '{"type":"text-start","id":"t"}',
  '{"type":"text-delta","id":"t","delta":"Grüße, 世界 👋\\n\\n"}',
  '{"type":"text-delta","id":"t","delta":"data: x"}',
  '{"type":"text-end","id":"t"}',
  '{"type":"finish-step"}',
  '{"type":"finish","finishReason":"stop"}',
  '[DONE]',
]);

/** A tool runs, and the message that holds its call comes in front. */
const FRONT = unnumbered([
  '{"type":"start","messageId":"m1"}',
  '{"type":"start-step"}',
  '{"type":"text-start","id":"f"}',
  '{"type":"text-delta","id":"f","delta":"I can delete it."}',
  '{"type":"text-end","id":"f"}',
  '{"type":"tool-input-start","toolCallId":"c1","toolName":"delete_file"}',
  '{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"{\\"path\\":\\"a\\"}"}',
  '{"type":"finish-step"}',
]);
const START = unnumbered(['{"type":"start","messageId":"m1"}'])[0];
const AFTER_FRONT = numbered([
  '{"type":"start","messageId":"m1"}',
  '{"type":"tool-output-available","toolCallId":"c1","output":{"deleted":true}}',
  ...TEXT.slice(1).map(frame => /data: (.*)/.exec(frame)[1]),
]).slice(1);

const LOST = { name: 'NetworkError', message: 'The connection to the server was lost.' };

/** Posts to a run as the transport of the client does. */
const post = (run, init) =>
  reconnectingFetch(`${server.url}/api/chat`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer 1' },
    body: JSON.stringify({ id: run.id, messages: [USER] }),
    ...init,
  });
const reconnect = (run, init) =>
  reconnectingFetch(`${server.url}/api/chat/${encodeURIComponent(run.id)}/stream`, {
    method: 'GET',
    ...init,
  });

/** The bytes that the hook gets of a run, and the error after them. */
async function bytesOf(response) {
  const pieces = [];
  try {
    for await (const piece of response.body) pieces.push(piece);
  } catch (error) {
    return { bytes: Buffer.concat(pieces).toString(), error };
  }
  return { bytes: Buffer.concat(pieces).toString() };
}

/** The bytes of a run whose connections are cut in this way. */
async function cut(run, ask = post) {
  const added = server.add(run);
  const { bytes, error } = await bytesOf(await ask(added));
  assert.equal(error, undefined);
  return { bytes, requests: added.requests };
}

/** Calls `act` for each number below `end`, some at the same time. */
async function forEach(end, act) {
  let next = 0;
  const lane = async () => {
    while (next < end) await act(next++);
  };
  await Promise.all(Array.from({ length: 16 }, lane));
}

const tests = {
  async 'a response that is cut at any byte arrives as if it was not cut'() {
    const mixed = fixture('mixed_answers_are_settled_in_one_go');
    const multiStep = fixture('a_tool_that_runs_at_once_and_the_answer_in_the_next_step');
    for (const [log, ends] of [
      [TEXT, 'closed'],
      [TEXT, 'destroyed'],
      [mixed.log, 'destroyed'],
      [multiStep.log, 'destroyed'],
    ]) {
      const whole = log.join('');
      await forEach(Buffer.byteLength(whole), async at => {
        const { bytes, requests } = await cut({ log, cuts: [{ at, ends }] });
        assert.equal(bytes, whole, `${ends} after ${at} bytes`);
        assert.equal(requests.length, 2, `${ends} after ${at} bytes`);
      });
    }
  },

  async 'a frame may arrive in pieces of any size'() {
    const realFetch = globalThis.fetch;
    const headers = { 'content-type': 'text/event-stream; charset=utf-8' };
    for (const size of [1, 2, 3, 7, 100]) {
      globalThis.fetch = async () => new Response(byteStream(TEXT.join(''), size), { headers });
      const { bytes } = await bytesOf(await reconnectingFetch('/api/chat'));
      assert.equal(bytes, TEXT.join(''), `pieces of ${size} bytes`);
    }
    globalThis.fetch = realFetch;
  },

  async 'a response with a message in front may be cut at any byte'() {
    const [front, log] = [FRONT, AFTER_FRONT];
    const whole = [...front, ...log].join('');
    for (const ask of [post, reconnect]) {
      await forEach(Buffer.byteLength(whole), async at => {
        const { bytes } = await cut({ front, log, cuts: [{ at, ends: 'destroyed' }] }, ask);
        assert.equal(bytes, whole, `${ask.name} cut after ${at} bytes`);
      });
    }
  },

  async 'a response whose every connection brings one frame arrives whole'() {
    for (const { name, log } of fixtures) {
      const cuts = log
        .slice(0, -1)
        .map(frame => ({ at: Buffer.byteLength(frame) + 1, ends: 'closed' }));
      const { bytes, requests } = await cut({ log, cuts });
      assert.equal(bytes, log.join(''), name);
      assert.deepEqual(
        requests.map(({ last }) => last),
        [undefined, ...log.slice(0, -1).map(frame => /id: (.*)/.exec(frame)[1])],
        name,
      );
    }
  },

  async 'a response may be cut often at any bytes'() {
    const [front, log] = [FRONT, AFTER_FRONT];
    let seed = 1;
    const random = below => (seed = (seed * 48_271) % 2_147_483_647) % below;
    await forEach(300, async number => {
      // Never more attempts without a new frame than it makes.
      const cuts = Array.from({ length: 6 }, () => ({ at: random(400), ends: 'destroyed' }));
      const { bytes } = await cut({ front, log, cuts });
      assert.equal(bytes, [...front, ...log].join(''), `${number}: ${JSON.stringify(cuts)}`);
    });
  },

  async 'comments are dropped, and a silent connection is continued'() {
    const log = TEXT.flatMap(frame => [': keep-alive\n\n', frame]);
    assert.equal((await cut({ log })).bytes, TEXT.join(''));
    [hang] = HANGS;
    const { bytes, requests } = await cut({ log: TEXT, cuts: [{ at: 100, ends: 'silent' }] });
    hang = undefined;
    assert.equal(bytes, TEXT.join(''));
    assert(requests.length > 1, 'the silent connection was given up');
  },

  async 'an attempt that gets no headers is given up, and its connection is closed'() {
    const run = server.add({ log: TEXT, cuts: [{ at: 100, ends: 'closed' }] });
    run.statuses = [200, 'never', 'never'];
    [, hang] = HANGS;
    const { bytes, error } = await bytesOf(await post(run));
    hang = undefined;
    assert.equal(error, undefined);
    assert.equal(bytes, TEXT.join(''));
    assert(run.requests.length > 3, 'the rest comes from another attempt');
    await run.isLeft();
  },

  async 'what follows an id is requested from the stream of the chat, with the headers of the caller'() {
    const at = Buffer.byteLength(TEXT[0]);
    const { requests } = await cut({ log: TEXT, cuts: [{ at, ends: 'closed' }] });
    const [first, second] = requests;
    assert.equal(first.method, 'POST');
    assert.deepEqual(second, {
      method: 'GET',
      path: `/api/chat/${encodeURIComponent(first.body.id)}/stream`,
      last: 'run_1.0',
      authorization: 'Bearer 1',
      body: undefined,
    });
  },

  async 'before the first id the same request is repeated'() {
    const [front, log] = [FRONT, AFTER_FRONT];
    for (const ask of [post, reconnect]) {
      const { requests } = await cut({ front, log, cuts: [{ at: 80, ends: 'closed' }] }, ask);
      assert.deepEqual(requests[1], requests[0]);
    }
  },

  async 'a message in front that has changed is an error'() {
    const run = server.add({ front: FRONT, log: AFTER_FRONT, cuts: [{ at: 300, ends: 'closed' }] });
    const response = await post(run);
    run.front = run.front.map(frame => frame.replace('delete it', 'do that'));
    const { bytes, error } = await bytesOf(response);
    assert(FRONT.join('').startsWith(bytes));
    assert.deepEqual({ name: error.name, message: error.message }, LOST);
  },

  async 'frames that come again are an error'() {
    for (const answer of [TEXT, TEXT.slice(2)]) {
      const run = server.add({ log: TEXT, cuts: [{ at: 200, ends: 'closed' }] });
      run.rest = () => answer;
      const { bytes, error } = await bytesOf(await post(run));
      assert(bytes && TEXT.join('').startsWith(bytes), 'no frame was passed on twice');
      assert.equal(error.name, LOST.name);
    }
  },

  async 'a run that resumes a lost one continues the response'() {
    const isSent = (_, at) => TEXT.slice(0, at + 1).join('').length <= 200;
    const sent = TEXT.filter(isSent);
    const resumed = TEXT.slice(sent.length).map((frame, at) =>
      frame.replace(/run_1\.\d+/, `run_2.${at}`),
    );
    assert(sent.length > 0 && resumed.length > 1);
    const run = server.add({ log: TEXT, cuts: [{ at: 200, ends: 'closed' }] });
    run.rest = () => resumed;
    const { bytes, error } = await bytesOf(await post(run));
    assert.equal(error, undefined);
    assert.equal(bytes, [...sent, ...resumed].join(''));
  },

  async 'a response that the server no longer has ends with an error'() {
    for (const status of [204, 404]) {
      const run = server.add({ log: TEXT, cuts: [{ at: 200, ends: 'closed' }] });
      run.statuses = [200, status];
      const { bytes, error } = await bytesOf(await post(run));
      assert(bytes && TEXT.join('').startsWith(bytes));
      assert.deepEqual({ name: error.name, message: error.message }, LOST);
      assert.equal(run.requests.length, 2);
    }
  },

  async 'a server that is away for a while is asked again'() {
    const run = server.add({ log: TEXT, cuts: [{ at: 200, ends: 'closed' }] });
    run.statuses = [200, 'unreachable', 502, 503, 'busy', 200];
    const { bytes, error } = await bytesOf(await post(run));
    assert.equal(error, undefined);
    assert.equal(bytes, TEXT.join(''));
    assert.equal(run.requests.length, 6);
  },

  async 'after eight attempts without a new frame, with growing pauses, it gives up'() {
    const run = server.add({ log: TEXT, cuts: Array(20).fill({ at: 20, ends: 'closed' }) });
    delays.length = 0;
    const { error } = await bytesOf(await post(run));
    assert.deepEqual({ name: error.name, message: error.message }, LOST);
    assert.equal(run.requests.length, 1 + 8);
    assert.equal(delays.length, 8);
    assert.deepEqual(
      delays,
      delays.toSorted((one, other) => one - other),
    );
    assert(delays[0] < delays[7]);
    const seconds = delays.reduce((sum, delay) => sum + delay) / 1000;
    assert(
      source.includes(`After 8 attempts (${Math.round(seconds)} s)`),
      'the file says how long',
    );
  },

  async 'a response that is no event stream is passed on as it is'() {
    for (const status of [204, 400, 404, 409, 500, 'json']) {
      const run = server.add({ log: TEXT });
      run.statuses = [status];
      const response = await post(run);
      assert.equal(response.status, status === 'json' ? 200 : status);
      assert.equal(response.url, `${server.url}/api/chat`);
      assert.equal(await response.text(), status === 204 ? '' : `{"status":"${status}"}`);
      assert.equal(run.requests.length, 1);
    }
    const nowhere = reconnectingFetch('http://127.0.0.1:1/api/chat', {
      method: 'POST',
      body: '{}',
    });
    await assert.rejects(nowhere, TypeError);
  },

  async 'the status and the headers of the response are those of the server'() {
    const response = await post(server.add({ log: TEXT }));
    assert.equal(response.status, 200);
    assert.equal(response.headers.get('x-vercel-ai-ui-message-stream'), 'v1');
    await response.body.cancel();
  },

  async 'an abort by the caller is passed on at once and never retried'() {
    for (const ends of ['silent', 'closed']) {
      const run = server.add({ log: TEXT, cuts: Array(20).fill({ at: 200, ends }) });
      run.statuses = [200, ...Array(20).fill('never')];
      const stop = new AbortController();
      const response = await post(run, { signal: stop.signal });
      const reader = response.body.getReader();
      await reader.read();
      if (ends === 'closed') {
        // The frames so far are read, and an attempt to continue is under way.
        while (run.requests.length < 2) await Promise.race([reader.read(), wait(1)]);
      }
      stop.abort();
      const rest = async () => {
        while (!(await reader.read()).done);
      };
      await assert.rejects(rest(), { name: 'AbortError' });
      await run.isLeft();
      const requests = run.requests.length;
      await wait(20);
      assert.equal(run.requests.length, requests);
    }
  },

  async 'an abort during a pause ends it'() {
    const run = server.add({ log: TEXT, cuts: [{ at: 200, ends: 'closed' }] });
    const stop = new AbortController();
    const setTimer = globalThis.setTimerOfFetch;
    globalThis.setTimerOfFetch = (act, delay) => {
      if (!HANGS.includes(delay)) setTimeout(() => stop.abort());
      return setTimeout(() => {}, HANGS[0]).unref();
    };
    const response = await post(run, { signal: stop.signal });
    const { error } = await bytesOf(response);
    globalThis.setTimerOfFetch = setTimer;
    assert.equal(error.name, 'AbortError');
    assert.equal(run.requests.length, 1);
  },

  async 'a body that is cancelled closes the connection and is not continued'() {
    const run = server.add({ log: TEXT, cuts: [{ at: 200, ends: 'silent' }] });
    const reader = (await post(run)).body.getReader();
    await reader.read();
    await reader.cancel();
    await run.isLeft();
    await wait(20);
    assert.equal(run.requests.length, 1);
  },

  async 'the real client never sees a break, at any frame of any fixture'() {
    const client = await loadClient(REFERENCE);
    for (const { name, message, log } of fixtures) {
      const uncut = await talk(client, { message, log });
      for (let at = 0, frame = 0; frame < log.length; at += Buffer.byteLength(log[frame++])) {
        const cuts = [at, at + Buffer.byteLength(log[frame]) - 1];
        for (const at of cuts) {
          const shown = await talk(client, { message, log, cuts: [{ at, ends: 'closed' }] });
          assert.deepEqual(shown, uncut, `${name}, cut after ${at} bytes`);
        }
      }
    }
  },

  async 'every version of the real client never sees a break'() {
    for (const version of V6) {
      const client = await loadClient(version);
      const uncut = await talk(client, { log: TEXT });
      assert.equal(uncut.status, 'ready');
      await forEach(Buffer.byteLength(TEXT.join('')) / 7, async seventh => {
        const cuts = [{ at: 7 * seventh, ends: 'destroyed' }];
        const shown = await talk(client, { log: TEXT, cuts });
        assert.deepEqual(shown, uncut, `${version}, cut after ${7 * seventh} bytes`);
      });
    }
  },

  async 'the real client resumes a message in front that is cut at any byte'() {
    const client = await loadClient(REFERENCE);
    const run = { front: FRONT, log: AFTER_FRONT, resumes: true };
    const uncut = await talk(client, run);
    assert.equal(uncut.status, 'ready');
    assert.equal(uncut.messages.at(-1).parts.filter(part => part.type === 'text').length, 2);
    await forEach(Buffer.byteLength([...FRONT, ...AFTER_FRONT].join('')), async at => {
      const shown = await talk(client, { ...run, cuts: [{ at, ends: 'closed' }] });
      assert.deepEqual(shown, uncut, `cut after ${at} bytes`);
    });
  },

  async 'the real client shows the error when the rest is gone, and takes a stop for no error'() {
    const client = await loadClient(REFERENCE);
    const gone = { log: TEXT, cuts: [{ at: 300, ends: 'closed' }], statuses: [200, 204] };
    const { status, errors } = await talk(client, gone);
    assert.deepEqual({ status, errors }, { status: 'error', errors: [LOST.message] });

    const run = server.add({ log: TEXT, cuts: [{ at: 300, ends: 'silent' }] });
    const { chat, errors: seen, ends } = chatOf(client, run);
    const sending = chat.sendMessage({ text: 'Hi' });
    while (!chat.lastMessage?.parts.some(part => part.text?.includes('👋'))) await wait(1);
    await chat.stop();
    await sending;
    assert.deepEqual(
      { status: chat.status, seen, ends },
      { status: 'ready', seen: [], ends: ['stopped'] },
    );
    await wait(20);
    assert.equal(run.requests.length, 1);
  },

  async 'a replay of a continued message needs that message in front, in the real client'() {
    for (const version of V6) {
      const client = await loadClient(version);
      const whole = await talk(client, { front: FRONT, log: AFTER_FRONT, resumes: true });
      assert.deepEqual({ status: whole.status, errors: whole.errors }, { status: 'ready', errors: [] });
      const alone = await talk(client, { log: [START, ...AFTER_FRONT], resumes: true });
      assert.equal(alone.status, 'error', version);
      assert.match(alone.errors[0], /no tool invocation found/i, version);
    }
  },

  async 'a tool of the client runs if its input is available, and not if its output follows a delta'() {
    const client = await loadClient(REFERENCE);
    const { calls } = await talk(client, { front: FRONT, log: AFTER_FRONT, resumes: true });
    assert.deepEqual(calls, []);
    const available =
      'data: {"type":"tool-input-available","toolCallId":"c1","toolName":"delete_file","input":{}}\n\n';
    const front = FRONT.toSpliced(-1, 0, available);
    const again = await talk(client, { front, log: AFTER_FRONT, resumes: true });
    assert.deepEqual(again.calls, ['c1']);
  },
};

/** The real chat of a version over this run. */
function chatOf(client, run, messages = []) {
  const [errors, calls, ends] = [[], [], []];
  const Chat = memoryChat(client);
  const chat = new Chat({
    id: run.id,
    messages,
    generateId: () => 'client-1',
    transport: new client.DefaultChatTransport({
      api: `${server.url}/api/chat`,
      fetch: reconnectingFetch,
    }),
    onError: error => errors.push(error.message),
    onToolCall: ({ toolCall }) => void calls.push(toolCall.toolCallId),
    onFinish: ({ isAbort }) => ends.push(isAbort ? 'stopped' : 'finished'),
  });
  return { chat, errors, calls, ends };
}

/** What the real client shows of a run: a response to a message, to answers, or to `resumeStream`. */
async function talk(client, { message, resumes, ...run }) {
  const history = message || resumes ? [USER, ...(message ? [message] : [])] : [];
  const { chat, errors, calls, ends } = chatOf(client, server.add(run), history);
  if (resumes) await chat.resumeStream();
  else await chat.sendMessage(message ? undefined : { text: 'Hi' });
  return { messages: json(chat.messages), status: chat.status, errors, calls, ends };
}

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}: ${error.stack}`);
  }
}
server.close();
console.log(`reconnecting fetch: ${Object.keys(tests).length} ran, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
