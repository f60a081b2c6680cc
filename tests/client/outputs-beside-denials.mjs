// Which pages send the output of a tool of the browser beside a denied call, with the real `AbstractChat`: those with the
// SDK's helpers, and those with the function that `docs/front-end.md` shows.
//   node outputs-beside-denials.mjs
// Prints a line for each failure, then "outputs beside denials: N ran, M failed".
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { transformSync } from 'esbuild';
import { until } from '../support/until.mjs';
import { loadClient, NEWEST, REFERENCE } from './clients.mjs';
import { memoryChat } from './memory-chat.mjs';
import { byteStream, chunksOf, sseBody } from './wire.mjs';

const read = path => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
const fixture = name =>
  read(`fixtures/chunks/${name}.jsonl`)
    .trim()
    .split('\n')
    .map(line => JSON.parse(line));
const chunksIn = lines => lines.flatMap(({ chunk }) => chunk ?? []);

/** The server refuses a call, and the page has to execute the other one. */
const REFUSED = chunksIn(fixture('for_ai_7_a_refused_call_beside_one_of_the_client_has_failed'));

/** The same as the server would write it without that other call. */
const DENIED = REFUSED.flatMap(chunk => {
  if (chunk.type !== 'tool-output-error') return [chunk];
  const { toolCallId } = chunk;
  return [
    { type: 'tool-approval-request', approvalId: 'refused', toolCallId, isAutomatic: true },
    { type: 'tool-approval-response', approvalId: 'refused', approved: false, reason: chunk.errorText },
    { type: 'tool-output-denied', toolCallId },
  ];
});

/** What a page loads after another page has denied a call. */
const DENIED_ELSEWHERE = {
  id: 'msg_1',
  role: 'assistant',
  parts: [
    { type: 'step-start' },
    {
      type: 'tool-delete_file',
      toolCallId: 'c1',
      state: 'output-denied',
      input: { path: 'notes.txt' },
      approval: { id: 'a1', approved: false },
    },
    { type: 'tool-get_location', toolCallId: 'c2', state: 'input-available', input: {} },
  ],
};

const ANSWER = [
  { type: 'start' },
  { type: 'start-step' },
  { type: 'text-start', id: 't' },
  { type: 'text-delta', id: 't', delta: 'You are in Bern.' },
  { type: 'text-end', id: 't' },
  { type: 'finish-step' },
  { type: 'finish', finishReason: 'stop' },
];

const QUESTION = { id: 'u', role: 'user', parts: [{ type: 'text', text: 'Where am I?' }] };

/** The functions for `sendAutomaticallyWhen`: of the SDK, and of the guide. */
function functionsOf(client) {
  const blocks = [...read('docs/front-end.md').matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code);
  const [documented] = blocks.filter(code => code.includes("'output-denied'"));
  const { code } = transformSync(`${documented}\nreturn isAnswered;`, { loader: 'ts' });
  const names = [
    'isToolUIPart',
    'lastAssistantMessageIsCompleteWithApprovalResponses',
    'lastAssistantMessageIsCompleteWithToolCalls',
  ];
  const [, areApproved, areExecuted] = names.map(name => client[name]);
  return {
    helpers: chat => areApproved(chat) || areExecuted(chat),
    documented: new Function(...names, code)(...names.map(name => client[name])),
  };
}

/** A chat whose responses are these, and what it has posted and decided. */
function chatOf(client, { messages = [], responses, sendAutomaticallyWhen }) {
  const [posts, decisions] = [[], []];
  const left = [...responses];
  const Chat = memoryChat(client);
  const chat = new Chat({
    id: 'chat',
    messages,
    transport: {
      async sendMessages(request) {
        posts.push(structuredClone(request.messages));
        return chunksOf(client, byteStream(sseBody(left.shift())));
      },
      reconnectToStream: async () => null,
    },
    sendAutomaticallyWhen(chat) {
      decisions.push(sendAutomaticallyWhen(chat));
      return decisions.at(-1);
    },
    onError: error => assert.fail(error),
  });
  return { chat, posts, decisions };
}

/** Whether the page sends the output of its call. */
async function sends(client, run) {
  const { chat, posts, decisions } = chatOf(client, run);
  if (!run.messages) await chat.sendMessage({ text: 'Where am I?' });
  assert(!decisions.includes(true), 'it has sent something before');
  const before = posts.length;
  await chat.addToolOutput({ tool: 'get_location', toolCallId: 'c2', output: 'Bern' });
  if (!decisions.at(-1)) {
    assert.equal(posts.length, before);
    return false;
  }
  await until('the answer is there', () => chat.status === 'ready' && posts.length === before + 1);
  const part = posts.at(-1).at(-1).parts.find(({ toolCallId }) => toolCallId === 'c2');
  assert.deepEqual([part.state, part.output], ['output-available', 'Bern']);
  assert.equal(chat.messages.at(-1).parts.at(-1).text, 'You are in Bern.');
  return true;
}

const tests = {
  async 'an output beside a call that the server has refused is sent'(client, { helpers, documented }) {
    for (const sendAutomaticallyWhen of [helpers, documented]) {
      assert.equal(await sends(client, { responses: [REFUSED, ANSWER], sendAutomaticallyWhen }), true);
    }
  },

  async 'beside a denied call the helpers of the SDK would not send it'(client, { helpers, documented }, version) {
    // `ai@6` does not know this denial.
    if (version !== NEWEST) return;
    const responses = [DENIED, ANSWER];
    assert.equal(await sends(client, { responses, sendAutomaticallyWhen: helpers }), false);
    assert.equal(await sends(client, { responses, sendAutomaticallyWhen: documented }), true);
  },

  async 'an output beside a call that was denied on another page is sent by the function of the guide'(
    client,
    { helpers, documented },
  ) {
    const run = { messages: [QUESTION, DENIED_ELSEWHERE], responses: [ANSWER] };
    assert.equal(await sends(client, { ...run, sendAutomaticallyWhen: helpers }), false);
    assert.equal(await sends(client, { ...run, sendAutomaticallyWhen: documented }), true);
  },

  async 'the function of the guide does not ask again and again'(client, { documented }) {
    const name = 'a_turn_that_ends_beside_a_denied_call_does_not_make_pages_that_leave_it_out_ask_for_ever';
    const lines = fixture(name);
    const [{ continues }] = lines;
    const messages = [QUESTION, continues];
    const run = { messages, responses: [chunksIn(lines)], sendAutomaticallyWhen: documented };
    const { chat, posts, decisions } = chatOf(client, run);
    await chat.sendMessage(undefined, { messageId: continues.id });
    assert.deepEqual([posts.length, decisions], [1, [false]]);
    // A denied call alone is no reason to send.
    assert.equal(documented({ messages: [QUESTION, { ...DENIED_ELSEWHERE, parts: DENIED_ELSEWHERE.parts.slice(0, 2) }] }), false);
  },
};

let [ran, failed] = [0, 0];
for (const version of [REFERENCE, NEWEST]) {
  const client = await loadClient(version);
  for (const [name, test] of Object.entries(tests)) {
    ran += 1;
    try {
      await test(client, functionsOf(client), version);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${version}: ${name}: ${error.stack}`);
    }
  }
}
console.log(`outputs beside denials: ${ran} ran, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
