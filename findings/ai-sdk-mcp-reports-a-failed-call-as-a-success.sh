#!/usr/bin/env bash
# @ai-sdk/mcp 2.0.99 with ai 7.0.173 and @modelcontextprotocol/sdk 1.32.2 as the server, 2026-12-01, Node 20.
#
# Behaviour: a tool of an MCP server fails and returns `isError: true`, as the protocol wants it. The page gets
# `tool-output-available`, with the whole result of the protocol as the output, and the model reads the text of the failure
# as an ordinary output: the mark of the error is not in its request. A tool of the program itself that throws is
# `tool-output-error` for the page and an error for the model.
#
# What most would guess: a result with `isError` is an error on both ways.
#
# Whom it matters to: pages that show a call as done by its state, logs that count failures, and models that cannot tell a
# refusal from content. Look for `isError` in the outputs of such tools, or wrap their `execute` and throw.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @ai-sdk/mcp@2.0.99 ai@7.0.173 @modelcontextprotocol/sdk@1.32.2 zod@4.1.8
cat >main.mjs <<'JS'
import { createMCPClient } from '@ai-sdk/mcp';
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { isStepCount, streamText, tool } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { z } from 'zod';

const closed = 'The account is closed';
const server = new McpServer({ name: 'bank', version: '1' });
server.registerTool('remote', {}, () => ({ content: [{ type: 'text', text: closed }], isError: true }));
const [transport, other] = InMemoryTransport.createLinkedPair();
await server.connect(other);
const client = await createMCPClient({ transport });
const local = tool({ inputSchema: z.object({}), execute: () => { throw new Error(closed); } });
const tools = { ...(await client.tools()), local };

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const finish = unified => ({ type: 'finish', finishReason: { unified, raw: unified }, usage });
for (const toolName of ['remote', 'local']) {
  let read;
  const model = new MockLanguageModelV4({
    doStream: async ({ prompt }) => {
      const last = prompt.at(-1);
      if (last.role === 'tool') read = last.content[0].output;
      const call = { type: 'tool-call', toolCallId: 'c', toolName, input: '{}' };
      return { stream: ReadableStream.from(last.role === 'tool' ? [finish('stop')] : [call, finish('tool-calls')]) };
    },
  });
  const result = streamText({ model, prompt: 'Pay', tools, stopWhen: isStepCount(2), onError() {} });
  for await (const { type } of result.toUIMessageStream()) {
    if (type.startsWith('tool-output')) console.log(`${toolName}, page: ${type}`);
  }
  console.log(`${toolName}, model: ${JSON.stringify(read)}`);
}
await client.close();
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'remote, page: tool-output-available
remote, model: {"type":"content","value":[{"type":"text","text":"The account is closed"}]}
local, page: tool-output-error
local, model: {"type":"error-text","value":"Error: The account is closed"}' ]
