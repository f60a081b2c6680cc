#!/usr/bin/env bash
# ai 6.0.326 and 7.0.173, 2026-12-01, Node 20.
#
# Behaviour: a message could not be sent: the status is `error`, and `error` has the reason. Then the page asks for an answer
# to resume, and the server responds that there is none (204). After this the status is `ready` and `error` is undefined.
#
# What most would guess: the error stays. Nothing was resumed, and the message is still not sent.
#
# Whom it matters to: pages that show `error` beside a button to try again, and that call `resumeStream` when another device
# may have begun an answer. The user is no longer told that the message was lost. Keep the error of a request elsewhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for version in 6.0.326 7.0.173; do
    rm -rf node_modules package*.json
    npm install --silent --no-audit --no-fund "ai@$version"
    cat >page.mjs <<'JS'
import assert from 'node:assert/strict';
import { AbstractChat, DefaultChatTransport } from 'ai';

class Chat extends AbstractChat {
  constructor(init) {
    const state = { status: 'ready', error: undefined, messages: [], snapshot: structuredClone };
    state.pushMessage = message => (state.messages = [...state.messages, message]);
    state.popMessage = () => (state.messages = state.messages.slice(0, -1));
    state.replaceMessage = (at, message) => (state.messages = state.messages.with(at, message));
    super({ ...init, state });
  }
}

const fetch = async (url, init = {}) =>
  init.method === 'POST' ? new Response('The server is away.', { status: 503 }) : new Response(null, { status: 204 });
const chat = new Chat({ id: 'chat', transport: new DefaultChatTransport({ api: 'http://localhost/api/chat', fetch }) });
await chat.sendMessage({ text: 'Hello' });
assert.equal(chat.status, 'error');
assert.equal(chat.error.message, 'The server is away.');

await chat.resumeStream();
assert.deepEqual(chat.messages.map(({ role }) => role), ['user'], 'there is no answer');
assert.equal(chat.status, 'ready');
assert.equal(chat.error, undefined);
JS
    node page.mjs
    echo "ai $version: the error of the message is gone, though nothing was resumed"
done
