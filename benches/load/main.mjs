// What one user can do to another: starts a server on each store, lets one user load it, and measures the
// requests of another user, the memory and the log meanwhile. Needs Node 20, Linux, and for its stores
// redis-server and Postgres. Ends what it starts.
//   cargo build --release -p chat-openai && node benches/load/main.mjs --server target/release/chat-openai
// --before PATH measures a second program in turn. --stores, --scenarios and --sizes select with commas in
// between; --runs N (1) prints the medians of N; --bound SECONDS (60) and --memory MB (6000) end a load.
import { execSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { newUser } from './http.mjs';
import { median, scenarios } from './scenarios.mjs';
import { firstLine, start, startServer } from './servers.mjs';

const text = name => ({ [name]: { type: 'string' } });
const names = ['server', 'before', 'stores', 'scenarios', 'sizes', 'runs', 'bound', 'memory'];
const { values: flags } = parseArgs({ options: Object.assign({}, ...names.map(text)) });
if (!flags.server) throw new Error('--server is missing: the path of a release build of `chat-openai`');
const list = (name, all) => flags[name]?.split(',') ?? all;
const [runs, bound, maxMemory] = [Number(flags.runs ?? 1), Number(flags.bound ?? 60), Number(flags.memory ?? 6_000)];
const programs = [...(flags.before ? [['before', flags.before]] : []), ['server', flags.server]];
const script = name => fileURLToPath(new URL(name, import.meta.url));

const provider = Number(await firstLine(start(process.execPath, [script('provider.mjs')])));

/** Runs one load on a new server, and returns what was measured. */
async function measure(program, store, { load, isAlone }, size) {
  const server = await startServer(program, store, provider);
  const { port, memory } = server;
  const other = isAlone ? undefined : start(process.execPath, [script('other_user.mjs'), `${port}`]);
  const lines = other && createInterface({ input: other.stdout })[Symbol.asyncIterator]();
  const phase = async () => {
    other?.stdin.write('\n');
    return other ? JSON.parse((await lines.next()).value) : { turns: [], ready: [], failed: 0 };
  };
  try {
    const cookie = await newUser(port);
    if (other) {
      await sleep(1_000);
      await phase();
      await sleep(2_000);
    }
    const idle = await phase();
    const idleMemory = memory('VmRSS');
    const logged = { ...server.log };
    const [stop, begin] = [new AbortController(), performance.now()];
    const watch = setInterval(() => memory('VmRSS') > maxMemory && stop.abort(), 100);
    const timer = setTimeout(() => stop.abort(), bound * 1_000);
    const ended = new Promise(resolve => stop.signal.addEventListener('abort', () => sleep(2_000).then(resolve)));
    const loading = load({ port, cookie, size, signal: stop.signal }).catch(error => error.message);
    const note = await Promise.race([loading, ended]);
    clearInterval(watch);
    clearTimeout(timer);
    const seconds = (performance.now() - begin) / 1_000;
    const loaded = await phase();
    const peak = memory('VmHWM');
    if (other) await sleep(10_000);
    const requests = loaded.turns.length + loaded.ready.length;
    return {
      note: note ?? `more than ${bound} s or ${maxMemory} MB`,
      failed: loaded.failed,
      bound: loaded.bound || stop.signal.aborted,
      worst: Math.max(...loaded.turns),
      median: median(loaded.turns),
      idle: median(idle.turns),
      ready: Math.max(...loaded.ready),
      idleMemory, peak, after: memory('VmRSS'), seconds,
      logBytes: (server.log.bytes - logged.bytes) / Math.max(1, requests),
      logLines: (server.log.lines - logged.lines) / Math.max(1, requests),
      longest: server.log.longest,
    };
  } finally {
    other?.kill('SIGKILL');
    await server.stop();
  }
}

const files = execSync('ulimit -n', { shell: 'bash' }).toString().trim();
const busy = readFileSync('/proc/loadavg', 'utf8').slice(0, 14);
console.log(`ulimit -n ${files}; median of ${runs}; waits in ms, RSS in MB; load average ${busy}`);
for (const [name, { title }] of Object.entries(scenarios)) console.log(`${name}: ${title}`);
const waits = ['worst', 'median', 'idle', 'worst/idle'];
const rest = ['/ready', 'failed', 'load s', 'log B/req', 'log lines/req', 'longest line', 'load'];
const columns = ['scenario', 'store', 'program', 'N', ...waits, 'RSS idle', 'peak', 'after 10 s', ...rest];
console.log(`| ${columns.join(' | ')} |\n|${columns.map(() => '---').join('|')}|`);
for (const name of list('scenarios', Object.keys(scenarios))) {
  const scenario = scenarios[name];
  for (const store of list('stores', ['memory', 'sqlite', 'redis', 'postgres'])) {
    for (const size of list('sizes', scenario.sizes).map(Number)) {
      const all = Object.fromEntries(programs.map(([label]) => [label, []]));
      for (let run = 0; run < runs; run++) {
        for (const [label, program] of programs) {
          all[label].push(await measure(program, store, scenario, size).catch(error => ({ note: error.message })));
        }
      }
      for (const [label, measured] of Object.entries(all)) {
        const of = (field, digits = 0) => {
          const value = median(measured.map(it => it[field] ?? NaN));
          return Number.isFinite(value) ? value.toFixed(digits) : '–';
        };
        const atLeast = measured.some(it => it.bound) ? '> ' : '';
        const ratio = median(measured.map(it => it.worst / it.idle));
        const { note } = measured.at(-1);
        const shownRatio = Number.isFinite(ratio) ? ratio.toFixed(0) : '–';
        const waits = [atLeast + of('worst'), of('median', 1), of('idle', 1), shownRatio];
        const memory = ['idleMemory', 'peak', 'after'].map(field => of(field));
        const log = [of('logBytes'), of('logLines', 1), of('longest')];
        const others = [of('ready'), of('failed'), of('seconds', 1), ...log, note];
        const row = [name, store, label, size, ...waits, ...memory, ...others];
        console.log(`| ${row.join(' | ')} |`);
      }
    }
  }
}
process.exit();
