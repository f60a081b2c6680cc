// The processes that a measurement starts: stores, the provider, the server. Each ends with this process,
// also if it is killed.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const folder = mkdtempSync(join(tmpdir(), 'load.'));
const children = new Set();
process.on('exit', () => {
  children.forEach(child => child.kill('SIGKILL'));
  rmSync(folder, { recursive: true, force: true });
});
['SIGINT', 'SIGTERM'].forEach(signal => process.on(signal, () => process.exit(1)));

export const start = (program, args, options) => {
  const stdio = ['pipe', 'pipe', 'inherit'];
  const child = spawn('setpriv', ['--pdeathsig', 'KILL', program, ...args], { stdio, ...options });
  children.add(child);
  child.once('exit', () => children.delete(child));
  return child;
};

export const firstLine = child =>
  new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once('line', resolve);
    child.once('exit', code => reject(new Error(`${child.spawnargs.join(' ')} ended with ${code}`)));
  });

const end = async child => {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise(resolve => child.once('exit', resolve));
  child.kill('SIGKILL');
  await ended;
};

const freePort = () =>
  new Promise(resolve => {
    const listener = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = listener.address();
      listener.close(() => resolve(port));
    });
  });

/** Returns the URL of a new, empty Redis, and what ends it. */
const redis = async () => {
  const port = await freePort();
  const args = ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--dir', folder];
  const child = start('redis-server', args, { stdio: ['ignore', 'ignore', 'inherit'] });
  const answers = () =>
    new Promise(resolve => {
      const socket = net.connect(port, '127.0.0.1', () => (socket.destroy(), resolve(true)));
      socket.on('error', () => resolve(false));
    });
  while (!(await answers())) await sleep(20);
  return [`redis://127.0.0.1:${port}/`, () => end(child)];
};

const postgresPrograms = () => {
  const versions = existsSync('/usr/lib/postgresql') ? readdirSync('/usr/lib/postgresql') : [];
  const folders = [...versions.map(version => `/usr/lib/postgresql/${version}/bin`), ...process.env.PATH.split(':')];
  return folders.find(folder => existsSync(join(folder, 'initdb')));
};

// The end of the input ends Postgres.
const POSTGRES = `set -e
folder=$(mktemp -d /tmp/load-postgres.XXXXXX)
trap 'rm -rf "$folder"' EXIT
"$1/initdb" -D "$folder/data" -U load -A trust -E UTF8 --locale=C -N >/dev/null
"$1/postgres" -D "$folder/data" -k "$folder" -c listen_addresses= -c max_connections=300 </dev/null >"$folder/log" 2>&1 &
until "$1/pg_isready" -q -h "$folder"; do kill -0 $! ; sleep 0.05; done
echo "$folder"
cat >/dev/null
kill -QUIT $!; wait || true`;

let postgresFolder;
let databases = 0;
/** Returns the URL of a new database; the first call starts Postgres. */
const postgres = async () => {
  const programs = postgresPrograms();
  if (!postgresFolder) {
    const user = process.getuid() === 0 ? ['--reuid=postgres', '--regid=postgres', '--clear-groups'] : ['--'];
    const args = [...user, 'bash', '-c', POSTGRES, 'load', programs];
    const child = spawn('setpriv', args, { cwd: '/', stdio: ['pipe', 'pipe', 'inherit'] });
    postgresFolder = await firstLine(child);
  }
  const name = `load_${++databases}`;
  execFileSync(join(programs, 'createdb'), ['-h', postgresFolder, '-U', 'load', name]);
  return [`postgresql://load@${postgresFolder.replaceAll('/', '%2F')}/${name}`, () => {}];
};

let files = 0;
/** Starts a server on a new, empty store. It counts what the server logs. */
export const startServer = async (program, storeName, provider) => {
  const [store, endStore] = await ({ redis, postgres }[storeName] ?? (() => [storeName, () => {}]))();
  const env = {
    ...process.env,
    PORT: '0',
    CHAT_STORE: store,
    OPENAI_API_KEY: 'none',
    OPENAI_BASE_URL: `http://127.0.0.1:${provider}/v1`,
    UIMS_MAX_USER_CHATS: '100000',
  };
  if (storeName !== 'memory') env.UIMS_DATA = join(folder, `${++files}.db`);
  const child = start(program, [], { env });
  const log = { bytes: 0, lines: 0, longest: 0 };
  const port = await new Promise((resolve, reject) => {
    child.once('exit', code => reject(new Error(`the server ended with ${code}`)));
    createInterface({ input: child.stdout }).on('line', line => {
      const address = /^Open http:\/\/127\.0\.0\.1:(\d+)/.exec(line);
      if (address) resolve(Number(address[1]));
      const bytes = Buffer.byteLength(line) + 1;
      log.bytes += bytes;
      log.lines += 1;
      log.longest = Math.max(log.longest, bytes);
    });
  });
  const memory = name => {
    try {
      return Number(new RegExp(`${name}:\\s+(\\d+) kB`).exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) / 1024;
    } catch {
      return NaN;
    }
  };
  return { port, log, memory, stop: async () => (await end(child), await endStore()) };
};
