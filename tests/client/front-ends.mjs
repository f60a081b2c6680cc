// Stops, writes on, regenerates and edits with front ends as they are installed: `useChat` of v6 and of
// v7, also with another transport as `docs/client-versions.md` shows it, and the runtime of assistant-ui. Compares what they show with what the model reads and with what
// the server stores, under both settings of `posted_history`.
//   node front-ends.mjs BASE_URL
// `front_ends.rs` has the server. Prints a line for each failure, then "front ends: N ran, M failed".
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { WorkflowChatTransport } from '@ai-sdk/workflow/client';
import * as react6 from '@ai-sdk/react';
import * as react7 from 'ai-sdk-react-7';
import { reconnectingFetch } from '../../packages/client/src/reconnecting-fetch.js';
import { AssistantUi } from './front-ends/assistant-ui.mjs';
import { until } from '../support/until.mjs';
import { UseChat } from './front-ends/use-chat.mjs';
import { loadClient, NEWEST, REFERENCE } from './clients.mjs';

const [baseUrl] = process.argv.slice(2);
if (!baseUrl) throw new Error('which server? node front-ends.mjs BASE_URL');

const realFetch = globalThis.fetch;

/** Makes the default transport of a client. */
const byDefault = ({ DefaultChatTransport }, prepareSendMessagesRequest) => (api, fetch) =>
  new DefaultChatTransport({ api, fetch, prepareSendMessagesRequest });

/** Makes the transport of `@ai-sdk/workflow` with the lines of the documentation. */
function ofWorkflow(api, fetch) {
  const page = readFileSync(new URL('../../docs/client-versions.md', import.meta.url), 'utf8');
  const [, lines] = /^```ts\n(const transport = new WorkflowChatTransport[^]*?)^```/m.exec(page);
  class Transport extends WorkflowChatTransport {
    constructor(options) {
      super({ api, ...options });
    }
  }
  return new Function('WorkflowChatTransport', 'fetch', `${lines}return transport;`)(Transport, fetch);
}

const FRONT_ENDS = {
  'useChat v6': UseChat.open(react6, byDefault(await loadClient(REFERENCE))),
  'useChat v7': UseChat.open(react7, byDefault(await loadClient(NEWEST))),
  'useChat v7, WorkflowChatTransport': UseChat.open(react7, ofWorkflow),
  'assistant-ui': AssistantUi.open,
};

/** The bodies of the SDK's guide to requests by trigger: the last message, or none. */
const lastMessageOnly = ({ id, messages, trigger, messageId }) => ({
  body:
    trigger === 'regenerate-message'
      ? { trigger, id, messageId }
      : { trigger, id, message: messages.at(-1), messageId },
});

/** Pages that post their last message only. */
const SHORT_BODIES = {
  'useChat v6, last message': UseChat.open(react6, byDefault(await loadClient(REFERENCE), lastMessageOnly)),
  'useChat v7, last message': UseChat.open(react7, byDefault(await loadClient(NEWEST), lastMessageOnly)),
};

/** A page with a chat of its own. The texts of its user begin with the name of the test. */
class Visit {
  #posts = [];
  fetch = fetch;

  static async open(open, setting, name) {
    const visit = new Visit();
    Object.assign(visit, { name, api: `${baseUrl}/${setting}/api/chat` });
    visit.page = await open(visit.api, (url, init) => {
      if (init?.method === 'POST') visit.#posts.push(JSON.parse(init.body));
      return visit.fetch(url, init);
    });
    return visit;
  }

  /** The last body that the page has posted. */
  get posted() {
    return this.#posts.at(-1);
  }

  /** The user's text, as the model reads it. */
  text = words => `${this.name}: ${words}`;

