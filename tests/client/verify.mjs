// Checks every fixture in fixtures/upstream/ against the real npm packages.
//   node verify.mjs             prints "N passed, N failed"
//   node verify.mjs --update    records again what the real client does, then checks
import { loadClient, REFERENCE } from './clients.mjs';
import canonicalInputs from './verify/canonical-inputs.mjs';
import chat from './verify/chat.mjs';
import chunks from './verify/chunks.mjs';
import judge from './verify/judge.mjs';
import messages from './verify/messages.mjs';
import modelMessages from './verify/model-messages.mjs';
import olderClients from './verify/older-clients.mjs';
import partialJson from './verify/partial-json.mjs';
import predicates from './verify/predicates.mjs';
import requests from './verify/requests.mjs';
import server from './verify/server.mjs';
import splitPairs from './verify/split-pairs.mjs';
import sse from './verify/sse.mjs';
import streams from './verify/streams.mjs';

const subjects = [
  chunks,
  messages,
  streams,
  splitPairs,
  judge,
  olderClients,
  sse,
  requests,
  canonicalInputs,
  server,
  chat,
  modelMessages,
  predicates,
  partialJson,
];
const tally = { passed: 0, failed: 0 };

function check(name, passed, detail) {
  tally[passed ? 'passed' : 'failed']++;
  if (!passed) console.log(`FAIL ${name}${detail ? `\n     ${detail.slice(0, 400)}` : ''}`);
}

const client = await loadClient(REFERENCE);
for (const subject of subjects) await subject(client, check);
console.log(`${tally.passed} passed, ${tally.failed} failed`);
process.exitCode = tally.failed ? 1 : 0;
