#!/usr/bin/env bash
# @modelcontextprotocol/sdk 1.32.2, 2026-12-01, Node 20.
#
# Behaviour: a server over streamable HTTP with `enableJsonResponse: true`, and a client that answers questions of a server
# (elicitation) and has said so. A tool asks by `extra.sendRequest`, as part of its call. The question reaches the client
# neither in the response nor in the stream of its GET, which is open; the server logs nothing, and what it waits for ends by
# a timeout, after 60 seconds unless it sets another one. Without `enableJsonResponse` the client answers at once.
#
# What most would guess: the question uses the open stream, or the server raises an error because it cannot be sent.
#
# Whom it matters to: servers with tools that ask the user, behind proxies for which JSON was chosen. Turn the option off,
# or ask by `server.elicitInput` of the session without the call, which uses the stream of the GET.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 zod@4.1.8
cat >main.mjs <<'JS'
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { ElicitRequestSchema, ElicitResultSchema } from '@modelcontextprotocol/sdk/types.js';

const params = { message: 'Pay?', requestedSchema: { type: 'object', properties: {} } };
const text = result => ({ content: [{ type: 'text', text: result }] });
for (const enableJsonResponse of [false, true]) {
  const mcp = new McpServer({ name: 'server', version: '1' });
  mcp.registerTool('in-the-call', {}, extra =>
    extra.sendRequest({ method: 'elicitation/create', params }, ElicitResultSchema, { timeout: 3000 })
      .then(({ action }) => text(action), error => text(error.message)));
  mcp.registerTool('beside-the-call', {}, () =>
    mcp.server.elicitInput(params, { timeout: 3000 })
      .then(({ action }) => text(action), error => text(error.message)));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, enableJsonResponse });
  await mcp.connect(transport);
  let listens;
  const listening = new Promise(done => { listens = done; });
  const http = createServer((request, response) => {
    void transport.handleRequest(request, response);
    if (request.method === 'GET') listens();
  });
  await new Promise(done => http.listen(0, '127.0.0.1', done));
  const client = new Client({ name: 'client', version: '1' }, { capabilities: { elicitation: {} } });
  let asked = 0;
  client.setRequestHandler(ElicitRequestSchema, () => { asked++; return { action: 'accept', content: {} }; });
  await client.connect(new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${http.address().port}/`)));
  await listening;
  for (const name of ['in-the-call', 'beside-the-call']) {
    asked = 0;
    const { content } = await client.callTool({ name });
    console.log(`JSON ${enableJsonResponse}, ${name}: asked ${asked}, ${content[0].text}`);
  }
  await client.close();
  http.closeAllConnections();
  http.close();
}
JS
printed=$(timeout 60 node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'JSON false, in-the-call: asked 1, accept
JSON false, beside-the-call: asked 1, accept
JSON true, in-the-call: asked 0, MCP error -32001: Request timed out
JSON true, beside-the-call: asked 1, accept' ]
