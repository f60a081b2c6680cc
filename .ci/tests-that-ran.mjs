// Compares the test targets of the workspace with what a test run printed, and fails on a difference.
//
//   node .ci/tests.mjs; node .ci/tests-that-ran.mjs
//
// Fails if
// - a test target of `cargo metadata` was not built or did not run, or a library has no documentation
//   tests;
// - a binary holds no test, filtered some out, or ignores one that is not listed here;
// - a target that is not tested holds a test, or a file of tests is compiled on a condition;
// - a Rust file of the workspace is part of no target;
// - a feature of a package is off: what it guards would be neither compiled nor tested.
//
// Prints the number of tests of each target.

import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

const cargo = arguments_ => execFileSync('cargo', arguments_, { encoding: 'utf8', maxBuffer: 1 << 30 });
const problems = [];

// These have a `main` of their own, which fails by its exit code.
const WITHOUT_HARNESS = ['crash_recovery'];
// These need recordings of real providers, which are not in the repository.
const IGNORED = ['recordings::every_recording_arrives_complete'];
// Compiled by `.ci/applications`, by `cargo fuzz`, and by `cargo clippy --all-targets`: they hold no tests. `just servers`
// tests the last one.
const ELSEWHERE = ['tests/applications/', 'fuzz/fuzz_targets/', 'benches/', 'crates/chat/benches/', 'demo/benches/', 'demo/openai/', 'examples/traced/', 'examples/servers/'];

const { packages, workspace_root: root } = JSON.parse(
  cargo(['metadata', '--format-version', '1', '--no-deps']),
);
const expected = packages.flatMap(({ id, name, targets }) =>
  targets.filter(target => target.test).map(target => ({ id, name, target })),
);
const libraries = packages.flatMap(({ targets }) => targets.filter(({ kind }) => kind[0] === 'lib'));
const documented = libraries.map(({ name }) => name.replaceAll('-', '_'));

// A target with `test = false` has no binary to run, and so no unit test.
const sources = execFileSync('git', ['ls-files', '*.rs'], { cwd: root, encoding: 'utf8' }).trim().split('\n');
for (const { name, targets } of packages) {
  for (const { kind, src_path, test } of targets) {
    if (test) continue;
    const folder = kind[0] === 'example' ? src_path : path.dirname(src_path) + path.sep;
    for (const file of sources.filter(file => path.join(root, file).startsWith(folder))) {
      if (/#\[(\w+::)?test\b/.test(readFileSync(path.join(root, file), 'utf8'))) {
        problems.push(`${file} has a unit test, and ${name} does not test that target`);
      }
    }
  }
}

