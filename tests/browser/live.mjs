// Answers that are still being written, in both pages, the demo's and the Next.js one: a reload, a
// network that is cut, Stop, and a second tab. Each part of an answer must stand once, in both tabs and
// at every moment.
//
//   npm ci
//   node live.mjs --demo http://127.0.0.1:3000 --next http://127.0.0.1:3001 --gates DIR [--screenshots DIR]
//
// The Next.js app must pipe to the demo given, which answers from its script (no OPENAI_API_KEY).

import assert from 'node:assert/strict';
import { onBothPages } from './both-pages.mjs';
import { launch, readArguments, SCREENS, until } from './chromium.mjs';
import { counted, Gate, numbers } from './gate.mjs';
import { Network } from './network.mjs';
import { readMessages, Tab } from './tab.mjs';

const args = readArguments();
const browser = await launch();

const YOURS = 'I can delete that file for you.';
const mixed = file =>
  'Three things at once.It is 21 °C in Lisbon and the sky is clear. ' +
  `${file} was not there any more. 5000 went to Harbour Bakery.`;
const done = (...names) => names.map(name => `${name}: output-available`);

/** Waits until a tab shows some of a text, and that it is being written. */
const begins = tab =>
  until('a text begins', async () => /^1 2 3 /.test(await tab.text()) && !(await tab.isIdle()));

/** Checks that tabs end with exactly this answer, and show the same. Without a text, the model has counted. */
const end = async (tabs, { text, calls = [], length = 2 }) => {
  const last = text?.slice(-10) ?? ' done';
  for (const tab of tabs) {
    await until(`the answer ends with …${last}`, async () => {
      return (await tab.isIdle()) && (await tab.text()).endsWith(last);
    });
    const messages = await tab.messages();
    text ??= counted(messages.at(-1).text);
    assert.equal(messages.length, length);
    assert.deepEqual(messages.at(-1), { by: 'assistant', text, calls });
    assert(!(await tab.shows('error')), 'no error is shown');
  }
  return { text, calls, length };
};

/** Approves a call that the last message of a tab shows. */
const approve = async (tab, tool) =>
  (await tab.sees(tool, 'approval-requested')).getByTestId('approve').click();

/** Waits until a tab has loaded the history, which it does when its stream is open. */
const readsStream = async tab => {
  const isHistory = response => new URL(response.url()).pathname === `/api/chat/${tab.chatId}`;
  await (await tab.page.waitForResponse(isHistory)).finished();
};

/** The tab has approved a call that runs, and reloads. */
const reloadsWhileToolRuns = async tab => {
  await tab.page.reload();
  await until('the page reads the answer', async () => {
    return (await tab.messages()).length === 2 && !(await tab.isIdle());
  });
};

