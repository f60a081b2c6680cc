// Compares the test targets of the workspace with what a test run printed, and fails on a difference.
//
//   cargo test --workspace --all-features 2>&1 | tee LOG; node .ci/tests-that-ran.mjs LOG
//
// Fails if a test target of `cargo metadata` was not built or did not run, if a binary of integration
// tests holds no test, or if a Rust file of the workspace is part of no target. Prints the number of
// tests of each target.

import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

const cargo = arguments_ => execFileSync('cargo', arguments_, { encoding: 'utf8', maxBuffer: 1 << 30 });
const problems = [];

const { packages, workspace_root: root } = JSON.parse(
  cargo(['metadata', '--format-version', '1', '--no-deps']),
);
const expected = packages.flatMap(({ id, name, targets }) =>
  targets.filter(target => target.test).map(target => ({ id, name, target })),
);
const documented = packages.flatMap(({ targets }) =>
  targets.filter(target => target.doctest).map(target => target.name.replaceAll('-', '_')),
);

// A target with `test = false` has no binary to run, and so no unit test.
const sources = execFileSync('git', ['ls-files', '*.rs'], { cwd: root, encoding: 'utf8' }).trim().split('\n');
for (const { name, targets } of packages) {
  for (const { kind, src_path, test } of targets) {
    if (test || !['lib', 'bin'].includes(kind[0])) continue;
    const folder = path.dirname(src_path) + path.sep;
    for (const file of sources.filter(file => path.join(root, file).startsWith(folder))) {
      if (/#\[(tokio::)?test\b/.test(readFileSync(path.join(root, file), 'utf8'))) {
        problems.push(`${file} has a unit test, and ${name} says \`test = false\``);
      }
    }
  }
}

// Nothing is compiled here: the run has done it.
const artifacts = cargo(['test', '--workspace', '--all-features', '--no-run', '--message-format=json'])
  .split('\n')
  .filter(line => line.startsWith('{'))
  .map(line => JSON.parse(line))
  .filter(message => message.reason === 'compiler-artifact' && message.executable);

// `Running tests/protocol/main.rs (target/debug/deps/protocol-0123456789abcdef)`, then its result.
const ran = new Map();
const ranDocumentation = new Set();
let current;
for (const line of readFileSync(process.argv[2], 'utf8').split('\n')) {
  const running = line.match(/^\s*Running .*\((.*)\)$/);
  const documentation = line.match(/^\s*Doc-tests (.*)$/);
  const result = line.match(/^test result: ok\. (\d+) passed; 0 failed; (\d+) ignored/);
  if (running) {
    current = path.resolve(root, running[1]);
    ran.set(current, undefined);
  } else if (documentation) {
    current = `Doc-tests ${documentation[1]}`;
    ranDocumentation.add(documentation[1]);
  } else if (result && current) {
    ran.set(current, { passed: Number(result[1]), ignored: Number(result[2]) });
  }
}

const lines = [];
let total = 0;
for (const { id, name, target } of expected) {
  const title = `${name}: ${target.kind[0]} ${target.name}`;
  const built = artifacts.find(
    ({ package_id, profile, target: { name, kind } }) =>
      package_id === id && profile.test && name === target.name && kind[0] === target.kind[0],
  ) ?? artifacts.find(
    // A target with a `main` of its own is built without the test harness.
    ({ package_id, target: { name, kind } }) =>
      package_id === id && kind[0] === 'test' && name === target.name && kind[0] === target.kind[0],
  );
  if (!built) {
    problems.push(`${title} was not built`);
  } else if (!ran.has(built.executable)) {
    problems.push(`${title} did not run`);
  } else {
    const result = ran.get(built.executable);
    const hasHarness = built.profile.test;
    if (target.kind[0] === 'test' && hasHarness && !result?.passed) problems.push(`${title} has no test`);
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

// A file that no `mod` names is compiled by nothing, and its tests are forgotten.
const compiled = new Set();
for (const { executable } of artifacts) {
  const folder = path.dirname(executable);
  const dependencies = [`${executable}.d`, path.join(folder, `${path.basename(executable)}.d`)].find(existsSync);
  if (!dependencies) continue;
  for (const line of readFileSync(dependencies, 'utf8').split('\n')) {
    const file = line.match(/^(\S.*\.rs):$/);
    if (file) compiled.add(path.resolve(root, file[1].replaceAll('\\ ', ' ')));
  }
}
// Compiled by `cargo clippy --all-targets`, by `cargo fuzz`, and by `.ci/applications`.
const elsewhere = ['benches/', 'fuzz/fuzz_targets/', 'tests/applications/'];
for (const file of sources) {
  if (elsewhere.some(folder => file.startsWith(folder))) continue;
  if (!compiled.has(path.join(root, file))) problems.push(`${file} is part of no target`);
}

console.log(lines.join('\n'));
console.log(`${expected.length} test targets, ${documented.length} sets of documentation tests, ${total} tests`);
if (problems.length > 0) {
  console.error(problems.map(problem => `LEFT OUT: ${problem}`).join('\n'));
  process.exit(1);
}
