// Opens the chats of both pages, the demo's and the Next.js one, again: after a reload, in a second
// tab, by a link, and after a break.
//
//   npm ci
//   node reopened.mjs --demo http://127.0.0.1:3000 --next http://127.0.0.1:3001 --gates DIR [--screenshots DIR]
//
// The Next.js app must pipe to the demo given, which answers from its script (no OPENAI_API_KEY).

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { onBothPages } from './both-pages.mjs';
import { launch, readArguments, SCREENS, until, worldOf } from './chromium.mjs';
import { Tab } from './tab.mjs';

const args = readArguments();

const browser = await launch('--host-resolver-rules=MAP *.test 127.0.0.1');

/** A page of another site, with a link. */
const other = createServer((request, answer) => {
  const to = new URL(request.url, 'http://any').searchParams.get('to');
  answer.setHeader('content-type', 'text/html').end(`<a href="${to}">Look</a>`);
});
await new Promise(listening => other.listen(0, '127.0.0.1', listening));

const files = async tab => (await worldOf(tab.page.context(), args.demo)).files;

/** Each case gets a browser of its own with one tab, and a function that takes a picture. */
const CASES = {
  async 'a new chat has an id in the address from its first message on'({ tab }) {
    assert.equal(new URL(tab.page.url()).search, '');
    await tab.say('Hello there');
    const { chatId } = tab;
    assert.match(chatId, /^[\w-]{16,64}$/);
    await tab.say('Hello again');
    assert.equal(tab.chatId, chatId);
    assert(!(await tab.shows('notice')));
  },

  async 'a reload shows the chat as it was, and the user writes on'({ tab, shoot }) {
    await tab.say('Hello there');
    await tab.say('What about the weather?');
    const before = await tab.messages();
    assert.deepEqual(
      before.map(({ by }) => by),
      ['user', 'assistant', 'user', 'assistant'],
    );
    assert.deepEqual(before.at(-1).calls, ['get_weather: output-available']);
    await tab.page.reload();
    await tab.isDone(4);
    await shoot('reloaded');
    assert.deepEqual(await tab.messages(), before);
    await tab.say('And now?');
    assert.deepEqual((await tab.messages()).slice(0, 4), before);
    assert.match((await tab.messages()).at(-1).text, /^You said: And now\?$/);
  },

  async 'a question that waits can be answered after a reload'({ tab }) {
    const [file] = await files(tab);
    await tab.say(`delete ${file}`);
    await tab.page.reload();
    const card = await tab.sees('delete_file', 'approval-requested');
    await until('the page is idle', () => tab.isIdle());
    assert((await files(tab)).includes(file));
    await card.getByTestId('approve').click();
    await tab.sees('delete_file', 'output-available');
    await until('the answer is complete', async () =>
      /is deleted/.test((await tab.messages()).at(-1).text),
    );
    await until('the page is idle', () => tab.isIdle());
    assert(!(await files(tab)).includes(file));
    const [, answer, ...more] = await tab.messages();
    assert.deepEqual(more, []);
    assert.equal(answer.text, `I can delete that file for you.${file} is deleted.`);
    assert.deepEqual(answer.calls, ['delete_file: output-available']);
    await tab.page.reload();
    await tab.isDone(2);
    assert.deepEqual((await tab.messages())[1], answer);
  },

  async 'a second tab shows the same chat, and what is written in each of the two'({
    tab,
    context,
  }) {
    await tab.say('Hello there');
    const second = await Tab.open(context, tab.page.url());
    await second.isDone(2);
    await tab.say('from the first tab');
    await second.isDone(4);
    await second.say('from the second tab');
    await tab.isDone(6);
    await tab.say('How is the weather?');
    await second.isDone(8);
    const messages = await tab.messages();
    assert.deepEqual(await second.messages(), messages);
    assert.match(
      messages.map(({ text }) => text).join(),
      /from the first.*You said: from the first/s,
    );
    assert.deepEqual(second.complaints, []);
  },

  async 'a decision in the second tab is shown in the first one'({ tab, context, shoot }) {
    const [file] = await files(tab);
    await tab.say(`delete ${file}`);
    const second = await Tab.open(context, tab.page.url());
    const card = await second.sees('delete_file', 'approval-requested');
    await card.getByTestId('approve').click();
    for (const each of [second, tab]) {
      await each.sees('delete_file', 'output-available');
      await until('the answer is complete', async () =>
        /is deleted/.test((await each.messages()).at(-1).text),
      );
    }
    await shoot('decided elsewhere');
    assert.deepEqual(await tab.messages(), await second.messages());
    const answer = (await tab.messages()).at(-1);
    assert.equal(answer.text, `I can delete that file for you.${file} is deleted.`);
    assert.deepEqual(answer.calls, ['delete_file: output-available']);
    assert.deepEqual(second.complaints, []);
  },

  async 'the address of a chat of another user starts a new chat and says so'({
    tab,
    url,
    options,
    shoot,
  }) {
    await tab.say('Hello there');
    const { chatId } = tab;
    const stranger = await browser.newContext(options);
    const there = await Tab.open(stranger, tab.page.url());
    await there.page.getByTestId('notice').waitFor();
    assert.match(
      await there.page.getByTestId('notice').innerText(),
      /does not exist, or it is not yours/,
    );
    assert.equal(there.page.url(), new URL('/', url).href);
    assert.deepEqual(await there.messages(), []);
    await shoot('not yours', there.page);
    await there.say('Hello');
    assert.notEqual(there.chatId, chatId);
    assert.deepEqual(there.complaints, []);
    await stranger.close();
    await tab.page.reload();
    await tab.isDone(2);
  },

  async 'an address that names no chat starts a new chat and says so'({ tab, url }) {
    for (const name of ['..', 'a/../../api/world', '%00', 'x'.repeat(65), '']) {
      const requests = [];
      tab.page.on('request', request => requests.push(new URL(request.url()).pathname));
      await tab.page.goto(new URL(`/?chat=${encodeURIComponent(name)}`, url).href);
      await tab.page.getByTestId('notice').waitFor();
      await until(
        'the address is that of a new chat',
        () => tab.page.url() === new URL('/', url).href,
      );
      assert.deepEqual(
        requests.filter(path => path.startsWith('/api/chat/')),
        [],
        name,
      );
    }
  },

  async 'a link on another site leads to the chat'({ tab, url }) {
    await tab.say('Hello there');
    const before = await tab.messages();
    const chat = tab.page.url();
    const link = `http://other.test:${other.address().port}/?to=${encodeURIComponent(`${chat}&from=there`)}`;
    await tab.page.goto(link);
    const isDemo = url === args.demo;
    const again = isDemo && tab.page.waitForEvent('framenavigated', frame => frame.url().includes('again'));
    await tab.page.getByText('Look').click();
    await again; // the demo opens the page twice, and the page then shortens the address
    await tab.page.waitForURL(chat);
    await tab.isDone(2);
    assert.deepEqual(await tab.messages(), before);
  },

  async 'New chat leaves the chat, and Back returns to it'({ tab, url }) {
    await tab.say('Hello there');
    const chat = tab.page.url();
    const before = await tab.messages();
    await tab.page.getByTestId('new-chat').click();
    await tab.page.waitForURL(new URL('/', url).href);
    await until('the chat is empty', async () => (await tab.messages()).length === 0);
    await tab.page.goBack();
    await tab.isDone(2);
    assert.equal(tab.page.url(), chat);
    assert.deepEqual(await tab.messages(), before);
  },

  async 'after a break that cannot be mended, Try again shows the whole answer once'({
    tab,
    url,
    shoot,
  }) {
    await tab.say('Hello there');
    // The response breaks, the server says that it has none, and the chat cannot be read.
    let posts = 0;
    await tab.page.route('**/api/chat', async route => {
      if (posts++) return route.fulfill({ status: 404, body: 'gone' });
      const response = await route.fetch();
      const text = await response.text();
      const frames = text.split(/(?<=\n\n)/);
      await route.fulfill({ response, body: frames.slice(0, frames.length / 2).join('') });
    });
    await tab.page.route('**/api/chat/*', route => route.fulfill({ status: 503, body: 'Later.' }));
    await tab.page.route('**/stream', route => route.fulfill({ status: 204 }));
    await tab.write('What about the weather?');
    await tab.page.getByTestId('error').waitFor();
    await shoot('broken');
    assert.match(
      await tab.page.getByTestId('error').innerText(),
      /The connection to the server was lost/,
    );
    // The Next.js page reads the chat again by itself, 5 s after it was refused.
    if (url === args.next) await tab.page.waitForResponse(response => response.status() === 503);
    await tab.page.unrouteAll();
    await tab.page.getByTestId('retry').click();
    // The page shows half of the answer already, so a count of messages would not wait.
    const whole = 'Let me look.It is 21 °C in Lisbon and the sky is clear.';
    await until('the whole answer is shown', async () => (await tab.text()) === whole);
    await tab.isDone(4);
    assert(!(await tab.shows('error')));
    const answer = (await tab.messages()).at(-1);
    assert.deepEqual(answer.calls, ['get_weather: output-available']);
    assert.equal(answer.text, whole);
  },

  async 'a server that cannot be reached for a while costs no answer'({ tab }) {
    await tab.say('Hello there');
    const before = await tab.messages();
    const triggers = [];
    // A proxy answers for the server, which has the message.
    const away = route => route.fulfill({ status: 502, body: 'The server cannot be reached.' });
    await tab.page.route('**/api/chat', async route => {
      triggers.push(route.request().postDataJSON().trigger);
      if (triggers.length === 1) await route.fetch();
      await away(route);
    });
    await tab.page.route('**/api/chat/**', away);
    await tab.write('What about the weather?');
    for (const count of [1, 2]) {
      await until('the request has failed', () => triggers.length === count);
      await tab.fails(/cannot be reached/);
      if (count === 1) await tab.page.getByTestId('retry').click();
    }
    await tab.page.unrouteAll();
    await tab.page.getByTestId('retry').click();
    await tab.isDone(4);
    assert.deepEqual(triggers, ['submit-message', 'submit-message']);
    assert.deepEqual((await tab.messages()).slice(0, 2), before);
  },

  async 'a chat that cannot be opened now is opened by Try again'({ tab }) {
    await tab.say('Hello there');
    const before = await tab.messages();
    let requests = 0;
    await tab.page.route('**/api/chat/**', route => {
      requests += 1;
      return route.fulfill({ status: 503, body: 'Later.' });
    });
    await tab.page.reload();
    for (const count of [1, 2]) {
      await until('the request has failed', () => requests >= count);
      await tab.fails(/Later/);
      if (count === 2) await tab.page.unrouteAll();
      await tab.page.getByTestId('retry').click();
    }
    await tab.isDone(2);
    assert(!(await tab.shows('error')));
    assert.deepEqual(await tab.messages(), before);
  },

  async 'a message that did not arrive is sent also after an approval that was not used'({ tab }) {
    await tab.say('Do something mixed');
    const card = await tab.sees('transfer', 'approval-requested');
    await card.getByTestId('approve').click();
    await tab.say('No, wait');
    await tab.page.route('**/api/chat', route => route.abort('connectionreset'));
    await tab.write('And now?');
    await tab.page.getByTestId('error').waitFor();
    await tab.page.unrouteAll();
    await tab.page.getByTestId('retry').click();
    await tab.isDone(6);
    await tab.page.reload();
    await tab.isDone(6);
    assert.match((await tab.messages()).at(-1).text, /And now\?$/);
  },

  async 'a location that did not arrive is sent also after an approval that was not used'({
    tab,
    context,
    url,
  }) {
    await context.grantPermissions(['geolocation'], { origin: new URL(url).origin });
    await context.setGeolocation({ latitude: 38.72, longitude: -9.14 });
    await tab.say('Do something mixed');
    const transfer = await tab.sees('transfer', 'approval-requested');
    await transfer.getByTestId('approve').click();
    await tab.write('What is my location?');
    const location = await tab.sees('get_location', 'input-available');
    await until('the page is idle', () => tab.isIdle());
    await tab.page.route('**/api/chat', route => route.fulfill({ status: 502, body: 'Away.' }));
    await location.getByTestId('share').click();
    await tab.fails(/Away/);
    await tab.page.unrouteAll();
    await tab.page.getByTestId('retry').click();
    const isAnswered = async () => {
      const { text = '', calls = [] } = (await tab.messages()).at(-1) ?? {};
      const isOutput = calls.join() === 'get_location: output-available';
      return isOutput && /You are in (Lisbon|it)\.$/.test(text);
    };
    await until('the location has an answer', isAnswered);
    await tab.page.reload();
    await until('the location has an answer', isAnswered);
  },

  async 'a message that did not arrive is sent by Try again, and one that arrived is not repeated'({
    tab,
    url,
  }) {
    for (const arrives of [false, true]) {
      const { length } = await tab.messages();
      await tab.page.route('**/api/chat', async route => {
        if (arrives) await route.fetch();
        await route.abort('connectionreset');
      });
      await tab.write('What about the weather?');
      // The events tell the Next.js page that a message has arrived whose response was lost.
      if (!arrives || url === args.demo) {
        await tab.page.getByTestId('error').waitFor();
        await tab.page.unrouteAll();
        await tab.page.getByTestId('retry').click();
      }
      await tab.isDone(length + 2);
      await tab.page.unrouteAll();
      assert(!(await tab.shows('error')));
      await tab.page.reload();
      await tab.isDone(length + 2);
    }
  },
};

/** Runs one case in a new browser. */
async function run(act, { url, screen, shoot }) {
  const context = await browser.newContext(SCREENS[screen]);
  try {
    const tab = await Tab.open(context, url);
    const given = { tab, context, url, options: SCREENS[screen] };
    await tab.does(() => act({ ...given, shoot: (moment, page = tab.page) => shoot(page, moment) }));
    assert.deepEqual(tab.complaints, []);
  } finally {
    await context.close();
  }
}

await onBothPages('reopened', args, async ({ runCase, ...given }) => {
  for (const [name, act] of Object.entries(CASES)) await runCase(name, () => run(act, given));
});
await browser.close();
other.close();