/** Each case gets a browser of its own with one tab, a gate that is closed, and a function that takes a picture. */
const CASES = {
  async 'a reload while a text is written'({ tab, open, gate, shoot }) {
    await tab.write(`until ${gate.name}`);
    await begins(tab);
    const second = await open();
    await begins(second);
    await tab.page.reload();
    await begins(tab);
    await shoot('reloaded in a text');
    gate.open();
    const answer = await end([tab, second], {});
    await tab.page.reload();
    await end([tab], answer);
  },

  async 'a reload while an approved tool runs'({ tab, open, gate, shoot }) {
    await tab.say(`delete ${gate.name}`);
    const second = await open();
    await second.isDone(2);
    const reads = readsStream(second);
    await approve(tab, 'delete_file');
    await reads;
    await reloadsWhileToolRuns(tab);
    await until('the page shows the approval once', async () => {
      return (await tab.page.locator('[data-approval="approved"]').count()) === 1;
    });
    await shoot('reloaded while a tool runs');
    gate.open();
    const answer = {
      text: `${YOURS}${gate.name} was not there any more.`,
      calls: done('delete_file'),
    };
    await end([tab, second], answer);
    await tab.page.reload();
    await end([tab], answer);
  },

  async 'a network that is cut while a text is written'({ tab, open, gate, network, requests }) {
    await tab.write(`until ${gate.name}`);
    await begins(tab);
    const second = await open();
    await begins(second);
    for (const failures of [0, 1, 3]) {
      const before = [await tab.text(), await second.text()];
      await network.cut(failures);
      for (const [at, each] of [tab, second].entries()) {
        await until('the text goes on', async () => (await each.text()).length > before[at].length + 6);
      }
    }
    gate.open();
    await end([tab, second], {});
    assert.equal(requests.filter(({ method }) => method === 'POST').length, 1);
    assert(requests.some(({ headers }) => headers['last-event-id']));
  },

  async 'a network that is cut while an approved tool runs'({ tab, open, gate, network, requests }) {
    await tab.say(`delete ${gate.name}`);
    const second = await open();
    await second.isDone(2);
    const reads = readsStream(second);
    await approve(tab, 'delete_file');
    await reads;
    // The stream has told what was decided, so there is a frame that the next connection continues.
    await tab.page.locator('[data-approval="approved"]').waitFor();
    await network.cut(1);
    await until('the page reads on', () => requests.some(({ headers }) => headers['last-event-id']));
    gate.open();
    await end([tab, second], {
      text: `${YOURS}${gate.name} was not there any more.`,
      calls: done('delete_file'),
    });
  },

  async 'Stop keeps what was written, and the model goes on from there'({ tab, open, gate, shoot }) {
    await tab.write(`until ${gate.name}`);
    await begins(tab);
    const second = await open();
    await begins(second);
    await tab.page.getByTestId('stop').click();
    for (const each of [tab, second]) await until('the tab is idle', () => each.isIdle());
    const [, stopped] = await tab.messages();
    await tab.write('Please go on');
    await until('the model goes on', async () => (await tab.messages()).length === 4);
    for (const each of [tab, second]) await until('the tab is idle', () => each.isIdle());
    await shoot('stopped and went on');
    // The server may have kept a word more than the page has shown.
    const kept = (await second.messages())[1].text;
    assert(kept.startsWith(stopped.text), kept);
    assert.equal(kept, numbers(kept.split(' ').length));
    const last = Number(kept.split(' ').at(-1));
    const answer = { text: numbers(last + 10, last + 1), length: 4 };
    await end([tab, second], answer);
    await tab.page.reload();
    await end([tab], answer);
    assert.deepEqual(await tab.messages(), await second.messages());
  },

  async 'a second tab is opened while a text is written, and stops it'({ tab, open, gate }) {
    await tab.write(`until ${gate.name}`);
    await begins(tab);
    const second = await open();
    await begins(second);
    await second.page.getByTestId('stop').click();
    for (const each of [tab, second]) await until('the tab is idle', () => each.isIdle());
    const [question, answer, ...more] = await tab.messages();
    assert.deepEqual(more, []);
    assert.match(answer.text, /^1 2 3 /);
    assert.equal(answer.text, numbers(answer.text.split(' ').length));
    // The tab that stops closes its connection, and may have shown a word less.
    const [, shown] = await second.messages();
    assert(answer.text.startsWith(shown.text), shown.text);
    await second.page.reload();
    await second.isDone(2);
    assert.deepEqual(await second.messages(), [question, answer]);
  },

  async 'Stop in the second tab while an approved tool runs'({ tab, open, context, api, gate, requests, shoot }) {
    const get = async path => (await context.request.get(new URL(path, api).href)).json();
    const sent = async () => (await get('/api/world')).transfers.length;
    await tab.say(`mixed ${gate.name}`);
    const second = await open();
    await second.isDone(2);
    const before = await sent();
    await approve(tab, 'transfer');
    for (const each of [tab, second]) await each.sees('transfer', 'output-available');
    for (const each of [tab, second]) await until('the tab is idle', () => each.isIdle());
    await approve(tab, 'delete_file');
    await gate.reached();
    await second.page.getByTestId('stop').click();
    for (const each of [tab, second]) await until('the tab is idle', () => each.isIdle());
    await shoot('stopped in the second tab while a tool runs');
    // The page that approved says so itself, the other one by the data of the server.
    const shown = async each => {
      assert.equal(await each.page.getByTestId('approve').count(), 0, 'the user is not asked again');
      return JSON.stringify(await each.messages()).replace('delete_file: approval-requested', 'delete_file: approval-responded');
    };
    assert.equal(await shown(second), await shown(tab));
    gate.open();
    // The tool is not stopped. The chat gets its result, and the model is not called.
    await until('the tool has ended', async () => {
      const { messages } = await get(`/api/chat/${tab.chatId}`);
      return /"deleted"/.test(JSON.stringify(messages));
    });
    for (const each of [tab, second]) await each.page.reload();
    const calls = done('get_weather', 'delete_file', 'transfer');
    await end([tab, second], { text: 'Three things at once.', calls });
    // The message, and each approval.
    assert.equal(requests.filter(({ method }) => method === 'POST').length, 3);
    assert.equal((await sent()) - before, 1);
  },

  async 'a second tab follows live what is written in the first one'({ tab, open, gate }) {
    await tab.say('Hello there');
    const second = await open();
    await second.isDone(2);
    await tab.write(`until ${gate.name}`);
    await begins(second);
    gate.open();
    await end([tab, second], { length: 4 });
    assert.deepEqual(await second.messages(), await tab.messages());
  },

  async 'decisions in the second tab run in both'({ tab, open, gate, shoot }) {
    await tab.say(`mixed ${gate.name}`);
    const second = await open();
    await second.isDone(2);
    await approve(second, 'transfer');
    await approve(second, 'delete_file');
    await until('the first tab reads the answer', async () => !(await tab.isIdle()));
    await shoot('decided in the second tab');
    gate.open();
    const calls = done('get_weather', 'delete_file', 'transfer');
    await end([tab, second], { text: mixed(gate.name), calls });
  },

  async 'a decision elsewhere appears in the open stream of a tab'({ tab, context, api, gate, shoot }) {
    // Without a word from the other tabs, as in another browser.
    await context.addInitScript(() => {
      BroadcastChannel.prototype.postMessage = () => {};
    });
    await tab.page.reload();
    await tab.say(`mixed ${gate.name}`);
    // The tab reads the run of the deletion.
    await approvesElsewhere(context, api, tab.chatId, gate.name);
    await reloadsWhileToolRuns(tab);
    await tab.sees('transfer', 'approval-requested');
    await approvesElsewhere(context, api, tab.chatId, '5000');
    await tab.sees('transfer', 'output-available');
    await shoot('a decision in the open stream');
    gate.open();
    const answer = { text: mixed(gate.name), calls: done('get_weather', 'delete_file', 'transfer') };
    await end([tab], answer);
    await tab.page.reload();
    await end([tab], answer);
  },
};

