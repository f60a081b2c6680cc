// Reads incomplete JSON as the real client does: one line of JSON in, one line out, in the same
// order. README.md describes both formats.
//   node partial-json.mjs
import { createInterface } from 'node:readline';
import { isDeepStrictEqual } from 'node:util';
import { loadClient, REFERENCE } from './clients.mjs';

const { parsePartialJson } = await loadClient(REFERENCE);

for await (const line of createInterface({ input: process.stdin })) {
  if (line) console.log(JSON.stringify(await differences(JSON.parse(line))));
}

/** The prefixes of `text` for which the client reads another value than the one in `read`. */
async function differences({ text, read }) {
  const differing = [];
  const prefixes = prefixesOf(text);
  for (const [i, prefix] of prefixes.entries()) {
    const { value } = await parsePartialJson(prefix);
    const here = read[i] === null ? undefined : JSON.parse(read[i]);
    if (!isDeepStrictEqual(here, value)) differing.push({ prefix, client: value, here });
  }
  return { prefixes: prefixes.length, differing };
}

/** Every prefix that ends after a whole character, including the empty one and `text` itself. */
function prefixesOf(text) {
  const characters = [...text];
  return [...Array(characters.length + 1).keys()].map(n => characters.slice(0, n).join(''));
}
