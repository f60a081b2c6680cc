// partial-json.jsonl: how the client reads tool input that is still streaming.
import { isDeepStrictEqual } from 'node:util';
import { json } from '../wire.mjs';
import { readLines, recordLines } from './fixtures.mjs';

const FILE = 'partial-json.jsonl';

export default async function partialJson(client, check) {
  const observed = [];
  for (const { text } of readLines(FILE)) {
    const { state, value } = await client.parsePartialJson(text);
    observed.push(json({ text, state, value }));
  }
  recordLines(FILE, observed);
  for (const [i, want] of readLines(FILE).entries()) {
    check(
      `${FILE}: ${want.text}`,
      isDeepStrictEqual(observed[i], want),
      JSON.stringify(observed[i]),
    );
  }
}
