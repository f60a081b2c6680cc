#!/usr/bin/env bash
# @ai-sdk/mcp 2.0.99 and @modelcontextprotocol/sdk 1.32.2 as the server, 2026-12-01, Node 20.
#
# Behaviour: a tool of an MCP server takes an object whose names are free, such as the headers of a request: its schema says
# `additionalProperties: {"type": "string"}`. The tool that `tools()` of the client returns, and thus the request to the
# model, says `additionalProperties: false` instead. It is set at the top of the input alone: an object inside keeps its own.
# The server would accept such properties, but the model reads that there are none.
#
# What most would guess: the model reads the schema that the server lists.
#
# Whom it matters to: authors of MCP servers with tools of this kind. A model that keeps to the schema calls them with an
# empty object, and the server logs nothing unusual. Put the free names into a property.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @ai-sdk/mcp@2.0.99 @modelcontextprotocol/sdk@1.32.2 zod@4.1.8
cat >main.mjs <<'JS'
import { createMCPClient } from '@ai-sdk/mcp';
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const free = { type: 'object', additionalProperties: { type: 'string' } };
const schemas = { top: free, inside: { type: 'object', properties: { headers: free } } };
const server = new Server({ name: 'server', version: '1' }, { capabilities: { tools: {} } });
server.setRequestHandler(ListToolsRequestSchema, () => ({
  tools: Object.entries(schemas).map(([name, inputSchema]) => ({ name, inputSchema })),
}));
const [transport, other] = InMemoryTransport.createLinkedPair();
await server.connect(other);
const client = await createMCPClient({ transport });
const tools = await client.tools();
const allowed = ({ additionalProperties }) => JSON.stringify(additionalProperties);
const [top, inside] = [tools.top.inputSchema.jsonSchema, tools.inside.inputSchema.jsonSchema];
console.log(`top: listed ${allowed(schemas.top)}, given ${allowed(top)}`);
console.log(`inside: listed ${allowed(free)}, given ${allowed(inside.properties.headers)}`);
await client.close();
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'top: listed {"type":"string"}, given false
inside: listed {"type":"string"}, given {"type":"string"}' ]
