#!/usr/bin/env bash
# ai 7.0.173, @ai-sdk/openai 4.0.118, @ai-sdk/openai-compatible 3.0.92, @ai-sdk/anthropic 4.0.105, 2026-12-01, Node 20.
#
# Behaviour: the user denies a call and writes a reason. In the request to the model, the reason is the whole output of the
# tool. Neither a word of the denial nor a mark of an error is beside it: a tool that succeeded and printed the reason looks
# the same. Without a reason, the output is a sentence that says that the call was denied.
#
# What most would guess: the reason is added to the statement that the call was denied.
#
# Whom it matters to: pages that pass what the user wrote as the reason. After "all right, tomorrow" the model can report
# that the payment is made. Write the denial into the reason, for example in the server before the messages are converted.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/openai-compatible@3.0.92 \
  @ai-sdk/anthropic@4.0.105 zod@4.1.8
cat >main.mjs <<'JS'
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { convertToModelMessages, streamText } from 'ai';

let sent;
const fetch = async (url, { body }) => {
  sent = JSON.parse(body);
  return new Response('only the request is of interest', { status: 400 });
};
const models = {
  openai: createOpenAI({ apiKey: 'none', fetch }).responses('gpt-5'),
  'openai-compatible': createOpenAICompatible({ name: 'other', baseURL: 'http://model.test', fetch })('model'),
  anthropic: createAnthropic({ apiKey: 'none', fetch })('claude-sonnet-4-5'),
};
const user = { id: 'u', role: 'user', parts: [{ type: 'text', text: 'Pay the rent' }] };
for (const reason of ['all right, tomorrow', undefined]) {
  const approval = { id: 'a', approved: false, reason };
  const call = { type: 'tool-pay', toolCallId: 'c', state: 'approval-responded', input: {}, approval };
  const messages = await convertToModelMessages([user, { id: 'm', role: 'assistant', parts: [call] }]);
  for (const [name, model] of Object.entries(models)) {
    await streamText({ model, messages, maxRetries: 0, onError() {} }).consumeStream();
    const last = (sent.input ?? sent.messages).at(-1);
    console.log(`${name}: ${JSON.stringify(last.role === 'user' ? last.content[0] : last)}`);
  }
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'openai: {"type":"function_call_output","call_id":"c","output":"all right, tomorrow"}
openai-compatible: {"role":"tool","tool_call_id":"c","content":"all right, tomorrow"}
anthropic: {"type":"tool_result","tool_use_id":"c","content":"all right, tomorrow"}
openai: {"type":"function_call_output","call_id":"c","output":"Tool call execution denied."}
openai-compatible: {"role":"tool","tool_call_id":"c","content":"Tool call execution denied."}
anthropic: {"type":"tool_result","tool_use_id":"c","content":"Tool call execution denied."}' ]
