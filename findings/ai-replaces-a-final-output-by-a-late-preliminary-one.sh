#!/usr/bin/env bash
# ai 7.0.173, 2026-11-30, Node 20.
#
# Behaviour: a tool reports its progress with outputs that are `preliminary`. Its final output is sent first, and a
# preliminary one that was under way arrives after it.
# The message shows the late one as the output, and marks it as preliminary. The final output is gone, and the call is
# incomplete for ever: the function for `sendAutomaticallyWhen` returned true before, and returns false now.
#
# What most would guess: a preliminary output after the final one is ignored.
#
# Whom it matters to: servers that send progress and results from different tasks. Drop progress after the result.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
cat >main.mjs <<'JS'
import { lastAssistantMessageIsCompleteWithToolCalls as isComplete, readUIMessageStream } from 'ai';

const stream = ReadableStream.from([
  { type: 'start', messageId: 'm' },
  { type: 'start-step' },
  { type: 'tool-input-available', toolCallId: 'c', toolName: 'search', input: {} },
  { type: 'tool-output-available', toolCallId: 'c', output: 'three hits' },
  { type: 'tool-output-available', toolCallId: 'c', output: 'searching', preliminary: true },
  { type: 'finish-step' },
  { type: 'finish' },
]);
let message;
let wasComplete = false;
for await (message of readUIMessageStream({ stream, terminateOnError: true })) {
  wasComplete ||= isComplete({ messages: [message] });
}
const { state, output, preliminary } = message.parts.at(-1);
console.log(`${state}, ${output}, preliminary: ${preliminary}`);
console.log(`complete: first ${wasComplete}, then ${isComplete({ messages: [message] })}`);
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'output-available, searching, preliminary: true
complete: first true, then false' ]
