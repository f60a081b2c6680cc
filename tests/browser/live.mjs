// Answers that are still being written, in both pages, the demo's and the Next.js one: a reload, a
// network that is cut, Stop, and a second tab. Each part of an answer must stand once.
//
//   npm ci
//   node live.mjs --demo http://127.0.0.1:3000 --next http://127.0.0.1:3001 [--screenshots DIR]
//
// The Next.js app must pipe to the demo given, which answers from its script (no OPENAI_API_KEY).

import assert from 'node:assert/strict';
import { createServer, connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { launch, readArguments, SCREENS, until } from './chromium.mjs';
import { Tab } from './tab.mjs';

const args = readArguments();
const browser = await launch();

/** The network between the browser and a server. It can be cut. */
class Network {
  #open = new Set();
  #isDown = false;
  #server;

  static async to(url) {
    const network = new Network();
    const { hostname, port } = new URL(url);
    network.#server = createServer(near => {
      if (network.#isDown) return near.destroy();
      const far = connect(Number(port), hostname);
      for (const [from, to] of [
        [near, far],
        [far, near],
      ]) {
        network.#open.add(from);
        from.on('error', () => {});
        from.on('close', () => {
          network.#open.delete(from);
          to.destroy();
        });
        from.pipe(to);
      }
    });
    await new Promise(listening => network.#server.listen(0, '127.0.0.1', listening));
    network.url = `http://127.0.0.1:${network.#server.address().port}`;
    return network;
  }

  /** Breaks all connections, and lets none be made for some milliseconds. */
  async cut(time) {
    this.#isDown = true;
    for (const socket of this.#open) socket.destroy();
    await sleep(time);
    this.#isDown = false;
  }

  close() {
    this.#server.close();
    for (const socket of this.#open) socket.destroy();
  }
}

/** What the scripted model says to `slow N`. */
const numbers = end => Array.from({ length: end }, (_, at) => at + 1).join(' ');
const YOURS = 'I can delete that file for you.';

/** Waits until some of a text has come, and not all of it. */
const begins = async tab => {
  await until('a text begins', async () => /^1 2 3 /.test(await tab.text()));
  assert(!(await tab.isIdle()), 'the text is still being written');
};

/** Checks that a tab ends with exactly this answer to the second message of the chat. */
const ends = async (tab, { text, calls = [], length = 2 }) => {
  await until(`the answer ends with …${text.slice(-20)}`, async () => {
    return (await tab.isIdle()) && (await tab.text()).endsWith(text.slice(-10));
  });
  const messages = await tab.messages();
  assert.equal(messages.length, length);
  assert.deepEqual(messages.at(-1), { by: 'assistant', text, calls });
  assert(!(await tab.shows('error')), 'no error is shown');
};

/** Each case gets a browser of its own with one tab, and a function that takes a picture. */
const CASES = {
  async 'a reload while a text is written'({ tab, shoot }) {
    await tab.write('slow 60');
    await begins(tab);
    await tab.page.reload();
    await begins(tab);
    await shoot('reloaded in a text');
    await ends(tab, { text: numbers(60) });
    await tab.page.reload();
    await ends(tab, { text: numbers(60) });
  },

  async 'a reload while an approved tool runs'({ tab, shoot }) {
    await tab.say('delete holiday.zip');
    await (await tab.sees('delete_file', 'approval-requested')).getByTestId('approve').click();
    await tab.sees('delete_file', 'approval-responded');
    await sleep(300);
    await tab.page.reload();
    await until('the page reads the answer', async () => (await tab.messages()).length === 2);
    assert.deepEqual((await tab.messages()).at(-1).calls.length, 1);
    assert(!(await tab.isIdle()), 'the tool still runs');
    await shoot('reloaded while a tool runs');
    const calls = ['delete_file: output-available'];
    await ends(tab, { text: `${YOURS}holiday.zip was not there any more.`, calls });
    await tab.page.reload();
    await ends(tab, { text: `${YOURS}holiday.zip was not there any more.`, calls });
  },

  async 'a network that is cut while a text is written'({ tab, network, requests }) {
    await tab.write('slow 60');
    await begins(tab);
    for (const time of [0, 600, 1500]) {
      await network.cut(time);
      await sleep(500);
    }
    await ends(tab, { text: numbers(60) });
    const posts = requests.filter(({ method }) => method === 'POST');
    assert.equal(posts.length, 1);
    assert(requests.some(({ headers }) => headers['last-event-id']));
  },

  async 'a network that is cut while an approved tool runs'({ tab, network }) {
    await tab.say('delete holiday.zip');
    await (await tab.sees('delete_file', 'approval-requested')).getByTestId('approve').click();
    await tab.sees('delete_file', 'approval-responded');
    await sleep(500);
    await network.cut(600);
    const calls = ['delete_file: output-available'];
    await ends(tab, { text: `${YOURS}holiday.zip was not there any more.`, calls });
  },

  async 'Stop keeps what was written, and the user writes on'({ tab }) {
    await tab.write('slow');
    await begins(tab);
    await tab.page.getByTestId('stop').click();
    await until('the page is idle', () => tab.isIdle());
    const [, stopped] = await tab.messages();
    await tab.say('Are you still there?');
    await ends(tab, { text: 'You said: Are you still there?', length: 4 });
    assert.deepEqual((await tab.messages())[1], stopped);
    await tab.page.reload();
    await ends(tab, { text: 'You said: Are you still there?', length: 4 });
    // The server may have kept a word more than the page has shown.
    const kept = (await tab.messages())[1].text;
    assert(kept.startsWith(stopped.text) && numbers(200).startsWith(kept), kept);
  },

  async 'a second tab is opened while a text is written, and stops it'({ tab, context }) {
    await tab.write('slow');
    await begins(tab);
    const second = await Tab.open(context, tab.page.url());
    await begins(second);
    await second.page.getByTestId('stop').click();
    for (const each of [tab, second]) await until('the tab is idle', () => each.isIdle());
    const [question, answer, ...more] = await tab.messages();
    assert.deepEqual(more, []);
    assert(numbers(200).startsWith(answer.text) && answer.text.length < 200, answer.text);
    await until('both show the same', async () => {
      return JSON.stringify(await second.messages()) === JSON.stringify([question, answer]);
    });
    assert.deepEqual(second.complaints, []);
  },

  async 'a second tab follows live what is written in the first one'({ tab, context }) {
    await tab.say('Hello there');
    const second = await Tab.open(context, tab.page.url());
    await until(
      'the second tab shows the chat',
      async () => (await second.messages()).length === 2,
    );
    await tab.write('slow 40');
    await begins(second);
    for (const each of [tab, second]) await ends(each, { text: numbers(40), length: 4 });
    assert.deepEqual(await second.messages(), await tab.messages());
    assert.deepEqual(second.complaints, []);
  },

  async 'decisions in the second tab run in both'({ tab, context, shoot }) {
    await tab.say('mixed holiday.zip');
    const second = await Tab.open(context, tab.page.url());
    const transfer = await second.sees('transfer', 'approval-requested');
    await until('the second tab is idle', () => second.isIdle());
    await transfer.getByTestId('approve').click();
    await (await second.sees('delete_file', 'approval-requested')).getByTestId('approve').click();
    await until('the first tab reads the answer', async () => !(await tab.isIdle()));
    await shoot('decided in the second tab');
    const text =
      'Three things at once.It is 21 °C in Lisbon and the sky is clear. ' +
      'holiday.zip was not there any more. 5000 went to Harbour Bakery.';
    const calls = ['get_weather', 'delete_file', 'transfer'].map(
      name => `${name}: output-available`,
    );
    for (const each of [tab, second]) await ends(each, { text, calls });
    assert.deepEqual(second.complaints, []);
  },
};

let ran = 0;
let failed = 0;
for (const [site, url] of Object.entries({ demo: args.demo, next: args.next })) {
  for (const [screen, options] of Object.entries(SCREENS)) {
    for (const [name, act] of Object.entries(CASES)) {
      const context = await browser.newContext(options);
      const network = await Network.to(url);
      const tab = await Tab.open(context, network.url);
      const requests = [];
      tab.page.on('request', request =>
        requests.push({ method: request.method(), headers: request.headers() }),
      );
      const shoot = async moment => {
        if (!args.screenshots) return;
        const file = `live ${site} ${screen} ${moment}.png`.replaceAll(' ', '-');
        await tab.page.screenshot({ path: join(args.screenshots, file) });
      };
      ran += 1;
      try {
        await act({ tab, context, network, requests, shoot });
        assert.deepEqual(tab.complaints, []);
      } catch (error) {
        failed += 1;
        console.log(`FAILED ${site} ${screen} ${name}: ${error.message}`);
      }
      await context.close();
      network.close();
    }
  }
}
await browser.close();
console.log(`live answers: ${ran} ran, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