/** Approves one call of a chat, as a program of the same user does. */
async function approvesElsewhere(context, api, chat, described) {
  const url = new URL('/api/approvals', api).href;
  const { approvals } = await (await context.request.get(url)).json();
  const own = approvals.filter(
    ({ chatId, description }) => chatId === chat && description.includes(described),
  );
  const decisions = own.map(({ approvalId }) => ({ approvalId, approved: true }));
  const response = await context.request.post(url, { data: { decisions } });
  assert.equal((await response.json()).decisions.length, 1);
}

/** Makes the pages of a browser report what they show after each change. */
async function watch(context) {
  const seen = [];
  await context.exposeBinding('report', (_, messages) => void seen.push(messages));
  await context.addInitScript(
    `(${read => {
      const look = () => report(read([...document.querySelectorAll('[data-testid^="message-"]')]));
      const options = { subtree: true, childList: true, characterData: true };
      new MutationObserver(look).observe(document, options);
    }})(${readMessages})`,
  );
  return seen;
}

/** Checks that each moment showed a beginning of the chat as the server holds it. */
function mustBeBeginnings(seen, whole) {
  const isBeginning = ({ by, text, calls }, at) =>
    by === whole[at]?.by &&
    whole[at].text.startsWith(text) &&
    calls.length <= whole[at].calls.length &&
    calls.every((call, nth) => call.split(':')[0] === whole[at].calls[nth].split(':')[0]);
  const wrong = seen.find(messages => !messages.every(isBeginning));
  assert.equal(wrong, undefined, `shown at one moment: ${JSON.stringify(wrong)}`);
  assert(seen.length > 0, 'the pages have reported');
}

let gates = 0;

/** Runs one case in a new browser. */
async function run(act, { url, screen, shoot }) {
  const gate = new Gate(args.gates, `gate-${(gates += 1)}.img`);
  const context = await browser.newContext(SCREENS[screen]);
  const network = await Network.to(url);
  try {
    const seen = await watch(context);
    // The demo knows a browser by the port that it has opened. The Next.js app opens the demo itself.
    const api = url === args.demo ? network.url : args.demo;
    const tabs = [await Tab.open(context, network.url)];
    const [tab] = tabs;
    const open = async () => {
      tabs.push(await Tab.open(context, tab.page.url()));
      return tabs.at(-1);
    };
    const requests = [];
    context.on('request', request =>
      requests.push({ method: request.method(), headers: request.headers() }),
    );
    const given = { tab, open, context, network, api, gate, requests };
    await tab.does(() => act({ ...given, shoot: moment => shoot(tab.page, moment) }));
    await tab.page.reload();
    await until('the chat is shown', async () => {
      return (await tab.isIdle()) && (await tab.messages()).length > 0;
    });
    mustBeBeginnings(seen, await tab.messages());
    for (const { complaints } of tabs) assert.deepEqual(complaints, []);
  } finally {
    gate.open();
    await context.close();
    network.close();
  }
}

await onBothPages('live', args, async ({ runCase, ...given }) => {
  for (const [name, act] of Object.entries(CASES)) await runCase(name, () => run(act, given));
});
await browser.close();
