// split-pairs.jsonl: what the client makes of deltas that are split between the halves of a character.
import { isDeepStrictEqual } from 'node:util';
import { byteStream, chunksOf, json } from '../wire.mjs';
import { readLines, recordLines } from './fixtures.mjs';

const FILE = 'split-pairs.jsonl';

export default async function splitPairs(client, check) {
  const observed = [];
  for (const line of readLines(FILE)) {
    const sse = line.chunks.map(chunk => `data: ${chunk}\n\n`).join('');
    let message;
    for await (const snapshot of client.readUIMessageStream({ stream: chunksOf(client, byteStream(sse, 7)) })) {
      message = snapshot;
    }
    observed.push({ ...line, message: json(message) });
  }
  recordLines(FILE, observed);
  for (const [i, want] of readLines(FILE).entries()) {
    check(`${FILE}: ${want.note}`, isDeepStrictEqual(observed[i], want), JSON.stringify(observed[i]));
  }
}
