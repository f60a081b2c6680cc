// Reads half-received JSON as the real client does, a line of JSON in, a line of JSON out, in the
// order of the lines. The format of both stands in README.md.
//   node partial-json.mjs
import { createInterface } from 'node:readline';
import { isDeepStrictEqual } from 'node:util';
import { loadClient, REFERENCE } from './clients.mjs';

const { parsePartialJson } = await loadClient(REFERENCE);

for await (const line of createInterface({ input: process.stdin })) {
  if (line) console.log(JSON.stringify(await differences(JSON.parse(line))));
}

/** The prefixes of `text` that the client reads as something else than `read` has for them. */
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

/** Every prefix that ends behind a whole character, the empty one and `text` itself included. */
function prefixesOf(text) {
  const characters = [...text];
  return [...Array(characters.length + 1).keys()].map(n => characters.slice(0, n).join(''));
}
