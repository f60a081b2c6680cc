// Reports which Rust versions really compiled the packages, and fails where a `rust-version` cannot be
// true: one that is lower than that of a dependency, or one that no toolchain here has compiled and
// that CONTRIBUTING.md does not call unverified.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

const run = (program, arguments_) => execFileSync(program, arguments_, { encoding: 'utf8', maxBuffer: 1 << 30 });
const minor = version => (version ? Number(version.split('.')[1]) : 0);
const problems = [];

const { packages, resolve, workspace_members: members } = JSON.parse(
  run('cargo', ['metadata', '--format-version', '1', '--all-features']),
);
const packageOf = new Map(packages.map(each => [each.id, each]));
const dependenciesOf = new Map(
  resolve.nodes.map(({ id, deps }) => [
    id,
    deps.filter(({ dep_kinds }) => dep_kinds.some(({ kind }) => kind !== 'dev')).map(({ pkg }) => pkg),
  ]),
);

const here = run('rustc', ['--version']).split(' ')[1];
let toolchains = '';
try {
  toolchains = run('rustup', ['toolchain', 'list']);
} catch {
  // Without rustup there is one toolchain.
}
const contributing = readFileSync('CONTRIBUTING.md', 'utf8');
// A newer toolchain than the one that is declared proves nothing about the declared one.
const compiled = new Set([minor(here)]);
const declared = new Map();
for (const id of members) {
  const { name, rust_version: version, publish } = packageOf.get(id);
  if (publish?.length === 0) continue;
  if (!version) problems.push(`${name} declares no rust-version`);
  declared.set(version, [...(declared.get(version) ?? []), name]);
  const seen = new Set();
  const open = [id];
  while (open.length > 0) {
    const at = open.pop();
    if (seen.has(at)) continue;
    seen.add(at);
    open.push(...dependenciesOf.get(at));
    const dependency = packageOf.get(at);
    if (minor(dependency.rust_version) > minor(version)) {
      problems.push(`${name} declares ${version}, ${dependency.name} asks for ${dependency.rust_version}`);
    }
  }
}

console.log(`everything is compiled with rustc ${here}`);
for (const [version, names] of declared) {
  if (!compiled.has(minor(version)) && new RegExp(`^${version.replace('.', '\\.')}[.-]`, 'm').test(toolchains)) {
    run('cargo', [`+${version}`, 'check', '--all-features', ...names.flatMap(name => ['-p', name])]);
    compiled.add(minor(version));
  }
  const isVerified = compiled.has(minor(version));
  console.log(`${version} ${isVerified ? 'compiled' : 'UNVERIFIED'}: ${names.join(', ')}`);
  const isCalledUnverified = new RegExp(`\`${version}\`[^.]*unverified`).test(contributing);
  if (isVerified && isCalledUnverified) {
    problems.push(`${version} compiles, and CONTRIBUTING.md calls it unverified`);
  }
  if (!isVerified && !isCalledUnverified) {
    problems.push(`nothing compiled with ${version}, and CONTRIBUTING.md does not call it unverified`);
  }
}
if (problems.length > 0) {
  console.error(problems.join('\n'));
  process.exit(1);
}
