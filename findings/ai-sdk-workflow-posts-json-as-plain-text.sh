#!/usr/bin/env bash
# @ai-sdk/workflow 2.0.43, 2026-11-30, Node 20.
#
# Behaviour: `WorkflowChatTransport` (entry `/client`) posts a JSON body without a content type of its own, so `fetch` sends
# it as `text/plain;charset=UTF-8`. The body has the messages alone: neither the id of the chat nor the trigger nor the id of
# the message, which the other transports of the AI SDK post. A response without the header `x-workflow-run-id` is an error
# after its status and its stream have arrived.
#
# What most would guess: that a transport for `useChat` posts what `DefaultChatTransport` posts, as `application/json`, and
# that any response with the UI message stream will do.
#
# Whom it matters to: servers that refuse bodies that are not JSON (which protects against forms of foreign pages), and
# servers that find the chat by its id. `prepareSendMessagesRequest` adds the header and the id.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --legacy-peer-deps @ai-sdk/workflow@2.0.43 zod@4.1.8 2>/dev/null
cat >main.mjs <<'JS'
import { createServer } from 'node:http';
import { WorkflowChatTransport } from '@ai-sdk/workflow/client';

let posted;
const server = createServer(async (request, response) => {
  let body = '';
  for await (const piece of request) body += piece;
  posted = { type: request.headers['content-type'], keys: Object.keys(JSON.parse(body)) };
  response.setHeader('content-type', 'text/event-stream');
  response.setHeader('x-vercel-ai-ui-message-stream', 'v1');
  response.end('data: {"type":"start"}\n\ndata: {"type":"finish"}\n\ndata: [DONE]\n\n');
});
await new Promise(listening => server.listen(0, '127.0.0.1', listening));
const transport = new WorkflowChatTransport({ api: `http://127.0.0.1:${server.address().port}/` });
const messages = [{ id: 'm', role: 'user', parts: [{ type: 'text', text: 'Hello' }] }];
let ended = 'read';
try {
  const stream = await transport.sendMessages({ chatId: 'chat', messages, trigger: 'submit-message' });
  for await (const chunk of stream) void chunk;
} catch (error) {
  ended = `failed: ${error.message}`;
}
console.log(`${posted.type} | ${posted.keys} | ${ended}`);
server.close();
JS
seen=$(node main.mjs)
echo "$seen"
[[ $seen == 'text/plain;charset=UTF-8 | messages | failed: '*x-workflow-run-id* ]]
