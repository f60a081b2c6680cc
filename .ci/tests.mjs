// Builds every test target of the workspace, runs the test binaries side by side, and repeats the output of what failed
// at the end. A binary starts when it and the programs of its package are linked, while others still compile. The tests
// of the default members that look for Node, a browser, Redis or Postgres run once more without them.
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
const FIRST = ['demo: test demo', 'stream-chat: test client', 'test chat_memory', 'test crash_recovery', 'stream-chat: lib'];

const folder = 'target/ci';
const [log, built] = [`${folder}/tests.log`, `${folder}/workspace.jsonl`];
const names = process.argv.slice(2);
const lanes = Number(process.env.TEST_LANES ?? 3);
const started = Date.now();
const secondsSince = start => Math.round((Date.now() - start) / 1000);
mkdirSync(folder, { recursive: true });
for (const file of [log, built]) writeFileSync(file, '');

const jobs = [];
const results = [];
let running = 0;
let isComplete = false;
let wake = () => {};

function add(...more) {
  jobs.push(...more.filter(({ title }) => names.length === 0 || names.some(name => title.includes(name))));
  wake();
}

/** Runs a program, and returns what it printed and whether it was successful. */
async function run(program, arguments_, options) {
  const file = `${folder}/output-${process.pid}-${Math.random()}`;
  const output = openSync(file, 'w');
  const child = spawn(program, arguments_, { stdio: ['ignore', output, output], ...options });
  const end = await new Promise(resolve => {
    child.on('error', error => resolve(`${error}`));
    child.on('close', (code, signal) => resolve(signal ?? code));
  });
  closeSync(output);
  const printed = readFileSync(file, 'utf8');
  rmSync(file);
  return { isOk: end === 0, output: end === 0 ? printed : `${printed}\nended with ${end}\n` };
}

async function runJob({ title, heading, program, arguments_ = [], directory = '.', environment = {} }) {
  running += 1;
  const start = Date.now();
  const { isOk, output } = await run(program, arguments_, { cwd: directory, env: { ...process.env, ...environment } });
  appendFileSync(log, `${heading}\n${output}\n`);
  results.push({ title, isOk, output });
  console.log(`${isOk ? 'ok    ' : 'FAILED'} ${title}: ${secondsSince(start)} s, ended at ${secondsSince(started)} s`);
  running -= 1;
  wake();
}

function nextJob() {
  const rank = ({ title }) => FIRST.findIndex(name => title.includes(name)) >>> 0;
  const best = jobs.reduce((best, job, at) => (rank(job) < rank(jobs[best]) ? at : best), 0);
  return jobs.splice(best, 1)[0];
}

/** Builds everything, and adds each binary when Cargo has linked what it needs. Returns the binaries. */
async function build(packages) {
  const cargo = spawn('cargo', ['test', '--workspace', '--no-run', '--message-format=json-render-diagnostics'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise(resolve => cargo.on('close', resolve));
  const binaries = [];
  for await (const line of createInterface({ input: cargo.stdout })) {
    if (!line.startsWith('{')) continue;
    appendFileSync(built, `${line}\n`);
    const { package_id: id, target, executable, profile } = JSON.parse(line);
    if (!executable) continue;
    const each = packages.get(id);
    if (profile.test) {
      const title = `${each.name}: ${target.kind[0]} ${target.name}`;
      const environment = { CARGO_MANIFEST_DIR: each.directory };
      const job = { title, heading: `     Running ${title} (${executable})`, program: executable, directory: each.directory, environment };
      each.waiting.push(job);
      binaries.push({ ...job, source: target.src_path, isDefault: each.isDefault });
    }
    each.programs.delete(`${target.kind[0]} ${target.name}`);
    if (each.programs.size === 0) add(...each.waiting.splice(0));
  }
  if ((await ended) !== 0) throw new Error('cargo test --workspace --no-run failed');
  for (const { waiting } of packages.values()) add(...waiting);
  console.log(`built at ${secondsSince(started)} s`);
  return binaries;
}

/** The packages of the workspace, with the programs that their tests may start and that are not linked yet. */
async function packagesOfWorkspace() {
  const { isOk, output } = await run('cargo', ['metadata', '--quiet', '--format-version', '1', '--no-deps']);
  if (!isOk) throw new Error(output);
  const { packages, workspace_default_members: defaults } = JSON.parse(output);
  const entries = packages.map(({ id, name, manifest_path: manifest, targets }) => {
    const programs = targets.filter(({ kind }) => kind[0] === 'bin' || kind[0] === 'example');
    const titles = programs.map(({ kind, name }) => `${kind[0]} ${name}`);
    return [id, { name, directory: path.dirname(manifest), isDefault: defaults.includes(id), programs: new Set(titles), waiting: [] }];
  });
  return new Map(entries);
}

/** The runs of the default members' tests that look for Node, a browser, Redis or Postgres, without these. */
function withoutComponents({ title, program, directory, source, isDefault, environment }) {
  const root = path.dirname(source);
  const looks = /external_processes|adapter_server|chat_test_support::browser/;
  const modules = readdirSync(root, { recursive: true })
    .filter(file => file.endsWith('.rs') && looks.test(readFileSync(path.join(root, file), 'utf8')))
    .map(file => file.replace(/(\/mod)?\.rs$/, '::').replaceAll('/', '::'));
  if (!isDefault || !title.includes(': test ') || modules.length === 0) return [];
  const arguments_ = [program, ...modules];
  return [{ title: `${title}, without components`, heading: `     Without components ${title}`, program: path.resolve('.ci/only-rust'), arguments_, directory, environment }];
}

async function buildAll() {
  const binaries = await build(await packagesOfWorkspace());
  add({ title: 'documentation', heading: '', program: 'cargo', arguments_: ['test', '--workspace', '--doc'] });
  add(...binaries.flatMap(withoutComponents));
}

void buildAll()
  .catch(error => results.push({ title: 'build', isOk: false, output: `${error.stack}\n` }))
  .then(() => {
    isComplete = true;
    wake();
  });
while (!isComplete || jobs.length > 0 || running > 0) {
  while (running < lanes && jobs.length > 0) void runJob(nextJob());
  await new Promise(resolve => (wake = resolve));
}

const failed = results.filter(({ isOk }) => !isOk);
for (const { title, output } of failed) console.log(`\n---- ${title}\n${output}`);
const sum = pattern => results.flatMap(({ output }) => [...output.matchAll(pattern)]).reduce((sum, [, number]) => sum + Number(number), 0);
console.log(`\n${results.length} runs in ${secondsSince(started)} s; failed: ${failed.map(({ title }) => title).join(', ') || 'none'}`);
console.log(`${sum(/^test result: .*? (\d+) passed;/gm)} passed, ${sum(/^test result: .*? (\d+) failed;/gm)} failed`);
process.exit(failed.length > 0 ? 1 : 0);
