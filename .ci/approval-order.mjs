// Records in which order the functions begin that DESIGN.md names in "The way of one approval": in a copy of the tree
// each of them prints its name first, and a test of chats approves a call.
//   node .ci/approval-order.mjs            compares with `fixtures/approval-order.txt`
//   node .ci/approval-order.mjs --record   writes that file, with which the test `layering` compares DESIGN.md

import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const FILE = 'fixtures/approval-order.txt';
const TEST = 'limits::stored::an_approval_in_a_full_chat_can_still_be_given';
// Adds the result of the call to the chat.
const RESULT = 'crates/chat/src/log/state/mod.rs add_result';

const design = readFileSync('DESIGN.md', 'utf8');
const [, chapter] = /\n### The way of one approval\n(.*?)\n## /s.exec(design);
const row = /^\| `([^`]+\.rs)` \| `(\w+)` \|/;
const tables = [];
for (const line of chapter.split('\n')) {
  const [, file, name] = row.exec(line) ?? [];
  if (line === '| file | function | what it does |') tables.push([]);
  if (file) tables.at(-1).push(`${file} ${name}`);
}

const list = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], { encoding: 'utf8' });
const target = process.env.CARGO_TARGET_DIR ?? join(process.cwd(), 'target');
const tree = join(target, 'approval-order');
rmSync(tree, { recursive: true, force: true });
for (const file of list.split('\0').filter(Boolean)) {
  mkdirSync(dirname(join(tree, file)), { recursive: true });
  writeFileSync(join(tree, file), readFileSync(file));
}
for (const called of tables.flat()) {
  const [file, name] = called.split(' ');
  const path = join(tree, file);
  // The body begins at the first brace after the arguments, and a declaration without one ends before.
  const signature = new RegExp(`\\bfn ${name}[(<][^;{]*\\{`, 'g');
  writeFileSync(path, readFileSync(path, 'utf8').replace(signature, (all) => `${all} std::eprintln!("begins: ${called}");`));
}
const test = ['test', '-p', 'ui-message-stream-chat', '--test', 'chat', TEST, '--', '--exact', '--nocapture'];
const { status, stdout, stderr } = spawnSync('cargo', test, {
  cwd: tree,
  encoding: 'utf8',
  env: { ...process.env, CARGO_TARGET_DIR: target },
});
const lines = stderr.split('\n').flatMap((line) => /begins: (.+)$/.exec(line)?.[1] ?? []);
if (status !== 0 || !stdout.includes('1 passed')) throw new Error(`${TEST}: ${stdout}${stderr}`);

// The request with the approval is the last one. Functions of the second table begin for other entries, too: they count
// where they last begin before the result is in the chat, and all others where they first begin after the table before.
const [toRun, toFrame, toPage] = tables;
const request = lines.lastIndexOf(toRun[0]);
if (request < 0) throw new Error(`${toRun[0]} does not begin`);
const first = (from) => (called) => lines.indexOf(called, from);
const inOrder = (table, place) => {
  const begins = table.map((called) => [place(called), called]).sort(([a], [b]) => a - b);
  if (begins[0][0] < request) throw new Error(`${begins[0][1]} does not begin`);
  return begins;
};
const run = inOrder(toRun, first(request));
const isInChat = lines.indexOf(RESULT, run.at(-1)[0]);
const frame = inOrder(toFrame, (called) => lines.lastIndexOf(called, isInChat));
const page = inOrder(toPage, first(frame.at(-1)[0]));
const recorded = [run, frame, page].map((begins) => begins.map(([, called]) => `${called}\n`).join(''));
const text = recorded.join('\n');
if (process.argv.includes('--record')) writeFileSync(FILE, text);
else if (text !== readFileSync(FILE, 'utf8')) {
  console.error(`the functions begin in another order than ${FILE} says:\n${text}`);
  process.exit(1);
}
