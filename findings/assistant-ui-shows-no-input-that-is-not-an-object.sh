#!/usr/bin/env bash
# @assistant-ui/ai-sdk 0.0.7, the adapter of assistant-ui for the AI SDK, 2026-11-30, Node 20.
#
# Behaviour: a call waits for approval, and its input is valid JSON but no object: a text, a list or a number. In the message
# that assistant-ui renders, `args` and `argsText` of the call are `{}`. An input that is an object arrives as it is.
# The message of the AI SDK has the whole input, and so has what is sent back to the server.
#
# What most would guess: `args` is the input of the call, of whatever type.
#
# Whom it matters to: servers whose tools take a single value, such as a path. The user approves `{}`, and the call runs with
# the value. Wrap it into an object.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @assistant-ui/ai-sdk@0.0.7 react@19.3.1
cat >main.mjs <<'JS'
import { AISDKMessageConverter } from './node_modules/@assistant-ui/ai-sdk/dist/converters/convertMessage.js';

for (const input of ['notes.txt', ['a.txt', 'b.txt'], 5000, { path: 'notes.txt' }]) {
  const call = { toolCallId: 'c', toolName: 'remove', state: 'approval-requested', input, approval: { id: 'a' } };
  const parts = [{ type: 'dynamic-tool', ...call }];
  const [message] = AISDKMessageConverter.toThreadMessages([{ id: 'm', role: 'assistant', parts }]);
  const { args, argsText } = message.content.find(part => part.type === 'tool-call');
  console.log(`${JSON.stringify(input)}: ${JSON.stringify(args)}, ${argsText}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = '"notes.txt": {}, {}
["a.txt","b.txt"]: {}, {}
5000: {}, {}
{"path":"notes.txt"}: {"path":"notes.txt"}, {"path":"notes.txt"}' ]
