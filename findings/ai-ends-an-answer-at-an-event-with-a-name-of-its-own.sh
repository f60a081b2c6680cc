#!/usr/bin/env bash
# ai 7.0.173, eventsource-parser 3.1.1 and assistant-stream 0.3.57, 2026-12-01, Node 20.
#
# Behaviour: a server sends a heartbeat as an event with a name: `event: ping` with `data: {}`. The format gives such an
# event to the listeners of its name alone. The transport of `useChat` does not look at names: the data is one more chunk,
# has no known type, and the answer ends with an error in its middle. `UIMessageStreamDecoder` of assistant-stream looks at
# the name, and ends with an error at any other than `message`; thus it also refuses chunks under the names of their types,
# which `useChat` reads. A heartbeat as a comment (`: ping`) harms neither.
#
# What most would guess: an event with an unknown name is skipped, as a browser's EventSource skips it.
#
# Whom it matters to: servers that keep connections open by such events, or name their events. Send comments, and no names.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173 eventsource-parser@3.1.1 assistant-stream@0.3.57
cat >main.mjs <<'JS'
import { DefaultChatTransport, readUIMessageStream } from 'ai';
import { AssistantMessageAccumulator, UIMessageStreamDecoder } from 'assistant-stream';
import { createParser } from 'eventsource-parser';

const chunks = [
  { type: 'start' },
  { type: 'text-start', id: 't' },
  { type: 'text-delta', id: 't', delta: 'Hello' },
  { type: 'text-end', id: 't' },
  { type: 'finish' },
];
const written = (heartbeat, name = () => '') =>
  chunks.map(chunk => `${heartbeat}${name(chunk)}data: ${JSON.stringify(chunk)}\n\n`).join('') + 'data: [DONE]\n\n';
const bodies = {
  comment: written(': ping\n\n'),
  'named heartbeat': written('event: ping\ndata: {}\n\n'),
  'named chunks': written('', ({ type }) => `event: ${type}\n`),
};
const last = async messages => {
  let message;
  for await (message of messages);
  return message.parts[0].text;
};
const readers = {
  ai: async body => {
    const transport = new DefaultChatTransport({ fetch: async () => new Response(body) });
    const stream = await transport.sendMessages({ chatId: 'c', messages: [] });
    return last(readUIMessageStream({ stream, terminateOnError: true }));
  },
  'assistant-stream': async body => {
    const decoded = new Response(body).body.pipeThrough(new UIMessageStreamDecoder());
    return last(decoded.pipeThrough(new AssistantMessageAccumulator()));
  },
};
for (const [name, body] of Object.entries(bodies)) {
  const names = new Set();
  createParser({ onEvent: ({ event }) => { names.add(event ?? 'message'); } }).feed(body);
  const seen = [];
  for (const [reader, read] of Object.entries(readers)) {
    seen.push(`${reader}: ${await read(body).catch(error => `failed (${error.message.slice(0, 22)})`)}`);
  }
  console.log(`${name} [${[...names].join(' ')}]\n  ${seen.join('\n  ')}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'comment [message]
  ai: Hello
  assistant-stream: Hello
named heartbeat [ping message]
  ai: failed (Type validation failed)
  assistant-stream: failed (Unknown SSE event type)
named chunks [start text-start text-delta text-end finish message]
  ai: Hello
  assistant-stream: failed (Unknown SSE event type)' ]