for (const file of sources.filter(file => /(^|\/)tests\//.test(file))) {
  if (/^#!\[cfg/m.test(readFileSync(path.join(root, file), 'utf8'))) problems.push(`${file} is compiled on a condition`);
}

const everything = readFileSync('target/ci/workspace.jsonl', 'utf8')
  .split('\n')
  .filter(line => line.startsWith('{'))
  .map(line => JSON.parse(line))
  .filter(({ reason }) => reason === 'compiler-artifact');
const artifacts = everything.filter(({ executable }) => executable);

// `Running ui-message-stream: test protocol (/…/target/debug/deps/protocol-0123456789abcdef)`, then its result. What runs
// once more without components is not counted.
const ran = new Map();
const ranDocumentation = new Set();
let current;
const log = readFileSync('target/ci/tests.log', 'utf8').replace(/\u001b\[[0-9;]*m/g, '');
for (const line of log.split('\n')) {
  if (/^\s*Without components /.test(line)) current = undefined;
  const running = line.match(/^\s*Running .*\((.*)\)$/);
  const documentation = line.match(/^\s*Doc-tests (.*)$/);
  const result = line.match(/^test result: ok\. (\d+) passed; 0 failed; (\d+) ignored; \d+ measured; (\d+) filtered/);
  const ignored = line.match(/^test (\S+)(?: - should panic)? \.\.\. ignored/);
  if (running) {
    current = path.resolve(root, running[1]);
    ran.set(current, undefined);
  } else if (documentation) {
    current = `Doc-tests ${documentation[1]}`;
    ranDocumentation.add(documentation[1]);
  } else if (result && current) {
    ran.set(current, { passed: Number(result[1]), ignored: Number(result[2]) });
    if (result[3] !== '0') problems.push(`${current} left ${result[3]} tests out`);
  } else if (ignored && current && !current.startsWith('Doc-tests') && !IGNORED.includes(ignored[1])) {
    problems.push(`${ignored[1]} is ignored, and not listed here`);
  }
}

const featuresOf = new Map(packages.map(({ id, name, features }) => [id, { name, missing: new Set(Object.keys(features)) }]));
for (const { package_id: id, features } of everything) {
  for (const feature of features) featuresOf.get(id)?.missing.delete(feature);
}
for (const { name, missing } of featuresOf.values()) {
  for (const feature of missing) problems.push(`the feature ${feature} of ${name} is off: a dev-dependency has to turn it on`);
}

const lines = [];
let total = 0;
for (const { id, name, target } of expected) {
  const title = `${name}: ${target.kind[0]} ${target.name}`;
  const built = artifacts.find(
    ({ package_id, profile, target: { name, kind } }) =>
      package_id === id && profile.test && name === target.name && kind[0] === target.kind[0],
  );
  if (!built) {
    problems.push(`${title} was not built`);
  } else if (!ran.has(built.executable)) {
    problems.push(`${title} did not run`);
  } else {
    const result = ran.get(built.executable);
    const hasHarness = !WITHOUT_HARNESS.includes(target.name);
    if (hasHarness && !result) problems.push(`${title} did not come to its end`);
    if (hasHarness && !result?.passed) problems.push(`${title} has no test`);
    total += result?.passed ?? 0;
    const ignored = result?.ignored ? `, ${result.ignored} ignored` : '';
    lines.push(`${result ? String(result.passed).padStart(5) : '    -'} ${title}${ignored}`);
  }
}
for (const name of documented) {
  const result = ran.get(`Doc-tests ${name}`);
  if (!ranDocumentation.has(name)) problems.push(`the documentation tests of ${name} did not run`);
  total += result?.passed ?? 0;
  lines.push(`${String(result?.passed ?? 0).padStart(5)} documentation of ${name}`);
}

function listsOf(filename) {
  const list = filename.replace(/(^|\/)lib([^/]*)\.(rlib|rmeta)$/, '$1$2').concat('.d');
  if (existsSync(list)) return [list];
  // A program is copied out of this folder, and its list stays there.
  const folder = path.join(path.dirname(filename), 'deps');
  const stem = `${path.basename(filename).replaceAll('-', '_')}-`;
  const inFolder = existsSync(folder) ? readdirSync(folder) : [];
  return inFolder.filter(name => name.startsWith(stem) && name.endsWith('.d')).map(name => path.join(folder, name));
}

// A file that no `mod` names is compiled by nothing, and its tests are forgotten. Beside each artifact
// stands a list of the files that it was made of.
const compiled = new Set();
const members = new Set(packages.map(({ id }) => id));
for (const { filenames } of everything.filter(({ package_id }) => members.has(package_id))) {
  for (const filename of filenames) {
    for (const line of listsOf(filename).flatMap(list => readFileSync(list, 'utf8').split('\n'))) {
      // `file.rs:` on a line of its own, or `program: file.rs file.rs`.
      const [before, after] = line.split(/: |:$/);
      const files = after ? after.split(/(?<!\\) /) : [before];
      for (const file of files) compiled.add(path.resolve(root, file.replaceAll('\\ ', ' ')));
    }
  }
}
for (const file of sources) {
  if (ELSEWHERE.some(folder => file.startsWith(folder))) continue;
  if (!compiled.has(path.join(root, file))) problems.push(`${file} is part of no target`);
}

console.log(lines.join('\n'));
console.log(`${expected.length} test targets, ${documented.length} sets of documentation tests, ${total} tests`);
if (problems.length > 0) {
  console.error(problems.map(problem => `LEFT OUT: ${problem}`).join('\n'));
  process.exit(1);
}
