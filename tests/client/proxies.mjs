// Runs the proxies of `docs/operations.md`, with the configurations there, in front of two demos on one SQLite file, and
// checks what that page says of them. `compose` is what `deploy/compose.yaml` starts: its nginx, its servers and its Redis, as
// processes, with the variables, commands and health checks of that file.
//   node proxies.mjs DEMO [nginx] [caddy] [haproxy] [compose]
// DEMO is the built example `chat`. A proxy that is not installed is NOT RUN; with `CI=true` that is a failure. Prints
// a line for each promise that is kept, then "proxies: N ran, M failed".
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'yaml';
import { reconnectingFetch } from '../../packages/client/src/reconnecting-fetch.js';
import { until } from '../support/until.mjs';

const read = file => readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8');

/** The configuration of a proxy in `docs/operations.md`. */
const documented = name => new RegExp(`^\`\`\`${name}\n([^]*?)^\`\`\``, 'm').exec(read('docs/operations.md'))[1];

/** How each proxy is started with a configuration, and what surrounds that of the page. */
const PROXIES = {
  nginx: {
    listen: 'listen 80;',
    on: port => `listen 127.0.0.1:${port};`,
    around: (block, folder) => {
      const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(of => `${of}_temp_path ${folder}/${of};`);
      return `daemon off; master_process off; pid ${folder}/pid; error_log ${folder}/log; events {}
        http { access_log off; ${temporary.join(' ')} ${block} }`;
    },
    arguments: file => ['-c', file],
    isAtOnce: true,
    end: ['broken'],
  },
  caddy: {
    listen: 'chat.example {',
    on: port => `http://127.0.0.1:${port} {`,
    around: block => `{\n admin off\n auto_https off\n}\n${block}`,
    arguments: file => ['run', '--adapter', 'caddyfile', '--config', file],
    isAtOnce: false,
    end: ['clean', 'broken'],
  },
  haproxy: {
    listen: 'bind :80',
    on: port => `bind 127.0.0.1:${port}`,
    around: block => block,
    arguments: file => ['-db', '-f', file],
    isAtOnce: true,
    end: ['broken'],
  },
};
PROXIES.compose = {
  ...PROXIES.nginx,
  programs: ['nginx', 'redis-server', 'curl'],
  block: () => read('deploy/nginx.conf'),
  servers: ['chat-1:3000', 'chat-2:3000'],
};

/** What has to be removed at the end, the last one first. */
const ends = [];

