// Writes the canonical form that the SDK's server hashes of a tool input, a line of JSON in, a line
// of JSON out, in the order of the lines. The format of both stands in README.md.
//   node canonicalize.mjs
import { createInterface } from 'node:readline';
import { canonicalInputBy } from './canonical-input.mjs';
import { NEWEST, REFERENCE } from './clients.mjs';
import { isShownAsIs } from './shown-as-is.mjs';

for await (const line of createInterface({ input: process.stdin })) {
  if (!line) continue;
  const { inputText } = JSON.parse(line);
  const reference = await canonicalInputBy(REFERENCE, inputText);
  const newest = await canonicalInputBy(NEWEST, inputText);
  console.log(JSON.stringify({ shownAsIs: isShownAsIs(inputText), reference, newest }));
}
