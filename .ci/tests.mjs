// Builds every test target of the workspace, runs the test binaries side by side, and repeats the output of what failed
// at the end. The tests of the default members that look for Node, a browser, Redis or Postgres run once more without
// them.
//
//   node .ci/tests.mjs [NAME…]
//
// With NAMEs only the targets whose title contains one of them run: `demo: test`, `documentation`, `without`.
// `TEST_LANES` is how many binaries run at a time (3). Writes what Cargo built to `target/ci/workspace.jsonl` and what
// was printed to `target/ci/tests.log`, for `.ci/compiled-once.mjs` and `.ci/tests-that-ran.mjs`.

import { spawn } from 'node:child_process';
import { appendFileSync, closeSync, mkdirSync, openSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';

// What takes the longest starts first, or it would run alone at the end.
const FIRST = ['demo: test demo', 'stream-chat: test client', 'test chat_memory', 'test crash_recovery', 'lib ui_message_stream_chat'];

// These run once more without components.
const ALSO_WITHOUT = [
  'demo: test demo',
  ...['approval', 'client', 'http'].map(name => `ui-message-stream: test ${name}`),
  'ui-message-stream-agent: test agent',
  ...['attacks', 'chat', 'client'].map(name => `ui-message-stream-chat: test ${name}`),
];

// A binary that has not ended by then hangs. The longest takes 12 minutes on two busy cores.
const LIMIT_MINUTES = 40;

const folder = 'target/ci';
const [log, built] = [`${folder}/tests.log`, `${folder}/workspace.jsonl`];
const names = process.argv.slice(2);
const lanes = Number(process.env.TEST_LANES ?? 3);
const started = Date.now();
const secondsSince = start => Math.round((Date.now() - start) / 1000);
mkdirSync(folder, { recursive: true });
for (const file of [log, built]) writeFileSync(file, '');

const results = [];

/** End the programs that run. */
const kills = new Set();
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => {
    kills.forEach(kill => kill());
    process.exit(1);
  });
}

function isWanted({ title }) {
  return names.length === 0 || names.some(name => title.includes(name));
}

function byRank(one, other) {
  const rank = ({ title }) => FIRST.findIndex(name => title.endsWith(name)) >>> 0;
  return rank(one) - rank(other);
}

/** Runs a program, and returns what it printed and whether it was successful. */
async function run(program, arguments_, options) {
  const file = `${folder}/output-${process.pid}-${Math.random()}`;
  const output = openSync(file, 'w');
  // With what it has started, in a group of processes.
  const child = spawn(program, arguments_, { stdio: ['ignore', output, output], detached: true, ...options });
  const kill = () => child.pid && process.kill(-child.pid, 'SIGKILL');
  const limit = setTimeout(kill, LIMIT_MINUTES * 60_000);
  kills.add(kill);
  const end = await new Promise(resolve => {
    child.on('error', error => resolve(`${error}`));
    child.on('close', (code, signal) => resolve(signal ?? code));
  });
  clearTimeout(limit);
  kills.delete(kill);
  closeSync(output);
  const printed = readFileSync(file, 'utf8');
  rmSync(file);
  return { isOk: end === 0, output: end === 0 ? printed : `${printed}\nended with ${end}\n` };
}

async function runJob({ title, heading, program, arguments_ = [], directory = '.', environment = {} }) {
  const start = Date.now();
  const { isOk: hasSucceeded, output } = await run(program, arguments_, { cwd: directory, env: { ...process.env, ...environment } });
  // A filter may select nothing. Of the documentation some packages have no tests.
  const isOk = hasSucceeded && (!heading || !/^test result: ok\. 0 passed/m.test(output));
  appendFileSync(log, `${heading}\n${output}\n`);
  results.push({ title, isOk, output });
  console.log(`${isOk ? 'ok    ' : 'FAILED'} ${title}: ${secondsSince(start)} s, ended at ${secondsSince(started)} s`);
}

