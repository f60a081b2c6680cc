#!/usr/bin/env bash
# ai 7.0.173, 2026-12-01, Node 20.
#
# Behaviour: a user sends a second message while the first answer is still being streamed, which the chat allows. Both
# answers go on. When the second one has ended, the status is `ready`, although the first one is being streamed. With its
# next piece the status is `streaming` again, and now `stop()` does nothing: its signal is not aborted, and the answer goes
# on to its end. With one answer at a time `stop()` aborts it.
#
# What most would guess: while the status is `streaming`, `stop()` ends each answer that is being streamed.
#
# Whom it matters to: pages that do not lock their input while an answer arrives. The user cannot stop the answer, and the
# page allows what it allows when nothing is under way. Lock the input, or set the option `experimental_queue`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
cat >main.mjs <<'JS'
import { AbstractChat } from 'ai';

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
const settled = () => new Promise(done => setTimeout(done, 100));
for (const answers of [1, 2]) {
  const streams = [];
  const signals = [];
  const sendMessages = async ({ abortSignal }) => {
    signals.push(abortSignal);
    return new ReadableStream({ start: stream => { streams.push(stream); } });
  };
  const chat = new Chat({ transport: { sendMessages } });
  for (let number = 0; number < answers; number++) {
    void chat.sendMessage({ text: 'Hello' });
    await settled();
    streams[number].enqueue({ type: 'start' });
    streams[number].enqueue({ type: 'text-start', id: 't' });
    await settled();
  }
  const seen = [chat.status];
  if (answers === 2) {
    streams[1].close();
    await settled();
    seen.push(chat.status);
    streams[0].enqueue({ type: 'text-delta', id: 't', delta: 'more' });
    await settled();
    seen.push(chat.status);
  }
  await chat.stop();
  console.log(`${answers}: ${seen.join(', ')}; the first answer is stopped: ${signals[0].aborted}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = '1: streaming; the first answer is stopped: true
2: streaming, ready, streaming; the first answer is stopped: false' ]
