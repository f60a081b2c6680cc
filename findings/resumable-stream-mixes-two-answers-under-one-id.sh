#!/usr/bin/env bash
# resumable-stream 2.2.13, 2026-12-01, Node 20.
#
# Behaviour: a server uses the id of the chat as the id of the stream, and a second answer of the chat begins while the first
# is running: two tabs, or a message that was sent too early. `createNewResumableStream` starts it under the same id, without
# an error. A reader that resumes then gets the pieces of both answers, as they come, in one stream. When the first answer
# ends, this stream ends, and a page that resumes after that gets null, "already done", while the second answer is running.
#
# What most would guess: the new stream takes the place of the old one, or the id is refused.
#
# Whom it matters to: servers that derive the id from the chat, so that the page needs to know nothing more. Two mixed
# streams of events have parts with the same ids, and no page can read them. Make an id for each answer.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund resumable-stream@2.2.13
cat >main.mjs <<'JS'
import { createResumableStreamContext } from 'resumable-stream/generic';

const [values, listeners] = [new Map(), new Map()];
const connect = async () => {};
const subscriber = {
  connect,
  subscribe: async (channel, listener) => { listeners.set(channel, [...(listeners.get(channel) ?? []), listener]); },
  unsubscribe: async channel => { listeners.delete(channel); },
};
const publisher = {
  connect,
  publish: async (channel, text) => { for (const listener of listeners.get(channel) ?? []) listener(text); },
  set: async (key, value) => { values.set(key, value); },
  get: async key => values.get(key) ?? null,
  incr: async key => { values.set(key, `${Number(values.get(key) ?? 0) + 1}`); return Number(values.get(key)); },
};
const context = createResumableStreamContext({ waitUntil: () => {}, subscriber, publisher });
const settled = () => new Promise(done => setTimeout(done, 100));
for (const ids of [['answer 1', 'answer 2'], ['chat', 'chat']]) {
  const answers = [];
  for (const id of ids) {
    await context.createNewResumableStream(id, () => new ReadableStream({ start: answer => { answers.push(answer); } }));
  }
  let read = '';
  const resumed = await Promise.all([settled(), context.resumeExistingStream(ids[1])]);
  const reading = resumed[1].pipeTo(new WritableStream({ write: piece => { read += piece; } }));
  for (const piece of ['one ', 'two ']) {
    answers[0].enqueue(`first ${piece}`);
    answers[1].enqueue(`second ${piece}`);
    await settled();
  }
  answers[0].close();
  await settled();
  const again = await context.resumeExistingStream(ids[1]);
  console.log(`${ids}: ${read}| after the end of the first: ${again ? 'stream' : again}`);
  if (again) answers[1].close();
  await reading;
}
process.exit(0);
JS
printed=$(timeout 60 node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'answer 1,answer 2: second one second two | after the end of the first: stream
chat,chat: first one second one first two second two | after the end of the first: null' ]
