#!/usr/bin/env bash
# ai 7.0.173, 2026-12-01, Node 20.
#
# Behaviour: a tool without `execute` is one that the page executes. With `needsApproval`, `streamText` asks for an approval
# of its calls as of any other. When the user has approved, `lastAssistantMessageIsCompleteWithApprovalResponses` returns
# true, so that the chat posts at once, and the server cannot convert it into a request: it raises
# AI_MissingToolResultsError before the model is asked, and the page gets the text "An error occurred.".
# A denial of the same call works.
#
# What most would guess: the approved call goes back to the page, which executes it; or the definition is refused.
#
# Whom it matters to: pages with tools that ask before they act, such as one that reads the location. Add the output with
# `addToolOutput` when the user approves, instead of the approval; or let `sendAutomaticallyWhen` wait for it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173 zod@4.1.8
cat >main.mjs <<'JS'
import * as ai from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { z } from 'zod';

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const finish = unified => ({ type: 'finish', finishReason: { unified, raw: unified }, usage });
let asked = 0;
const model = new MockLanguageModelV4({
  doStream: async ({ prompt }) => {
    asked++;
    const call = { type: 'tool-call', toolCallId: 'c', toolName: 'locate', input: '{}' };
    return { stream: ReadableStream.from(prompt.length > 1 ? [finish('stop')] : [call, finish('tool-calls')]) };
  },
});
const tools = { locate: ai.tool({ inputSchema: z.object({}), needsApproval: true }) };
const user = { id: 'u', role: 'user', parts: [{ type: 'text', text: 'Where am I?' }] };
const answer = async messages => {
  let failed = 'no error';
  const onError = ({ error }) => { failed = error.name; };
  const result = ai.streamText({ model, tools, messages: await ai.convertToModelMessages(messages), onError });
  let message = messages.find(({ role }) => role === 'assistant');
  const stream = result.toUIMessageStream();
  for await (message of ai.readUIMessageStream({ message: structuredClone(message), stream }));
  return { message, failed };
};
const { message } = await answer([user]);
console.log(`asks: ${message.parts.at(-1).state}`);
for (const approved of [true, false]) {
  const call = { ...message.parts.at(-1), state: 'approval-responded' };
  call.approval = { ...call.approval, approved };
  const messages = [user, { ...message, parts: [call] }];
  const sends = ai.lastAssistantMessageIsCompleteWithApprovalResponses({ messages });
  asked = 0;
  const { failed } = await answer(messages);
  console.log(`approved ${approved}: the page sends ${sends}, ${failed}, requests to the model: ${asked}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'asks: approval-requested
approved true: the page sends true, AI_MissingToolResultsError, requests to the model: 0
approved false: the page sends true, no error, requests to the model: 1' ]
