#!/usr/bin/env bash
# ai 7.0.173, 2026-11-30, Node 20.
#
# Behaviour: the input of a call arrives in deltas. While it is incomplete, `part.input` holds what the package makes of
# the text so far. A number counts with the digits that have arrived: 1250 is first 1, then 12, then 125. Its exponent is
# left out until it is complete. The first letters of a literal count as the literal: `t` is already true.
# An incomplete string is shown as it is too, but a reader sees that it is incomplete.
#
# What most would guess: a number or literal is left out until the text after it shows that it is complete.
#
# Whom it matters to: pages that show or use the input of a call before its state is `input-available`, for example an
# amount that somebody shall approve.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
cat >main.mjs <<'JS'
import { readUIMessageStream } from 'ai';

for (const text of ['{"amount": 1250}', '{"amount": 2e3}', '{"urgent": true}']) {
  const deltas = [...text].map(inputTextDelta => ({ type: 'tool-input-delta', toolCallId: 'c', inputTextDelta }));
  const start = { type: 'tool-input-start', toolCallId: 'c', toolName: 'pay' };
  const stream = ReadableStream.from([{ type: 'start' }, start, ...deltas]);
  const seen = new Map();
  for await (const message of readUIMessageStream({ stream, terminateOnError: true })) {
    const { input, rawInput } = message.parts[0] ?? {};
    const [value] = Object.values(input ?? {});
    if (value !== undefined && !seen.has(value)) seen.set(value, rawInput);
  }
  console.log([...seen].map(([value, raw]) => `${raw} is ${value}`).join(', '));
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = '{"amount": 1 is 1, {"amount": 12 is 12, {"amount": 125 is 125, {"amount": 1250 is 1250
{"amount": 2 is 2, {"amount": 2e3 is 2000
{"urgent": t is true' ]
