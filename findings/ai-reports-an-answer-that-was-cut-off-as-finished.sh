#!/usr/bin/env bash
# ai 7.0.173, 2026-11-30, Node 20.
#
# Behaviour: the body of an answer ends in the middle of a text, without a `finish` chunk and without `[DONE]`. That is
# what a page reads if the server is lost and a proxy between them ends the body in the regular way.
# The chat becomes `ready`, has no error, and `onFinish` gets `isError`, `isDisconnect` and `isAbort` as false, as for an
# answer that is complete. What differs is that `finishReason` is undefined and that the last part is still `streaming`.
# An answer without a single chunk ends in the same way.
#
# What most would guess: a stream that ends without its end is an error, or at least `isDisconnect`.
#
# Whom it matters to: pages whose users act on what an answer says. Look at `finishReason` in `onFinish`, or at the state
# of the last part; let the proxy break a connection off when its server breaks it off.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
cat >main.mjs <<'JS'
import { AbstractChat, DefaultChatTransport } from 'ai';

class State {
  messages = [];
  status = 'ready';
  error = undefined;
  pushMessage = message => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (at, message) => { this.messages = this.messages.with(at, message); };
  snapshot = thing => structuredClone(thing);
}
class Chat extends AbstractChat {
  constructor(options) {
    super({ ...options, state: new State() });
  }
}
const begun = [{ type: 'start' }, { type: 'text-start', id: 't' }, { type: 'text-delta', id: 't', delta: 'Pay 1' }];
const ended = [...begun, { type: 'text-end', id: 't' }, { type: 'finish', finishReason: 'stop' }];
const headers = { 'content-type': 'text/event-stream' };
for (const [name, chunks] of Object.entries({ complete: ended, 'cut off': begun, empty: [] })) {
  const body = chunks.map(chunk => `data: ${JSON.stringify(chunk)}\n\n`).join('');
  let end;
  const chat = new Chat({
    transport: new DefaultChatTransport({ fetch: async () => new Response(body, { headers }) }),
    onFinish: ({ isError, isDisconnect, isAbort, finishReason }) => {
      end = `failed: ${isError || isDisconnect || isAbort}, reason: ${finishReason}`;
    },
  });
  await chat.sendMessage({ text: 'How much?' });
  console.log(`${name}: ${chat.status}, error: ${chat.error}, ${end}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'complete: ready, error: undefined, failed: false, reason: stop
cut off: ready, error: undefined, failed: false, reason: undefined
empty: ready, error: undefined, failed: false, reason: undefined' ]
