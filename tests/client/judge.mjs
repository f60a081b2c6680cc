// Reads streams with the real client: one line of JSON in, one line out, in the same order.
// README.md describes both formats.
//   node judge.mjs [--threads N]      (default: one per core)
import { once } from 'node:events';
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { Worker } from 'node:worker_threads';

const { values } = parseArgs({
  options: { threads: { type: 'string', default: String(availableParallelism()) } },
});
const workers = Array.from({ length: Number(values.threads) }, startWorker);

// Each thread has one line in work and one waiting. No further lines are read ahead.
const MOST_IN_FLIGHT = 2 * workers.length;

const inFlight = [];
let number = 0;
let written = Promise.resolve();
for await (const line of linesOf(process.stdin)) {
  if (inFlight.length === MOST_IN_FLIGHT) await inFlight[0];
  const answer = workers[number % workers.length].ask(number, line);
  number++;
  written = written.then(async () => {
    if (!process.stdout.write((await answer) + '\n')) await once(process.stdout, 'drain');
    inFlight.shift();
  });
  inFlight.push(written);
}
await written;
await Promise.all(workers.map(worker => worker.stop()));

function startWorker() {
  const thread = new Worker(new URL('./judge/worker.mjs', import.meta.url));
  const waiting = new Map();
  thread.on('message', ({ number, answer }) => {
    waiting.get(number)(answer);
    waiting.delete(number);
  });
  return {
    ask(number, line) {
      thread.postMessage({ number, line });
      return new Promise(resolve => waiting.set(number, resolve));
    },
    stop: () => thread.terminate(),
  };
}

async function* linesOf(stream) {
  let rest = '';
  for await (const text of stream.setEncoding('utf8')) {
    const lines = (rest + text).split('\n');
    rest = lines.pop();
    yield* lines.filter(Boolean);
  }
  if (rest) yield rest;
}
