#!/usr/bin/env bash
# @ag-ui/client 1.0.0 and, for comparison, eventsource-parser 3.1.1, 2026-12-01, Node 20.
#
# Behaviour: a run arrives as server-sent events whose lines end with CR LF, which the format allows besides LF. `HttpAgent`
# looks for two LF in a row alone. It holds everything back until the body ends, takes it for one event, and the run fails
# with a message about JSON: "Unexpected non-whitespace character". The same run with LF is read.
#
# What most would guess: a client of server-sent events reads all three line ends of the format; or the first event fails.
#
# Whom it matters to: servers for AG-UI whose library writes CR LF, as sse-starlette for Python does unless `sep` is set.
# Their streams work with the EventSource of a browser and with other parsers. Set the separator to LF.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund @ag-ui/client@1.0.0 eventsource-parser@3.1.1
cat >main.mjs <<'JS'
import { HttpAgent } from '@ag-ui/client';
import { createParser } from 'eventsource-parser';

console.error = () => {};
const events = [
  { type: 'RUN_STARTED', threadId: 't', runId: 'r' },
  { type: 'TEXT_MESSAGE_START', messageId: 'm', role: 'assistant' },
  { type: 'TEXT_MESSAGE_CONTENT', messageId: 'm', delta: 'Hello' },
  { type: 'TEXT_MESSAGE_END', messageId: 'm' },
  { type: 'RUN_FINISHED', threadId: 't', runId: 'r' },
];
for (const [name, end] of Object.entries({ LF: '\n', 'CR LF': '\r\n' })) {
  const body = events.map(event => `data: ${JSON.stringify(event)}${end}${end}`).join('');
  let parsed = 0;
  createParser({ onEvent: () => { parsed++; } }).feed(body);
  const headers = { 'content-type': 'text/event-stream' };
  const fetch = async () => new Response(body, { headers });
  const agent = new HttpAgent({ url: 'http://agent.test', threadId: 't', fetch });
  const read = await agent.runAgent({ runId: 'r' }).then(
    ({ newMessages }) => newMessages.map(message => message.content).join(),
    error => `failed: ${error.message}`,
  );
  console.log(`${name}: ${parsed} events; ${read}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[[ $printed == 'LF: 5 events; Hello
CR LF: 5 events; failed: Unexpected non-whitespace character after JSON'* ]]
