// Has conversations with a running demo through the real client.
//   node scenarios.mjs BASE_URL [--versions 6.0.0,6.0.326] [--only TEXT] [--concurrency N] [--cut]
// With --cut, the header x-cut asks a proxy in between to cut the responses, and the client has the
// `fetch` of the Next.js example, which continues them.
// Prints a line for each failure, then "client scenarios: N ran, M failed". Nothing else may use
// the demo at the same time.
import { parseArgs } from 'node:util';
import { reconnectingFetch } from '../../packages/client/src/reconnecting-fetch.js';
import { loadClient, V6, V7 } from './clients.mjs';
import { scenarios } from './scenarios/all.mjs';
import { Conversation } from './scenarios/conversation.mjs';
import { World } from './scenarios/world.mjs';

const {
  values: options,
  positionals: [baseUrl],
} = parseArgs({
  allowPositionals: true,
  options: {
    versions: { type: 'string', default: [...V6, ...V7].join() },
    only: { type: 'string', default: '' },
    // Most of the time is waiting.
    concurrency: { type: 'string', default: '12' },
    cut: { type: 'boolean', default: false },
  },
});
if (!baseUrl) throw new Error('which server? node scenarios.mjs BASE_URL');

/** The `fetch` of the page. */
function fetchOfPage(url, init) {
  if (!options.cut) return fetch(url, init);
  const headers = new Headers(init.headers);
  headers.set('x-cut', 'yes');
  return reconnectingFetch(url, { ...init, headers });
}

const world = await World.open(baseUrl);
const cases = [];
for (const version of options.versions.split(',')) {
  const client = await loadClient(version);
  for (const scenario of scenarios) {
    if (scenario.name.includes(options.only)) cases.push({ version, client, scenario });
  }
}

let failed = 0;
const sentByHand = {};

await runAll(cases.filter(({ scenario }) => !scenario.deletes));
await runAll(cases.filter(({ scenario }) => scenario.deletes));
await attempt('all versions: the world adds up', () => world.mustAddUp());

for (const [reason, versions] of Object.entries(sentByHand)) {
  const counts = Object.entries(versions).map(([version, times]) => `${times} × ${version}`);
  console.log(`note: sent by the application, because ${reason}: ${counts.join(', ')}`);
}
console.log(`client scenarios: ${cases.length} ran, ${failed} failed`);
// Not by itself: a `fetch` that was stopped may still wait.
process.exit(failed ? 1 : 0);

async function runAll(queue) {
  const waiting = queue.values();
  const lane = async () => {
    for (const one of waiting) await run(one);
  };
  await Promise.all(Array.from({ length: Number(options.concurrency) }, lane));
}

async function run({ version, client, scenario: { name, helper = 'either', play } }) {
  const talk = new Conversation(client, baseUrl, helper, undefined, fetchOfPage);
  await attempt(`${version} ${name}`, () => play(talk, { world, version }));
  for (const reason of talk.sentByHand) {
    sentByHand[reason] ??= {};
    sentByHand[reason][version] = (sentByHand[reason][version] ?? 0) + 1;
  }
}

async function attempt(name, act) {
  try {
    await act();
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}: ${error.message.replace(/\s+/g, ' ')}`);
  }
}