  /** Lets the page post, and waits until it shows the whole answer. */
  async answer(act) {
    const [posts, shown] = [this.#posts.length, new Set(this.shown)];
    await act();
    // Each answer of the model has another number.
    const isNew = last => /^assistant: .*Answer \d+\.$/.test(last) && !shown.has(last);
    const isAnswered = () => isNew(this.shown.at(-1)) && this.page.isIdle;
    await until(() => `the answer is shown: ${this.shown} ${this.page.error}`, isAnswered);
    assert.equal(this.page.error, undefined);
    assert.equal(this.#posts.length, posts + 1, 'one request');
  }

  say = words => this.answer(() => this.page.send(this.text(words)));

  /** Sends a message, and presses Stop while the answer is written. Returns what is shown of it. */
  async sayAndStop(words) {
    this.page.send(this.text(words));
    await until('the answer begins', () => this.showsBegin);
    this.page.stop();
    await until('the page has stopped', () => this.page.isIdle);
    return this.page.messages.at(-1).text;
  }

  /** Whether the page shows some of an answer that counts. */
  get showsBegin() {
    return /^1 2 3 /.test(this.page.messages.at(-1)?.text);
  }

  /** The messages that the page shows, as `role: text`. */
  get shown() {
    return this.page.messages.map(line);
  }

  /** What the model read in its last call. */
  async read() {
    const prompts = await (await fetch(`${baseUrl}/prompts`)).json();
    return prompts.findLast(prompt => prompt.at(-1).includes(this.name));
  }

  /** The messages that the server stores. */
  async stored() {
    const response = await fetch(`${this.api}/${encodeURIComponent(this.posted.id)}`);
    assert(response.ok, `GET the chat: ${response.status}`);
    const { messages } = await response.json();
    return messages.map(({ role, parts }) =>
      line({ role, text: parts.map(part => part.text ?? '').join('') }),
    );
  }
}

const line = ({ role, text }) => `${role}: ${text}`;
/** The messages before the last one. */
const before = lines => lines.slice(0, -1);

/** Two turns with an answer each. */
async function twoTurns(visit) {
  await visit.say('first');
  await visit.say('second');
  assert.deepEqual(visit.shown, await visit.stored());
  assert.equal(visit.shown.length, 4);
  return visit.shown;
}

const tests = {
  async 'after Stop, which is a disconnect, the next turn reads the partial answer'(visit) {
    const partial = await visit.sayAndStop('count');
    await visit.say('and then?');
    const stored = await visit.stored();
    // The server may have kept more than the page has shown.
    const [first, kept, question] = stored;
    assert(kept.startsWith(`assistant: ${partial}`), `${kept} does not begin with ${partial}`);
    const note = '(The answer before this was stopped. It is not complete.)';
    const read = [first, kept, question.replace('user: ', `user: ${note}`)];
    assert.deepEqual(await visit.read(), read);
    assert.deepEqual(stored.toSpliced(1, 1), visit.shown.toSpliced(1, 1));
    assert.equal(stored.length, 4);
    await visit.say('and now?');
    assert.deepEqual((await visit.stored()).slice(0, 4), stored, 'the stopped run writes no more');
  },

  async 'a stopped answer that is regenerated is replaced, and the model does not read it'(visit) {
    await visit.say('first');
    await visit.sayAndStop('count once');
    const [turn, question] = [visit.shown.slice(0, 2), visit.shown[2]];
    await visit.answer(() => visit.page.reload(3));
    assert.deepEqual(await visit.read(), [...turn, question]);
    assert.deepEqual(before(visit.shown), [...turn, question]);
    assert.deepEqual(await visit.stored(), visit.shown);
  },

  async 'regenerate without messageId answers the last posted user message'(visit) {
    const turns = await twoTurns(visit);
    await visit.answer(() => visit.page.reload(3));
    assert.equal(visit.posted.trigger, 'regenerate-message');
    assert.equal(visit.posted.messageId, undefined);
    assert.deepEqual(await visit.read(), before(turns));
    assert.notEqual(visit.shown.at(-1), turns.at(-1), 'another answer');
    assert.deepEqual(before(visit.shown), before(turns));
    assert.deepEqual(await visit.stored(), visit.shown);
  },

  async 'an earlier answer that is regenerated removes what follows it'(visit) {
    const turns = await twoTurns(visit);
    await visit.answer(() => visit.page.reload(1));
    assert.equal(visit.posted.messageId, undefined);
    assert.deepEqual(visit.posted.messages.map(({ role }) => role), ['user']);
    assert.deepEqual(await visit.read(), turns.slice(0, 1));
    assert.notEqual(visit.shown[1], turns[1], 'another answer');
    assert.deepEqual(await visit.stored(), visit.shown);
    await visit.say('third');
    assert.deepEqual(await visit.read(), before(visit.shown));
    assert.deepEqual(await visit.stored(), visit.shown);
    assert.equal(visit.shown.length, 4);
  },

  async 'an edit of the last message by a cut list'(visit, setting) {
    const turns = await twoTurns(visit);
    await visit.answer(() => visit.page.edit(2, visit.text('changed')));
    await mustHave(visit, setting, turns, 2);
  },

  async 'an edit of the first message by a cut list'(visit, setting) {
    const turns = await twoTurns(visit);
    await visit.answer(() => visit.page.edit(0, visit.text('changed')));
    await mustHave(visit, setting, turns, 0);
  },
};

/**
 * The page has edited the message at `place` of `turns`. Under `truncate` nothing removed comes back.
 * Under `keep` the model reads the turns that the page has removed, and the server stores them.
 */
async function mustHave(visit, setting, turns, place) {
  assert.equal(visit.posted.trigger, 'submit-message');
  assert.equal(visit.posted.messageId, undefined, 'the edit is a new message');
  assert.equal(visit.posted.messages.length, place + 1);
  const kept = setting === 'keep' ? turns : turns.slice(0, place);
  const changed = `user: ${visit.text('changed')}`;
  assert.deepEqual(await visit.read(), [...kept, changed]);
  assert.deepEqual(visit.shown.slice(0, -1), [...turns.slice(0, place), changed]);
  assert.deepEqual(await visit.stored(), [...kept, ...visit.shown.slice(place)]);
  await visit.say('third');
  const stored = await visit.stored();
  assert.deepEqual(stored, [...kept, ...visit.shown.slice(place)]);
  assert.deepEqual(await visit.read(), before(stored));
}

/** Lets an answer to `few` go on, which waits after some numbers. */
const goOn = () => realFetch(`${baseUrl}/go-on`, { method: 'POST' });

/**
 * A `fetch` whose first response ends when it has brought the number three and the page shows it: as `end` ends it.
 * The answer goes on when the second response has begun.
 */
function fetchThatEnds(visit, end) {
  let calls = 0;
  return async (url, init) => {
    const call = (calls += 1);
    const response = await realFetch(url, init);
    if (call === 2) await goOn();
    if (call > 1) return response;
    const decoder = new TextDecoder();
    let [read, hasEnded] = ['', false];
    const cutting = new TransformStream({
      transform(bytes, body) {
        body.enqueue(bytes);
        read += decoder.decode(bytes, { stream: true });
        if (hasEnded || !read.includes('"3 "')) return;
        hasEnded = true;
        void until('what came before is shown', () => visit.showsBegin).then(() => end(body));
      },
    });
    return new Response(response.body.pipeThrough(cutting), response);
  };
}

const close = body => body.terminate();
const fail = body => body.error(new TypeError('network error'));

/** Of the hook of v6 only. */
const testsOfCuts = {
  async 'an answer that ends too early is shown as ready'(visit) {
    visit.fetch = fetchThatEnds(visit, close);
    visit.page.send(visit.text('few'));
    const last = () => visit.page.messages.at(-1)?.text;
    await until('a part of the answer is shown', () => visit.page.isIdle && visit.showsBegin);
    await goOn();
    assert.equal(visit.page.error, undefined);
    assert.doesNotMatch(last(), /Answer/);
  },

  async 'a replay after a network error is shown behind what was shown before'(visit) {
    visit.fetch = fetchThatEnds(visit, fail);
    visit.page.send(visit.text('few'));
    const last = () => visit.page.messages.at(-1)?.text;
    await until('a part of the answer is shown', () => visit.page.error && visit.showsBegin);
    const half = last();
    visit.page.resume();
    await until('the answer is replayed', () => visit.page.isIdle && /Answer \d+\.$/.test(last()));
    assert(last().startsWith(`${half}1 2 3 `), last());
    assert.match((await visit.stored())[1], /^assistant: 1 2 3 4 /);
  },

  async 'a cut that the fetch of the pages continues is not seen'(visit) {
    visit.fetch = reconnectingFetch;
    for (const end of [close, fail]) {
      globalThis.fetch = fetchThatEnds(visit, end);
      await visit.say('few').finally(() => (globalThis.fetch = realFetch));
    }
    assert.match(visit.shown[1], /^assistant: 1 2 3 4 /);
    assert.deepEqual(visit.shown, await visit.stored());
  },
};

const testsOfShortBodies = {
  async 'an edit by id of an earlier message removes what follows it'(visit) {
    await twoTurns(visit);
    await visit.answer(() => visit.page.editById(0, visit.text('changed')));
    assert.equal(visit.posted.messageId, visit.posted.message.id);
    assert.deepEqual(await visit.read(), [`user: ${visit.text('changed')}`]);
    assert.equal(visit.shown.length, 2);
    assert.deepEqual(await visit.stored(), visit.shown);
  },

  async 'a regeneration by id posts no messages'(visit) {
    const turns = await twoTurns(visit);
    await visit.answer(() => visit.page.reloadById(1));
    assert.equal(visit.posted.messages ?? visit.posted.message, undefined);
    assert.deepEqual(await visit.read(), turns.slice(0, 1));
    assert.equal(visit.shown.length, 2);
    assert.deepEqual(await visit.stored(), visit.shown);
  },

  async 'a regeneration without id posts neither messages nor an id'(visit) {
    const turns = await twoTurns(visit);
    await visit.answer(() => void visit.page.helpers.regenerate());
    assert.deepEqual(Object.keys(visit.posted), ['trigger', 'id']);
    assert.deepEqual(await visit.read(), before(turns));
    assert.deepEqual(await visit.stored(), visit.shown);
  },
};

const testsOf = frontEnd => {
  if (frontEnd in SHORT_BODIES) return testsOfShortBodies;
  return frontEnd === 'useChat v6' ? { ...tests, ...testsOfCuts } : tests;
};

let [ran, failed] = [0, 0];
for (const [frontEnd, open] of Object.entries({ ...FRONT_ENDS, ...SHORT_BODIES })) {
  for (const setting of ['keep', 'truncate']) {
    const ownTests = testsOf(frontEnd);
    for (const [name, test] of Object.entries(ownTests)) {
      ran++;
      const visit = await Visit.open(open, setting, `${frontEnd}, ${setting}, ${ran}`);
      try {
        await test(visit, setting);
      } catch (error) {
        failed++;
        console.log(`FAIL ${frontEnd}, ${setting}, ${name}: ${error.stack}`);
      }
      visit.page.close();
    }
  }
}
console.log(`front ends: ${ran} ran, ${failed} failed`);
process.exit(failed ? 1 : 0);
