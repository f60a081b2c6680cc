// Requires that `cargo test --workspace` compiles next to nothing again that `cargo test` has compiled. Cargo unites the
// features of the packages that it builds, and the second command builds fewer; `tests/one-build` makes up for it.
//
//   cargo test --no-run --message-format=json >README
//   cargo test --workspace --no-run --message-format=json >WORKSPACE
//   node .ci/compiled-once.mjs README WORKSPACE
//
// Prints what was compiled twice. Fails if that is `LIMIT` or more. Both commands need an empty target folder before the
// first one: where they find everything compiled, this passes.

import { readFileSync } from 'node:fs';

// `demo` and what it needs for TLS: only the workspace compiles cryptography.
const LIMIT = 20;

const artifacts = file =>
  readFileSync(file, 'utf8')
    .split('\n')
    .filter(line => line.startsWith('{'))
    .map(line => JSON.parse(line))
    .filter(({ reason }) => reason === 'compiler-artifact');
const nameOf = ({ package_id, target, profile }) =>
  `${package_id.split('#').pop()} ${target.kind[0]} ${target.name}${profile.test ? ' (test)' : ''}`;

const [readme, workspace] = process.argv.slice(2).map(artifacts);
const before = new Set(readme.map(nameOf));
const compiled = workspace.filter(({ fresh }) => !fresh).map(nameOf);
const twice = compiled.filter(name => before.has(name));
console.log(`cargo test compiled ${before.size} artifacts, cargo test --workspace ${compiled.length} more, ${twice.length} of them again`);
if (twice.length > 0) console.log(twice.join('\n'));
if (before.size === 0) throw new Error(`cargo test has compiled nothing`);
if (twice.length >= LIMIT) {
  console.error(`${LIMIT} or more: add their features to tests/one-build/Cargo.toml, or to the test support.`);
  process.exit(1);
}
