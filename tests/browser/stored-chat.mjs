// What a page of `packages/client` does without a line of its own: React with v6 and v7 of the AI SDK, Vue, Svelte and
// Angular.
//
//   npm ci
//   [ONLY=TEXT] node stored-chat.mjs URL [--screenshots DIR]
//
// `crates/chat/tests/client/stock_page.rs` has the server.

import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import { until } from './chromium.mjs';
import { Network } from './network.mjs';
import { Tab } from './tab.mjs';
import { browserOf, NUMBERS, report, restart, runCases, showsBegin, url } from './visit.mjs';

/** Posts a message to a chat, as another program of the same user does, and waits for the answer. */
async function say(context, id, text, number) {
  const message = { id: `m${number}`, role: 'user', parts: [{ type: 'text', text }] };
  const response = await context.request.post('/api/chat', { data: { id, message, trigger: 'submit-message' } });
  assert.equal(response.status(), 200, await response.text());
}

const endOf = page => page.locator('article').last().getAttribute('data-end');
const statusOf = page => page.getByTestId('status').innerText();
const isReady = page => until('the page is ready', async () => (await statusOf(page)) === 'ready');

/** Waits until a tab shows a whole answer. */
const shows = (tab, text) =>
  until(`${text} is shown`, async () => (await tab.text()) === text && (await tab.isIdle()));