function temporaryFolder() {
  const folder = mkdtempSync(join(tmpdir(), 'proxies-'));
  ends.push(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

function start(program, argumentsOf, options = {}) {
  const child = spawn(program, argumentsOf, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
  child.printed = '';
  for (const output of [child.stdout, child.stderr]) output.on('data', text => (child.printed += text));
  child.ended = once(child, 'exit');
  ends.push(async () => {
    child.kill('SIGKILL');
    await child.ended;
  });
  return child;
}

async function isReady(url) {
  const response = await fetch(url).catch(() => undefined);
  await response?.text();
  return response?.ok;
}

function withReplaced(text, replaced) {
  return replaced.reduce((text, [from, to]) => {
    const changed = text.replaceAll(from, to);
    assert.notEqual(changed, text, `${from} is not there`);
    return changed;
  }, text);
}

/** Starts a proxy in front of two ports. Returns its URL. */
async function startProxy(name, ports) {
  const { programs: [program] = [name], block = () => documented(name), servers, listen, on, around, arguments: argumentsOf } = PROXIES[name];
  const [folder, port] = [temporaryFolder(), await freePort()];
  const addresses = servers ?? ['127.0.0.1:3000', '127.0.0.1:3001'];
  const replaced = [[listen, on(port)], ...ports.map((port, at) => [addresses[at], `127.0.0.1:${port}`])];
  writeFileSync(`${folder}/config`, around(withReplaced(block(), replaced), folder));
  const proxy = start(program, argumentsOf(`${folder}/config`), { env: { ...process.env, HOME: folder } });
  const url = `http://127.0.0.1:${port}`;
  await until(() => `${name} serves: ${proxy.printed}`, () => isReady(`${url}/ready`));
  return url;
}

/** Two demos on one store, and their gates. */
class Demos {
  folder = temporaryFolder();
  processes = [];
  gates = join(this.folder, 'gates');

  async start(at) {
    const env = { ...process.env, ...this.variables(at), DEMO_GATES: this.gates, UIMS_LEASE_MS: 2_000 };
    this.processes[at] = start(DEMO, [], { env });
    await until(() => `the demo is ready: ${this.processes[at].printed}`, () => this.isHealthy(at));
  }

  variables(at) {
    return { PORT: this.ports[at], UIMS_DATA: join(this.folder, 'chat.db') };
  }

  isHealthy(at) {
    return isReady(`${this.url(at)}/ready`);
  }

  url = at => `http://127.0.0.1:${this.ports[at]}`;

  async begin() {
    mkdirSync(this.gates);
    this.ports = [await freePort(), await freePort()];
    for (const at of [0, 1]) await this.start(at);
  }

  close = (...names) => names.forEach(name => writeFileSync(join(this.gates, name), ''));
  open = name => rmSync(join(this.gates, name));
}

/** The servers of `deploy/compose.yaml`, on its Redis. */
class Containers extends Demos {
  #services = parse(read('deploy/compose.yaml')).services;

  async begin() {
    this.redisPort = await freePort();
    const { command: [redis, ...settings], healthcheck } = this.#services.redis;
    const [, client, ...ping] = healthcheck.test;
    start(redis, [...settings, '--port', this.redisPort, '--dir', this.folder]);
    await until('Redis is healthy', () => spawnSync(client, ['-p', this.redisPort, ...ping]).status === 0);
    await super.begin();
  }

  /** A server's service, with the ports and the folder of this run. */
  #service(at) {
    const replaced = [
      ['redis://redis/', `redis://127.0.0.1:${this.redisPort}/`],
      ['/data/', `${this.folder}/`],
      ['3000', this.ports[at]],
      [/\$\{APPROVAL_SECRET:\?[^}]+\}/g, SECRET],
    ];
    return JSON.parse(withReplaced(JSON.stringify(this.#services[`chat-${at + 1}`]), replaced));
  }

  variables(at) {
    const ofImage = [...read('deploy/Dockerfile').matchAll(/^ENV (\w+)=(.*)$/gm)].map(([, name, value]) => [name, value]);
    return { ...Object.fromEntries(ofImage), ...this.#service(at).environment };
  }

  isHealthy(at) {
    const [, program, ...given] = this.#service(at).healthcheck.test;
    return spawnSync(program, given).status === 0;
  }
}

const SECRET = randomBytes(32).toString('base64');

/** A response that is read while it is written. */
class Reader {
  text = '';
  end = undefined;

  constructor({ body }) {
    this.#read(body);
  }

  async #read(body) {
    const decoder = new TextDecoder();
    try {
      for await (const bytes of body) this.text += decoder.decode(bytes, { stream: true });
      this.end = 'clean';
    } catch {
      this.end = 'broken';
    }
  }

  /** The text of the answer. */
  get answer() {
    return [...this.text.matchAll(/"delta":"([^"]*)"/g)].map(([, delta]) => delta).join('');
  }

  until(text) {
    return until(() => `«${text}» arrives, not only «${this.answer}»`, () => {
      assert(!this.end || this.answer.includes(text), `the response has ended: ${this.text}`);
      return this.answer.includes(text);
    });
  }

  async untilDone() {
    await until(() => `the response ends: ${this.text}`, () => this.end);
    assert.match(this.text, /\ndata: \[DONE\]\n\n$/);
  }
}

let number = 0;

/** A page with one chat, which sends a message. */
class Page {
  id = `chat-${++number}`;

  constructor(url) {
    this.url = url;
  }

  post(text, send = fetch) {
    const message = { id: 'm1', role: 'user', parts: [{ type: 'text', text }] };
    const body = JSON.stringify({ id: this.id, messages: [message] });
    return send(`${this.url}/api/chat`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
  }

  async ask(text, send) {
    const response = await this.post(text, send);
    assert.equal(response.status, 200);
    return new Reader(response);
  }

  async reload() {
    const response = await fetch(`${this.url}/api/chat/${this.id}/stream`);
    assert.equal(response.status, 200);
    return new Reader(response);
  }

  stop = () => fetch(`${this.url}/api/chat/${this.id}/stream`, { method: 'DELETE' });
}

/** A message that does not fit into every buffer. */
const LONG = 'x'.repeat(40_000);

const NUMBERS = Array.from({ length: 20 }, (_, at) => at + 1);

/** Each number arrives before the gate of the next one is opened, also after a reload in the middle of the answer. */
async function deltaByDelta(demos, url) {
  const page = new Page(url);
  const names = NUMBERS.map(n => `${page.id}-${n}`);
  demos.close(...names);
  const readers = [await page.ask(`before each ${names.join(' ')}`)];
  for (const [at, name] of names.entries()) {
    await Promise.all(readers.map(reader => reader.until(`${at + 1} `)));
    // The page has more than 512 bytes to repeat from the fifth number on.
    if (at >= 4) readers.push(await page.reload());
    await readers.at(-1).until(`${at + 1} `);
    demos.open(name);
  }
  for (const reader of readers) await reader.untilDone();
  for (const { answer } of readers) assert.equal(answer, NUMBERS.map(n => `${n} `).join(''));
}

async function stop(demos, url) {
  const page = new Page(url);
  demos.close(page.id);
  const reader = await page.ask(`until ${page.id}`);
  await reader.until('1 ');
  assert.equal((await page.stop()).status, 204);
  await reader.untilDone();
  assert.match(reader.text, /"type":"abort"/);
  demos.open(page.id);
}

/** A host without a chat server stops its agent when the client has left. It may write nothing for a long time. */
async function leave(name) {
  let state = 'waits';
  const host = createServer((request, response) => {
    if (request.url === '/ready') return response.end('ready');
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' });
    response.write('data: {"type":"start"}\n\n');
    response.on('close', () => (state = 'has left'));
  }).listen(0, '127.0.0.1');
  ends.push(() => host.close());
  await once(host, 'listening');
  const { port } = host.address();
  const url = await startProxy(name, [port, port]);
  const leaving = new AbortController();
  const response = await fetch(`${url}/api/chat`, { signal: leaving.signal });
  const { value } = await response.body.getReader().read();
  assert(value.length > 0);
  assert.equal(state, 'waits');
  leaving.abort();
  await until('the host knows that the client has left', () => state === 'has left');
}

/** Sends messages, and returns whether each was answered. */
async function areAnswered(url, text) {
  for (let n = 0; n < 20; n++) {
    const response = await new Page(url).post(text);
    await response.text();
    if (response.status !== 200) return false;
  }
  return true;
}

/** The second server gets all messages, after the next check of the proxy at the latest. `isAtOnce`: without an error. */
async function failOver(url, isAtOnce) {
  if (isAtOnce) assert(await areAnswered(url, 'Hi'));
  // Some proxies repeat only small ones.
  await until('the other server gets all messages', () => areAnswered(url, LONG));
}

/** The first server is shut down while it writes an answer. New messages go to the other one. */
async function shutDown(demos, url, isAtOnce) {
  const onFirst = new Page(demos.url(0));
  demos.close(onFirst.id);
  const reader = await onFirst.ask(`until ${onFirst.id}`);
  await reader.until('1 ');
  demos.processes[0].kill('SIGTERM');
  await until('the first server refuses messages', async () => {
    const response = await new Page(demos.url(0)).post('Hi');
    await response.text();
    return response.status === 503;
  });
  await failOver(url, isAtOnce);
  demos.open(onFirst.id);
  await reader.untilDone();
  await demos.processes[0].ended;
  await failOver(url, isAtOnce);
}

/** The second server, which is the only one, is killed. The first one is there again. */
async function lose(demos, url) {
  const connections = [];
  const watched = async (...request) => {
    const response = await fetch(...request);
    const [ours, its] = response.body.tee();
    if (response.ok) connections.push(new Reader({ body: ours }));
    return new Response(its, response);
  };
  const page = new Page(url);
  demos.close(page.id);
  const reader = await page.ask(`until ${page.id}`, (url, init) => reconnectingFetch(url, init, { fetch: watched }));
  await reader.until('3 ');
  await demos.start(0);
  demos.processes[1].kill('SIGKILL');
  await reader.untilDone();
  assert.match(reader.text, /The server was interrupted/);
  assert(connections.length > 1 && connections[0].end, 'the page has reconnected');
  assert(!connections[0].text.includes('[DONE]'));
  demos.open(page.id);
  return connections[0].end;
}

/** The first server asks and is killed. What the second one gets approved runs there, and the first one knows it when it is back. */
async function decideElsewhere(demos, url) {
  const page = new Page(demos.url(0));
  await (await page.ask('Please delete a file')).untilDone();
  demos.processes[0].kill('SIGKILL');
  await demos.processes[0].ended;
  const get = async (url, path) => (await fetch(`${url}${path}`)).json();
  const { approvals } = await get(demos.url(1), `/api/approvals?chat=${page.id}`);
  assert.equal(approvals.length, 1);
  const decisions = [{ approvalId: approvals[0].approvalId, approved: true }];
  await until('the decision is taken', async () => {
    const body = JSON.stringify({ decisions });
    const response = await fetch(`${url}/api/approvals`, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
    await response.text();
    return response.ok;
  });
  const hasDeleted = async url => {
    const { messages } = await get(url, `/api/chat/${page.id}`);
    return messages.at(-1).parts.some(part => part.type === 'tool-delete_file' && part.state === 'output-available');
  };
  await until('the file is deleted', () => hasDeleted(demos.url(1)));
  await demos.start(0);
  assert(await hasDeleted(demos.url(0)));
}

async function check(name) {
  const { isAtOnce, end } = PROXIES[name];
  const demos = name === 'compose' ? new Containers() : new Demos();
  await demos.begin();
  const url = await startProxy(name, demos.ports);
  const say = what => console.log(`${name}: ${what}`);
  await deltaByDelta(demos, url);
  say('the first byte, each delta and a reload arrive while the answer is written');
  await stop(demos, url);
  say('Stop ends the answer');
  await leave(name);
  say('a client that leaves is noticed');
  await decideElsewhere(demos, url);
  say('what a server asked that was killed is approved at the other one');
  await shutDown(demos, url, isAtOnce);
  say(`a server that stops gets no more messages ${isAtOnce ? 'at once' : 'after a check'}`);
  const ended = await lose(demos, url);
  say(`a server that is killed: the package goes on at the other one after a ${ended} end`);
  assert(end.includes(ended));
}

const [DEMO, ...names] = process.argv.slice(2);
if (!existsSync(DEMO ?? '')) throw new Error('which demo? node proxies.mjs DEMO [nginx] [caddy] [haproxy] [compose]');
let [ran, failed] = [0, 0];
for (const name of names.length ? names : Object.keys(PROXIES)) {
  const missing = (PROXIES[name].programs ?? [name]).find(program => spawnSync(program, ['--version']).error);
  if (missing) {
    console.log(`NOT RUN: ${name} needs apt-get install ${missing}`);
    failed += process.env.CI === 'true' ? 1 : 0;
    continue;
  }
  ran += 1;
  try {
    await check(name);
  } catch (error) {
    failed += 1;
    console.error(`${name}:`, error);
  }
  while (ends.length) await ends.pop()();
}
console.log(`proxies: ${ran} ran, ${failed} failed`);
process.exit(failed ? 1 : 0); // connections are open
