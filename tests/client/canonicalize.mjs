// Writes the canonical form of a tool input: one line of JSON in, one line out, in the same order.
// README.md describes both formats.
//   node canonicalize.mjs
import { createInterface } from 'node:readline';
import { canonicalInput } from './canonical-input.mjs';

for await (const line of createInterface({ input: process.stdin })) {
  if (!line) continue;
  const { inputText } = JSON.parse(line);
  console.log(JSON.stringify({ canonicalInput: canonicalInput(inputText) }));
}
