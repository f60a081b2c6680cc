// Signs tool calls as the SDK's server does, a line of JSON in, a line of JSON out, in the order of
// the lines. The format of both stands in README.md.
//   node sign.mjs
import { createInterface } from 'node:readline';
import { NEWEST, REFERENCE } from './clients.mjs';
import { isShownAsIs } from './shown-as-is.mjs';
import { signedBy } from './signing.mjs';

for await (const line of createInterface({ input: process.stdin })) {
  if (!line) continue;
  const call = JSON.parse(line);
  const lines = await signedBy(REFERENCE, call);
  const jsonArray = await signedBy(NEWEST, call);
  console.log(JSON.stringify({ shownAsIs: isShownAsIs(call.inputText), lines, jsonArray }));
}
