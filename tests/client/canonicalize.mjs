// Writes the canonical form of a tool input that the SDK's server hashes: one line of JSON in, one
// line out, in the same order. README.md describes both formats.
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
