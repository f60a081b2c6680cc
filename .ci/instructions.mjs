// Counts the instructions that an event costs on each path of `benches/instructions`, and fails if one needs more than
// `benches/instructions/recorded.json` allows. Needs valgrind.
//   node .ci/instructions.mjs            compares
//   node .ci/instructions.mjs --record   writes what was counted
// Instructions depend on the compiler: 5 % more are allowed with the recorded version of it, and 25 % with another one.

import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

const FILE = 'benches/instructions/recorded.json';
const [FEW, MANY] = [1_000, 3_000];
const recorded = JSON.parse(readFileSync(FILE, 'utf8'));

const run = (program, ...arguments_) => execFileSync(program, arguments_, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
run('cargo', 'build', '--release', '-p', 'instructions');

function count(path, events) {
  const program = `${process.env.CARGO_TARGET_DIR ?? 'target'}/release/instructions`;
  const callgrind = ['--tool=callgrind', '--callgrind-out-file=/dev/null', program, path, `${events}`];
  const { error, status, stderr } = spawnSync('valgrind', callgrind, { encoding: 'utf8' });
  const [, instructions] = /Collected : (\d+)/.exec(stderr) ?? [];
  if (status !== 0 || !instructions) throw error ?? new Error(stderr);
  return Number(instructions);
}

const rustc = run('rustc', '--version').trim();
const margin = rustc === recorded.rustc ? 0.05 : 0.25;
const counted = {};
const problems = [];
for (const [path, before] of Object.entries(recorded.instructions)) {
  const now = Math.round((count(path, MANY) - count(path, FEW)) / (MANY - FEW));
  counted[path] = now;
  console.log(`${path}: ${now} instructions an event, ${before} recorded`);
  if (now > before * (1 + margin)) problems.push(path);
}
if (process.argv.includes('--record')) {
  writeFileSync(FILE, `${JSON.stringify({ rustc, instructions: counted }, undefined, 2)}\n`);
} else if (problems.length > 0) {
  const allowed = `more than ${100 * margin} % above what ${recorded.rustc} needed`;
  console.error(`${problems.join(', ')}: ${allowed}. If it is worth it, record it: node .ci/instructions.mjs --record`);
  process.exit(1);
}