/** Builds everything, and returns a job for each test binary. */
async function build() {
  const metadata = await run('cargo', ['metadata', '--quiet', '--format-version', '1', '--no-deps']);
  if (!metadata.isOk) throw new Error(metadata.output);
  const { packages, workspace_default_members: defaults } = JSON.parse(metadata.output);
  const nameOf = new Map(packages.map(({ id, name }) => [id, name]));

  const cargo = spawn('cargo', ['test', '--workspace', '--no-run', '--message-format=json-render-diagnostics'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise(resolve => cargo.on('close', resolve));
  const binaries = [];
  for await (const line of createInterface({ input: cargo.stdout })) {
    if (!line.startsWith('{')) continue;
    appendFileSync(built, `${line}\n`);
    const { package_id: id, target, executable, profile, manifest_path: manifest } = JSON.parse(line);
    if (!executable || !profile.test) continue;
    const title = `${nameOf.get(id)}: ${target.kind[0]} ${target.name}`;
    const directory = path.dirname(manifest);
    const heading = `     Running ${title} (${executable})`;
    const job = { title, heading, program: executable, directory, environment: { CARGO_MANIFEST_DIR: directory } };
    binaries.push({ ...job, source: target.src_path, isDefault: defaults.includes(id) });
  }
  if ((await ended) !== 0) throw new Error('cargo test --workspace --no-run failed');
  console.log(`built at ${secondsSince(started)} s`);
  return binaries;
}

/** The runs of the default members' tests that look for Node, a browser, Redis or Postgres, without these: whole folders. */
function withoutComponents({ title, program, directory, source, isDefault, environment }) {
  const root = path.dirname(source);
  const looks = /external_processes|adapter_server|chat_test_support::browser|Command::new\("node"\)/;
  const modules = readdirSync(root, { recursive: true })
    .filter(file => file.endsWith('.rs') && looks.test(readFileSync(path.join(root, file), 'utf8')))
    .map(file => (file.includes('/') ? path.dirname(file) : path.basename(file, '.rs')).replaceAll('/', '::') + '::');
  if (!isDefault || !title.includes(': test ') || modules.length === 0) return [];
  const arguments_ = [program, ...new Set(modules)];
  return [{ title: `${title}, without components`, heading: `     Without components ${title}`, program: path.resolve('.ci/only-rust'), arguments_, directory, environment }];
}

try {
  const binaries = await build();
  const documentation = { title: 'documentation', heading: '', program: 'cargo', arguments_: ['test', '--workspace', '--doc'] };
  const without = binaries.flatMap(withoutComponents);
  for (const target of ALSO_WITHOUT) {
    if (!without.some(({ title }) => title.startsWith(target))) throw new Error(`nothing of ${target} looks for a component any more`);
  }
  const jobs = [...binaries, documentation, ...without].filter(isWanted).sort(byRank);
  if (jobs.length === 0) throw new Error(`no target is called ${names.join(' or ')}`);
  const lane = async () => {
    for (let job = jobs.shift(); job; job = jobs.shift()) await runJob(job);
  };
  await Promise.all(Array.from({ length: lanes }, lane));
} catch (error) {
  results.push({ title: 'build', isOk: false, output: `${error.message}\n` });
}

const failed = results.filter(({ isOk }) => !isOk);
for (const { title, output } of failed) console.log(`\n---- ${title}\n${output}`);
const sum = pattern => results.flatMap(({ output }) => [...output.matchAll(pattern)]).reduce((sum, [, number]) => sum + Number(number), 0);
console.log(`\n${results.length} runs in ${secondsSince(started)} s; failed: ${failed.map(({ title }) => title).join(', ') || 'none'}`);
console.log(`${sum(/^test result: .*? (\d+) passed;/gm)} passed, ${sum(/^test result: .*? (\d+) failed;/gm)} failed`);
process.exit(failed.length > 0 ? 1 : 0);
