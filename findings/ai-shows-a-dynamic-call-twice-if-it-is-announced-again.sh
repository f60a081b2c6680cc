#!/usr/bin/env bash
# ai 7.0.173, 2026-11-30, Node 20.
#
# Behaviour: a message holds an approved call of a dynamic tool. The answer that continues the message announces the call
# again with `tool-input-available`, under the same `toolCallId` and the same name, and then sends its output.
# The message has two parts with this id afterwards: the old one has the output, and a new one waits for an output that
# never comes. With `dynamic: true` in the chunk, which the schema does not require, there is one part.
#
# What most would guess: `toolCallId` identifies the call, so that the chunk finds the part that exists.
#
# Whom it matters to: servers that announce an approved call again before its result. The second part keeps the chat from
# going on, and other servers refuse the history. Send the result alone.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
cat >main.mjs <<'JS'
import { readUIMessageStream } from 'ai';

const approval = { id: 'a', approved: true };
const state = 'approval-responded';
const call = { type: 'dynamic-tool', toolName: 'pay', toolCallId: 'c', state, input: { amount: 1 }, approval };
const again = { type: 'tool-input-available', toolCallId: 'c', toolName: 'pay', input: { amount: 1 } };
const output = { type: 'tool-output-available', toolCallId: 'c', output: 'paid' };
const answers = { 'result alone': [output], 'announced again': [again, output] };
answers['announced again, dynamic'] = [{ ...again, dynamic: true }, output];
for (const [name, chunks] of Object.entries(answers)) {
  const all = [{ type: 'start' }, ...chunks, { type: 'finish' }];
  const message = { id: 'm', role: 'assistant', parts: [{ type: 'step-start' }, structuredClone(call)] };
  const stream = ReadableStream.from(all);
  let last;
  for await (last of readUIMessageStream({ message, stream, terminateOnError: true }));
  const parts = last.parts.filter(part => part.toolCallId === 'c');
  console.log(`${name}: ${parts.map(part => `${part.type} ${part.state}`).join(', ')}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'result alone: dynamic-tool output-available
announced again: dynamic-tool output-available, tool-pay input-available
announced again, dynamic: dynamic-tool output-available' ]
