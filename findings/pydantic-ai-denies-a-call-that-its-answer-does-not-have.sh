#!/usr/bin/env bash
# pydantic-ai-slim 2.68.0 (`VercelAIAdapter`, `sdk_version=6`), read by ai 7.0.173, 2026-12-01, Python 3.11, Node 20.
#
# Behaviour: a user denies a call, which is not posted at once, and then writes a message. The page posts the history: the
# denied call, and after it the message of the user. The adapter sends `tool-output-denied` for the call at the beginning of
# its answer, without announcing the call. For the page this answer is a new message, which has no such call: it ends the
# chat with the error "No tool invocation found", and shows nothing of the text that the model wrote.
# Without the message of the user after the denial the same answer continues the old message, and is read.
#
# What most would guess: the adapter and the page belong together, so that the page can read what the adapter sends.
#
# Whom it matters to: pages where a user may write while a decision waits. Post each decision at once
# (`sendAutomaticallyWhen`), or leave out chunks about calls that are in none of the answer's own chunks.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pydantic-ai-slim==2.68.0
cat >answer.py <<'PY'
import asyncio
import sys

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.ui.vercel_ai import VercelAIAdapter


async def model(messages, info):
    yield "Which account instead?"


agent = Agent(FunctionModel(stream_function=model), output_type=[str, DeferredToolRequests])


@agent.tool_plain(requires_approval=True)
def pay() -> str:
    return "paid"


async def main():
    body = VercelAIAdapter.build_run_input(sys.stdin.buffer.read())
    adapter = VercelAIAdapter(agent=agent, run_input=body, sdk_version=6)
    async for event in adapter.encode_stream(adapter.run_stream()):
        print(event, end="")


asyncio.run(main())
PY
cat >main.mjs <<'JS'
import { execFileSync } from 'node:child_process';
import { AbstractChat, DefaultChatTransport } from 'ai';

const headers = { 'content-type': 'text/event-stream' };
const answer = input => execFileSync('venv/bin/python', ['answer.py'], { input });
const fetch = async (url, { body }) => new Response(answer(body), { headers });
const user = { id: 'u', role: 'user', parts: [{ type: 'text', text: 'Pay' }] };
const approval = { id: 'c', approved: false };
const call = { type: 'tool-pay', toolCallId: 'c', state: 'approval-responded', input: {}, approval };
for (const message of [undefined, { text: 'From another account, please' }]) {
  const messages = [user, { id: 'm', role: 'assistant', parts: [call] }];
  const state = { messages, status: 'ready', snapshot: structuredClone };
  state.pushMessage = message => { state.messages.push(message); };
  state.replaceMessage = (at, message) => { state.messages[at] = message; };
  const chat = new (class extends AbstractChat {})({ state, transport: new DefaultChatTransport({ fetch }) });
  await chat.sendMessage(message);
  const text = chat.messages.at(-1).parts.at(-1).text ?? 'none';
  console.log(`${message ? 'then a message' : 'denial alone'}: ${chat.status}, ${chat.error?.message}, last text: ${text}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'denial alone: ready, undefined, last text: Which account instead?
then a message: error, No tool invocation found for tool call ID "c"., last text: From another account, please' ]