const CASES = {
  async 'two questions, one answer and a reload: the answer is still there'(visit) {
    await visit.asks('Tidy up', 2);
    await visit.approve('janitor__delete', 0);
    await visit.page.locator('[data-testid="tool-janitor__delete"][data-state="output-available"]').waitFor();
    assert.deepEqual(await visit.effects(), ['deleted a.log']);
    await visit.reload();
    await visit.isAsked(1);
    assert.equal(await visit.call('janitor__delete', 0).getAttribute('data-state'), 'output-available');
    await visit.call('janitor__delete', 1).getByTestId('deny').click();
    await visit.isAnswered(/deleted a\.log, This tool call was denied/);
    assert.deepEqual(await visit.effects(), ['deleted a.log']);
  },

  async 'a stopped answer is shown as stopped, also after a reload, and the next one is not'(visit) {
    const { tab, page } = visit;
    await visit.counts();
    assert.equal(await endOf(page), null);
    await page.getByTestId('stop').click();
    await until('the answer is marked', async () => (await endOf(page)) === 'stopped');
    const text = await tab.text();
    assert(NUMBERS.startsWith(text) && text.length < NUMBERS.length, text);
    await visit.reload();
    await until('the answer is marked', async () => (await endOf(page)) === 'stopped');
    assert.equal(await tab.text(), text);
    await tab.write('Say more');
    await shows(tab, 'more');
    assert.equal(await endOf(page), null);
  },

  async 'an answer that has failed is shown as failed, also after a reload, and written again'(visit) {
    const { tab, page } = visit;
    await tab.write('Fail');
    await page.getByTestId('error').waitFor();
    await until('the answer is marked', async () => (await endOf(page)) === 'failed');
    await visit.reload();
    await until('the answer is marked', async () => (await endOf(page)) === 'failed');
    await tab.write('Fail');
    await page.getByTestId('error').waitFor();
    await isNotBusy(page);
    const { posts } = visit;
    await page.getByTestId('retry').click();
    await until('the answer is written again', async () => visit.posts > posts && (await statusOf(page)) === 'error');
    await page.getByTestId('error').waitFor();
    assert.equal((await tab.messages()).length, 4);
    await visit.reload();
    await until('the answer is marked', async () => (await endOf(page)) === 'failed');
  },

  async 'a network that is cut: the page says so, and shows each part once'(visit) {
    const { tab, page, network } = visit;
    await visit.counts();
    network.down();
    await until('the page says so', async () => (await statusOf(page)) === 'reconnecting');
    network.up();
    await visit.openGate();
    await shows(tab, NUMBERS);
    assert.equal(await endOf(page), null);
    assert.equal(visit.posts, 1);
  },

  async 'a reload in the middle of an answer shows it once'(visit) {
    const { tab, page } = visit;
    await visit.counts();
    await visit.reload();
    await until('the answer goes on', async () => (await statusOf(page)) === 'streaming');
    await visit.openGate();
    await shows(tab, NUMBERS);
    await visit.reload();
    await shows(tab, NUMBERS);
  },

  async 'a message ends an answer that is being written'(visit) {
    const { tab, page } = visit;
    await visit.counts();
    // The button is off while an answer is written, and the function is not.
    await page.getByTestId('send').evaluate(button => button.removeAttribute('disabled'));
    await tab.write('Say enough');
    await shows(tab, 'enough');
    await isReady(page);
    const messages = await tab.messages();
    assert.deepEqual(messages.map(({ by }) => by), ['user', 'assistant', 'user', 'assistant']);
    await visit.reload();
    await shows(tab, 'enough');
    assert.deepEqual(await tab.messages(), messages);
  },

  async 'eight tabs over one connection for events: each writes, and all show it'(visit) {
    const tabs = [visit.tab];
    while (tabs.length < 8) tabs.push(await visit.openTab());
    for (const [at, tab] of tabs.entries()) {
      await tab.write(`Say number ${at}`);
      for (const each of tabs) await shows(each, `number ${at}`);
    }
    for (const each of tabs) assert.equal((await each.messages()).length, 16);
    await until('one tab reads the events', () => visit.eventReaders === 1);
    // The one that reads them is closed, and another one goes on.
    await tabs.shift().page.close();
    await until('another tab reads them', () => visit.eventReaders === 1);
    await tabs[3].write('Say goodbye');
    for (const each of tabs) await shows(each, 'goodbye');
    await until('one tab reads the events', () => visit.eventReaders === 1);
    visit.tab = tabs[0];
    visit.page = tabs[0].page;
    for (const { complaints } of tabs) assert.deepEqual(complaints, []);
  },

  async 'another device shows what is written, and a question that is answered elsewhere is closed'(visit) {
    const device = await browserOf(`acme.${visit.user}`, visit.baseURL);
    const there = await Tab.open(device, `${visit.baseURL}/page/${visit.pageName}?chat=${visit.id}`);
    await visit.tab.write('Say hello');
    await shows(there, 'hello');
    await visit.asks('Pay the bakery');
    await there.page.getByTestId('approve').click();
    for (const tab of [there, visit.tab]) {
      await until('the result is shown', async () => /sent 900 to bakery$/.test(await tab.text()));
      assert.equal(await tab.page.getByTestId('approve').count(), 0);
    }
    assert.deepEqual(await visit.effects(), ['sent 900 to bakery']);
    assert.deepEqual(await there.messages(), await visit.tab.messages());
    assert.deepEqual(there.complaints, []);
    await device.close();
  },

  async 'an answer that is stopped on one page is stopped on the other one'(visit) {
    const { page, tab } = visit;
    const other = await visit.openTab();
    await visit.counts();
    await showsBegin(other);
    await other.page.getByTestId('stop').click();
    for (const each of [page, other.page]) {
      await until('the answer is marked', async () => (await endOf(each)) === 'stopped');
      await isReady(each);
    }
    const messages = await tab.messages();
    assert(NUMBERS.startsWith(messages[1].text) && messages[1].text.length < NUMBERS.length, messages[1].text);
    assert.deepEqual(await other.messages(), messages);
    await visit.reload();
    await isReady(page);
    assert.deepEqual(await tab.messages(), messages);
    assert.deepEqual(other.complaints, []);
  },

  async 'an answer that is written again takes the place of the old one, on every page'(visit) {
    const { page, tab } = visit;
    const other = await visit.openTab();
    await visit.counts();
    await page.getByTestId('stop').click();
    await until('the answer is marked', async () => (await endOf(page)) === 'stopped');
    await page.getByTestId('regenerate').click();
    await visit.openGate();
    const isComplete = async each => {
      await shows(each, NUMBERS);
      await isReady(each.page);
      assert.equal(await endOf(each.page), null);
      assert.equal((await each.messages()).length, 2);
    };
    for (const each of [tab, other]) await isComplete(each);
    await visit.reload();
    await isComplete(tab);
    assert.equal(visit.posts, 2);
    assert.deepEqual(other.complaints, []);
  },

  async 'a call that two devices approve at the same moment runs once'(visit) {
    const device = await browserOf(`acme.${visit.user}`, visit.baseURL);
    await visit.asks('Pay the bakery');
    const there = await Tab.open(device, `${visit.baseURL}/page/${visit.pageName}?chat=${visit.id}`);
    await there.page.getByTestId('approve').waitFor();
    const pages = [visit.page, there.page];
    const buttons = await Promise.all(pages.map(page => page.getByTestId('approve').elementHandle()));
    await Promise.all(buttons.map(button => button.evaluate(it => it.click())));
    for (const tab of [visit.tab, there]) {
      await until('the result is shown', async () => /sent 900 to bakery$/.test(await tab.text()) && (await tab.isIdle()));
    }
    assert.deepEqual(await visit.effects(), ['sent 900 to bakery']);
    assert.deepEqual(await there.messages(), await visit.tab.messages());
    assert.equal(await there.page.getByTestId('error').count(), 0);
    assert.deepEqual(there.complaints, []);
    await device.close();
  },

  async 'two devices that write at the same moment show the same messages'(visit) {
    const device = await browserOf(`acme.${visit.user}`, visit.baseURL);
    await visit.tab.write('Say hello');
    await shows(visit.tab, 'hello');
    const there = await Tab.open(device, `${visit.baseURL}/page/${visit.pageName}?chat=${visit.id}`);
    await shows(there, 'hello');
    await Promise.all([visit.tab.write('Say one'), there.write('Say two')]);
    const ofUser = messages => messages.filter(({ by }) => by === 'user').map(({ text }) => text);
    await until('both show both messages', async () => {
      const [here, other] = [await visit.tab.messages(), await there.messages()];
      const isIdle = (await visit.tab.isIdle()) && (await there.isIdle());
      return isIdle && ofUser(here).length === 3 && here.at(-1).by === 'assistant' && isDeepStrictEqual(here, other);
    });
    const messages = await visit.tab.messages();
    assert.deepEqual(ofUser(messages).sort(), ['Say hello', 'Say one', 'Say two']);
    await visit.reload();
    await isReady(visit.page);
    assert.deepEqual(await visit.tab.messages(), messages);
    assert.deepEqual(there.complaints, []);
    await device.close();
  },

  async 'a page without a network shows afterwards what was written meanwhile'(visit) {
    const { tab, network } = visit;
    const device = await browserOf(`acme.${visit.user}`);
    await tab.write('Say hello');
    await shows(tab, 'hello');
    await isReady(visit.page);
    network.down();
    await say(device, visit.id, 'Say elsewhere', 'other');
    network.up();
    await shows(tab, 'elsewhere');
    assert.equal((await tab.messages()).length, 4);
    await device.close();
  },

  async '600 messages and 5 MB: the newest are shown, then the older ones, and the user writes on'(visit) {
    const { page, tab } = visit;
    const address = page.url();
    await page.goto('about:blank'); // An open page shows each message while the chat is filled.
    for (let number = 0; number < 300; number += 1) {
      // The model reads all messages in each turn: the long ones are the last.
      const filling = 'x'.repeat(number < 290 ? 0 : 260_000);
      await say(visit.context, visit.id, `Say ${number} ${filling}`, number);
    }
    await page.goto(address);
    const count = async () => (await tab.messages()).length;
    await until('100 messages are shown', async () => (await count()) === 100);
    for (let shown = 200; shown <= 600; shown += 100) {
      await page.getByTestId('older').click();
      await until(`${shown} messages are shown`, async () => (await count()) === shown);
    }
    assert.equal(await page.getByTestId('older').count(), 0);
    await tab.write('Say the end');
    await shows(tab, 'the end');
    await isReady(page);
    const messages = await tab.messages();
    assert.equal(messages.length, 602);
    assert(messages.reduce((sum, { text }) => sum + text.length, 0) > 5_000_000);
    const numbers = messages.slice(0, 600).map(({ text }) => Number(/\d+/.exec(text)[0]));
    assert.deepEqual(numbers, Array.from({ length: 600 }, (_, at) => at >> 1));
  },

  async 'a message that did not arrive is sent by Try again, and one that arrived is answered'(visit) {
    const { tab, page, context } = visit;
    for (const [number, arrives] of [false, true].entries()) {
      await context.route('**/api/chat', async route => {
        if (arrives) await route.fetch();
        await route.abort('connectionreset');
      });
      await tab.write(`Say ${number}`);
      if (!arrives) {
        await page.getByTestId('error').waitFor();
        await context.unroute('**/api/chat');
        await page.getByTestId('retry').click();
      }
      // The events tell the page that a message has arrived whose response was lost.
      await shows(tab, `${number}`);
      await context.unroute('**/api/chat');
      await isReady(page);
      assert.equal(await page.getByTestId('error').count(), 0);
      assert.equal((await tab.messages()).length, 2 * (number + 1));
    }
  },

  async 'a message that the server refuses stays on the page, until it is sent'(visit) {
    const { tab, page, context } = visit;
    await tab.write('Say one');
    await shows(tab, 'one');
    await isReady(page);
    await context.route('**/api/chat', route => route.fulfill({ status: 429, body: 'Too many.' }));
    await tab.write('Say two');
    await page.getByTestId('error').getByText('Too many.').waitFor();
    // Another device writes in the chat.
    await say(context, visit.id, 'Say three', 'other');
    await until('it is shown', async () => (await tab.messages()).length === 5);
    assert.deepEqual((await tab.messages()).map(({ text }) => text), ['Say one', 'one', 'Say three', 'three', 'Say two']);
    await page.getByTestId('error').getByText('Too many.').waitFor();
    await context.unroute('**/api/chat');
    await page.getByTestId('retry').click();
    await shows(tab, 'two');
    await isReady(page);
    assert.equal(await page.getByTestId('error').count(), 0);
    assert.equal((await tab.messages()).length, 6);
  },

  async 'Try again repeats what has failed, and writes no stopped answer again'(visit) {
    const { tab, page, context } = visit;
    await visit.counts();
    const away = route => route.fulfill({ status: 503, body: 'Later.' });
    await context.route('**/stream', async route => {
      if (route.request().method() === 'DELETE') await route.fetch(); // it arrives, and its response is lost
      await away(route);
    });
    await page.getByTestId('stop').click();
    await page.getByTestId('error').getByText('Later.').waitFor();
    await context.unroute('**/stream');
    await page.getByTestId('retry').click();
    await until('the answer is marked', async () => (await endOf(page)) === 'stopped');
    await isReady(page);
    await context.route('**/api/chat/**', away);
    await visit.reload();
    await page.getByTestId('error').getByText('Later.').waitFor();
    // The page reads the chat again by itself, 5 s after it was refused.
    await page.waitForResponse(response => response.status() === 503);
    await context.unroute('**/api/chat/**');
    await page.getByTestId('retry').click();
    await isReady(page);
    assert.equal(await endOf(page), 'stopped');
    assert.equal(visit.posts, 1);
    assert.equal(await page.getByTestId('error').count(), 0);
  },

  async 'an input that the tool does not accept: the question is open again, also after Try again'(visit) {
    const { page } = visit;
    await visit.asks('Pay the bakery');
    const amount = visit.call('transfer').getByTestId('amount');
    await amount.fill('much');
    await visit.approve('transfer');
    await page.getByTestId('error').getByText('transfer').waitFor();
    await visit.isAsked(1);
    await page.getByTestId('retry').click();
    await isReady(page);
    await visit.isAsked(1);
    assert.equal((await visit.tab.messages()).length, 2);
    await amount.fill('70');
    await visit.approve('transfer');
    await visit.isAnswered(/sent 70 to bakery$/);
    assert.deepEqual(await visit.effects(), ['sent 70 to bakery']);
  },

  async 'a refused input is not sent again with the answer to another question'(visit) {
    await visit.asks('Pay twice', 2);
    const history = `**/api/chat/${visit.id}`;
    let letThrough;
    const passage = new Promise(resolve => (letThrough = resolve));
    await visit.context.route(history, route => passage.then(() => route.continue()));
    await visit.call('transfer', 0).getByTestId('amount').fill('much');
    await visit.approve('transfer', 0);
    await visit.page.getByTestId('error').getByText('transfer').waitFor();
    await visit.approve('transfer', 1); // before the page has read the chat again
    await until('the second one runs', async () => (await visit.effects()).length > 0);
    letThrough();
    await visit.isAsked(1);
    await visit.context.unroute(history);
    assert.deepEqual(await visit.effects(), ['sent 800 to butcher']);
    await visit.call('transfer', 0).getByTestId('amount').fill('70');
    await visit.approve('transfer', 0);
    await visit.isAnswered(/sent 70 to bakery/);
    assert.deepEqual(await visit.effects(), ['sent 800 to butcher', 'sent 70 to bakery']);
  },

  async 'a message that has not arrived stays while an answer of another device is written'(visit) {
    const { tab, page, context } = visit;
    await context.route('**/api/chat', route => route.fulfill({ status: 429, body: 'Too many.' }));
    await tab.write('Say mine');
    await page.getByTestId('error').getByText('Too many.').waitFor();
    const written = say(context, visit.id, visit.counting, 'other');
    const texts = async () => (await tab.messages()).map(({ text }) => text);
    await until('some numbers are shown', async () => /^1 2 3/.test((await texts())[1]));
    assert.equal((await texts())[2], 'Say mine');
    await visit.openGate();
    await written;
    await isNotBusy(page);
    await page.getByTestId('error').getByText('Too many.').waitFor();
    assert.deepEqual(await texts(), [visit.counting, NUMBERS, 'Say mine']);
    await context.unroute('**/api/chat');
    await page.getByTestId('retry').click();
    await shows(tab, 'mine');
    await isReady(page);
    assert.deepEqual(await texts(), [visit.counting, NUMBERS, 'Say mine', 'mine']);
    assert.equal(await page.getByTestId('error').count(), 0);
  },

  async 'a user who was signed out signs in, and the message is sent'(visit) {
    const { tab, page, context } = visit;
    await tab.write('Say before');
    await shows(tab, 'before');
    await context.clearCookies();
    await tab.write('Say after');
    const signIn = () => context.addCookies([{ name: 'user', value: `acme.${visit.user}`, url: visit.baseURL }]);
    if (/react/.test(visit.pageName)) {
      await until('the page asks the user to sign in', () => page.evaluate(() => 'signedIn' in window));
      await signIn();
      await page.evaluate(() => window.signedIn());
    } else {
      await page.getByTestId('error').waitFor();
      await signIn();
      await page.getByTestId('retry').click();
    }
    await shows(tab, 'after');
    assert.equal((await tab.messages()).length, 4);
  },

  async 'a chat that is deleted elsewhere is shown as deleted'(visit) {
    await visit.tab.write('Say hello');
    await shows(visit.tab, 'hello');
    await isReady(visit.page);
    const { request } = visit.context;
    assert.equal((await request.delete(`/api/chat/${visit.id}`)).status(), 204);
    await visit.page.getByTestId('unknown').waitFor();
    assert.deepEqual(await visit.tab.messages(), []);
  },

  async 'an answer goes on with another server'(visit) {
    await visit.asks('Pay the bakery');
    await restart();
    await visit.approve('transfer');
    await visit.isAnswered(/sent 900 to bakery$/);
    await visit.tab.write('Say hello');
    await shows(visit.tab, 'hello');
    assert.deepEqual(await visit.effects(), ['sent 900 to bakery']);
  },

  async 'the list of chats shows what each does'(visit) {
    const { page, tab, context } = visit;
    const other = `${visit.id}-other`;
    const item = text => page.getByTestId('chat').getByText(text);
    await tab.write(`Say ${visit.id}`);
    await item(`Say ${visit.id}`).waitFor();
    const written = say(context, other, `Count in ${other}`, 'first');
    await item(`Count in ${other} writes`).waitFor();
    await visit.openGate(other);
    await written;
    const { request } = context;
    const renamed = await request.patch(`/api/chat/${other}`, { data: { title: `renamed ${other}` } });
    assert.equal(renamed.status(), 204);
    await item(`renamed ${other}`).waitFor();
    assert.equal(await item(`${other} writes`).count(), 0);
    assert.equal((await request.delete(`/api/chat/${other}`)).status(), 204);
    await until('the chat is gone', async () => (await item(`renamed ${other}`).count()) === 0);
  },
};

/** Waits until a page does nothing, also after an error. */
const isNotBusy = page => until('the page is not busy', async () => /^(ready|error)$/.test(await statusOf(page)));

const REACT = ['stored-react-v6', 'stored-react-v7', 'stored-react-v6-oldest', 'stored-react-v7-oldest'];
const PAGES = [...REACT, 'stored-vue', 'stored-svelte', 'stored-angular'];
// Only the pages with React have a list.
const isFor = (page, name) => /react/.test(page) || !name.startsWith('the list');

const result = await runCases(PAGES, CASES, isFor, () => Network.to(url));
await report('stored chats', result);
