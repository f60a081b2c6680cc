// The demo is killed while a page is open, its own or the Next.js one, and started again with the same file. The page
// goes on without a reload.
//
//   npm ci
//   node restarts.mjs --program ../../target/debug/examples/chat [--next ../../examples/nextjs] [--screenshots DIR]
//
// KILLS=300 kills it so many times at random moments (10 by default). KILL_SEED repeats a run.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { launch, SCREENS, until, worldOf } from './chromium.mjs';
import { counted, Gate } from './gate.mjs';
import { Tab } from './tab.mjs';

const { values: args } = parseArgs({
  options: Object.fromEntries(['program', 'next', 'screenshots', 'only'].map(name => [name, { type: 'string' }])),
});
const folder = mkdtempSync(join(tmpdir(), 'restarts-'));

/** The demo as a process, which keeps its port and its file. */
class Server {
  #process;
  url;
  /** The name of its file. */
  data = 'demo';
  /** What it has written to its log since its start. */
  log = '';

  async start() {
    const PORT = this.url ? new URL(this.url).port : '0';
    // The pages are compared with what is stored: with an interval they may have shown more.
    const UIMS_APPEND_INTERVAL_MS = '0';
    const data = { UIMS_DATA: join(folder, `${this.data}.db`), DEMO_GATES: folder };
    const variables = { PORT, ...data, UIMS_LEASE_MS: '2000', UIMS_APPEND_INTERVAL_MS };
    const stdio = ['ignore', 'pipe', 'inherit'];
    this.#process = spawn(args.program, { env: { ...process.env, ...variables }, stdio });
    for await (const line of createInterface({ input: this.#process.stdout })) {
      const url = /http:\/\/\S+/.exec(line)?.[0];
      if (!url) continue;
      this.url = url;
      this.log = '';
      this.#process.stdout.on('data', text => (this.log += text)).resume();
      return;
    }
    throw new Error('the demo did not start');
  }

  async stop(signal) {
    const ended = new Promise(done => this.#process.once('exit', done));
    this.#process.kill(signal);
    await ended;
  }

  async restart(pause = 0) {
    await this.stop('SIGKILL');
    await sleep(pause);
    await this.start();
  }

  world(tab) {
    return worldOf(tab.page.context(), this.url);
  }

  /** The status of the answer that is being written in the chat of a tab. */
  async streamStatus(tab) {
    const { request } = tab.page.context();
    const response = await request.get(new URL(`/api/chat/${tab.chatId}/stream`, this.url).href).catch(() => undefined);
    return response?.status();
  }
}

const server = new Server();
await server.start();
const browser = await launch();

/** Starts the Next.js app, which has to be built, in front of the server. */
async function startNext(folder) {
  const listener = createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address();
  listener.close();
  const env = { ...process.env, CHAT_SERVER: server.url };
  const start = ['node_modules/next/dist/bin/next', 'start', '-H', '127.0.0.1', '-p', port];
  const app = spawn(process.execPath, start, { cwd: folder, env, stdio: 'ignore' });
  const url = `http://127.0.0.1:${port}`;
  await until('the Next.js app listens', () => fetch(url).then(() => true, () => false));
  return { url, stop: () => app.kill('SIGKILL') };
}

/** Waits until the page waits for the user, and the server has no answer for it. */
const settle = tab =>
  until('the page waits for the user', async () => {
    return (await tab.isIdle()) && (await server.streamStatus(tab)) === 204 && tab.isIdle();
  });

/** As `settle`. If an answer was cut off, the user asks for it again. */
const settleWithRetries = async tab => {
  await settle(tab);
  while (await tab.shows('error')) {
    await tab.page.getByTestId('retry').click();
    await settle(tab);
  }
};

/** Checks that the page shows after a reload what it shows now. */
const isStored = async tab => {
  const before = await tab.messages();
  await tab.page.reload();
  await tab.isDone(before.length);
  assert.deepEqual(await tab.messages(), before);
};

/** Checks that the page shows a whole answer of the model that counts, also after a reload. */
const isCounted = async tab => {
  await until('the answer is complete', async () => / done$/.test(await tab.text()) && tab.isIdle());
  assert.equal(await tab.text(), counted(await tab.text()));
  await isStored(tab);
};

const approveAll = async tab => {
  const buttons = tab.page.getByTestId('approve');
  for (let left = await buttons.count(); left > 0; left -= 1) await buttons.first().click();
};

const CASES = {
  async 'a question that waits is answered after a restart, once'({ tab }) {
    const [file] = (await server.world(tab)).files;
    await tab.say(`delete ${file}`);
    const card = await tab.sees('delete_file', 'approval-requested');
    await server.restart();
    assert((await server.world(tab)).files.includes(file));
    await card.getByTestId('approve').click();
    await tab.sees('delete_file', 'output-available');
    await until('the answer is complete', async () => /is deleted/.test(await tab.text()));
    await until('the page is idle', () => tab.isIdle());
    assert(!(await server.world(tab)).files.includes(file));
    await isStored(tab);
    await tab.say('Hello again');
  },

  async 'an agent inside a call goes on after a restart'({ tab, shoot }) {
    const before = (await server.world(tab)).files;
    await tab.write('Please tidy up');
    const questions = tab.page.getByTestId('tool-janitor__delete_file');
    await until('both questions are shown', async () => {
      return (await tab.page.getByTestId('approve').count()) === 2 && tab.isIdle();
    });
    await server.restart();
    assert.deepEqual((await server.world(tab)).files, before);
    await questions.nth(0).getByTestId('approve').click();
    await questions.nth(1).getByTestId('deny').click();
    const confirm = questions.nth(1).getByTestId('deny-confirm');
    if (await confirm.isVisible()) await confirm.click();
    await until('the answer is complete', async () => /The janitor says: .* you denied it\.$/.test(await tab.text()));
    await until('the page is idle', () => tab.isIdle());
    await shoot('answered the janitor');
    assert.deepEqual((await server.world(tab)).files, before.slice(1));
    await isStored(tab);
  },

  async 'an answer that is cut off in a text says so, and Try again writes it'({ tab, shoot }) {
    const gate = new Gate(folder, 'cut-off');
    await tab.write(`until ${gate.name}`);
    await until('a text begins', async () => /^1 2 3 /.test(await tab.text()));
    const before = await tab.text();
    await server.restart();
    await tab.page.getByTestId('error').waitFor();
    await shoot('interrupted');
    assert((await tab.text()).startsWith(before), 'what was written is kept');
    assert.match(await tab.page.getByTestId('error').innerText(), /The server was interrupted/);
    gate.open();
    await tab.page.getByTestId('retry').click();
    await isCounted(tab);
  },

  async 'a tool that runs while the server is killed has no second effect'({ tab }) {
    const before = await server.world(tab);
    await tab.say('delete backup.zip');
    const card = await tab.sees('delete_file', 'approval-requested');
    const gate = new Gate(folder, 'backup.zip');
    await card.getByTestId('approve').click();
    await gate.reached();
    await server.restart();
    gate.open(); // another execution would delete the file
    // The head of the response may not have reached the page: then the user tries again.
    await settleWithRetries(tab);
    await tab.sees('delete_file', 'output-error');
    await settle(tab);
    assert(!(await tab.shows('error')));
    assert.deepEqual(await server.world(tab), before);
    await tab.say('Hello again');
    await isStored(tab);
  },

  async 'a server that gets SIGTERM completes the answer first'({ tab }) {
    const gate = new Gate(folder, 'sigterm');
    await tab.write(`until ${gate.name}`);
    await until('a text begins', async () => /^1 2 3 /.test(await tab.text()));
    const stopped = server.stop('SIGTERM');
    await until('the server stops', () => server.log.includes('the server stops'));
    assert.equal(await server.streamStatus(tab), 503);
    gate.open();
    await until('the answer is complete', async () => / done$/.test(await tab.text()));
    await stopped;
    await server.start();
    await isCounted(tab);
  },

  async 'kills at random moments repeat no effect and lose no message'({ tab, random }) {
    const kills = Number(process.env.KILLS ?? 10);
    for (let kill = 0; kill < kills; kill += 1) {
      // A page that is opened again shows the newest 100 messages, so this is another chat.
      if (kill % 40 === 39) await tab.page.goto(new URL('/', tab.page.url()).href);
      const { length } = await tab.messages();
      const { transfers } = await server.world(tab);
      await tab.write(`mixed ${kill}`);
      if (random() < 0.3) {
        await sleep(random() * 300);
        await server.restart(random() * 500);
      }
      await until('the questions are shown', async () => {
        await settleWithRetries(tab);
        return (await tab.page.getByTestId('approve').count()) === 2;
      });
      await approveAll(tab);
      await sleep(random() * 300);
      await server.restart(random() * 500);
      await settle(tab);
      // If the answers did not reach the server, Try again sends them. After a text that was cut off it
      // would write another answer, with another transfer to approve.
      if (/approval-responded/.test((await tab.messages()).at(-1).calls)) {
        await tab.page.getByTestId('retry').click();
        await settle(tab);
      }
      const sent = (await server.world(tab)).transfers.length - transfers.length;
      assert(sent <= 1, `${sent} transfers for one approval`);
      const messages = await tab.messages();
      assert.equal(messages.length, length + 2);
      const [question, answer] = messages.slice(-2);
      assert.equal(question.text, `mixed ${kill}`);
      const transfer = answer.calls.find(call => call.startsWith('transfer'));
      if (transfer === 'transfer: output-available') assert.equal(sent, 1, 'it was executed');
      assert.doesNotMatch(transfer, /approval-/, 'an answer was lost');
      await isStored(tab);
    }
  },
};

/** Numbers from 0 to 1, the same for the same seed. */
const randomFrom = seed => () => {
  seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31;
  return seed / 2 ** 31;
};

const seed = Number(process.env.KILL_SEED ?? (Date.now() % 100_000));
const next = args.next && (await startNext(args.next));
let ran = 0;
let failed = 0;
for (const [site, url] of Object.entries({ demo: server.url, ...(next && { next: next.url }) })) {
  // With all files in the world.
  server.data = site;
  await server.restart();
  for (const [name, act] of Object.entries(CASES)) {
    if (!`${site}: ${name}`.includes(args.only ?? '')) continue;
    const context = await browser.newContext(SCREENS.desktop);
    const tab = await Tab.open(context, url);
    const shoot = async moment => {
      if (!args.screenshots) return;
      await tab.page.screenshot({ path: join(args.screenshots, `restarts-${site}-${moment}.png`) });
    };
    ran += 1;
    try {
      await act({ tab, shoot, random: randomFrom(seed) });
      assert.deepEqual(tab.complaints, []);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${site}: ${name} (KILL_SEED=${seed}): ${error.message}`);
      console.log(await tab.page.innerText('main').catch(() => ''));
    }
    await context.close();
  }
}
next?.stop();
await browser.close();
await server.stop('SIGKILL');
rmSync(folder, { recursive: true, force: true });
console.log(`restarts: ${ran} ran, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
