// One browser uses the demo's page, and a second one of the same user shows all chats: each change,
// without a reload.
//
//   npm ci
//   node followed.mjs http://127.0.0.1:3000 DIR
//
// The demo must answer from its script (no OPENAI_API_KEY), and have its gates in that folder.

import assert from 'node:assert/strict';
import { launch, until } from './chromium.mjs';
import { Gate } from './gate.mjs';
import { Tab } from './tab.mjs';

const [demo, gates] = process.argv.slice(2);
const [first, second] = await Promise.all([launch(), launch()]);
const user = await first.newContext();
const tab = await Tab.open(user, demo);

const sameUser = await second.newContext();
await sameUser.addCookies(await user.cookies());
const follower = new Tab(await sameUser.newPage());
await follower.page.goto(new URL('/chats', demo).href);
// A reload would lose this.
await follower.page.evaluate(() => (window.isSamePage = true));

/** Waits until the second browser shows these chats, the newest first: each a state and a text. */
const shows = (what, expected) =>
  until(what, async () => {
    const shown = await follower.page
      .locator('li')
      .evaluateAll(items => items.map(item => [item.dataset.state, item.textContent]));
    return (
      shown.length === expected.length &&
      expected.every(([state, text], at) => shown[at][0] === state && text.test(shown[at][1]))
    );
  });

await tab.write('Hello there');
const hello = ['finished', /^Hello there \| Hello there \| You said: Hello there$/];
await shows('the new chat is shown', [hello]);
await tab.isDone(2);
await tab.write('And again');
const again = ['finished', /You said: Hello there \| And again \| You said: And again$/];
await shows('the second message is shown', [again]);

const other = await Tab.open(user, demo);
await other.write('delete old.log');
await shows('the question is shown', [['asks', /^delete old\.log \|.*I can delete that/], again]);
await other.page.getByTestId('approve').click();
const deleted = ['finished', /^delete old\.log \|.*for you\..*old\.log/];
await shows('the answer to the question is shown', [deleted, again]);

const gate = new Gate(gates, 'followed');
await tab.write(`Count until ${gate.name}`);
const counting = /Count until followed \| .*\b1 2 /;
await shows('the run is shown', [['writes', /Count until followed/], deleted]);
await until('two numbers are written', async () => /\b1 2 /.test(await tab.text()));
await tab.page.getByTestId('stop').click();
await shows('the stopped answer is shown', [['stopped', counting], deleted]);

const path = `/api/chat/${other.chatId}`;
await other.page.evaluate(path => fetch(path, { method: 'DELETE' }), path);
await shows('the deletion is shown', [['stopped', counting]]);

assert.equal(await follower.page.evaluate(() => window.isSamePage), true);
assert.deepEqual(follower.complaints, []);
await Promise.all([first.close(), second.close()]);
console.log('each change was shown');
