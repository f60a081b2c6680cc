#!/usr/bin/env bash
# ai 7.0.173, 2026-12-01, Node 20.
#
# Behaviour: a model writes a whole call, and its answer ends there with the reason `length`, since no tokens are left. The
# tool is not executed. The message that the page keeps has the call in the state `input-available`, without an output, and
# nothing in the stream says that it will not come. When the user writes the next message, `streamText` raises
# AI_MissingToolResultsError before it asks the model, and so it does for each message after that.
# `convertToModelMessages` has the option `ignoreIncompleteToolCalls`, which is off unless it is set.
#
# What most would guess: the call that was not executed ends as an error, or is left out of the next request.
#
# Whom it matters to: servers that set a limit of output tokens. One answer of this kind blocks its chat. Set the option, or
# end the call with `tool-output-error` before the message is stored.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173 zod@4.1.8
cat >main.mjs <<'JS'
import { convertToModelMessages, readUIMessageStream, streamText, tool } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { z } from 'zod';

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const finish = unified => ({ type: 'finish', finishReason: { unified, raw: unified }, usage });
const call = { type: 'tool-call', toolCallId: 'c', toolName: 'pay', input: '{}' };
let [asked, ran] = [0, 0];
const model = new MockLanguageModelV4({
  doStream: async () => ({ stream: ReadableStream.from(asked++ ? [finish('stop')] : [call, finish('length')]) }),
});
const tools = { pay: tool({ inputSchema: z.object({}), execute: () => { ran++; return 'paid'; } }) };
const user = text => ({ id: text, role: 'user', parts: [{ type: 'text', text }] });
const answer = async (messages, options) => {
  let failed = 'no error';
  const onError = ({ error }) => { failed = error.name; };
  const result = streamText({ model, tools, messages: await convertToModelMessages(messages, options), onError });
  let message;
  for await (message of readUIMessageStream({ stream: result.toUIMessageStream() }));
  return { message, failed };
};
const first = await answer([user('Pay')]);
console.log(`${first.message.parts.at(-1).state}, ${first.failed}, executed ${ran} times, model asked ${asked} times`);
const chat = [user('Pay'), first.message, user('And the other one?')];
console.log(`next message: ${(await answer(chat)).failed}, model asked ${asked} times`);
const option = { ignoreIncompleteToolCalls: true };
console.log(`with the option: ${(await answer(chat, option)).failed}, model asked ${asked} times`);
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'input-available, no error, executed 0 times, model asked 1 times
next message: AI_MissingToolResultsError, model asked 1 times
with the option: no error, model asked 2 times' ]
