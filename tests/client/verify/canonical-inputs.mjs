// canonical-inputs.jsonl: the canonical form of a tool input that both SDKs hash, and whether a
// browser shows that input unchanged.
import { isDeepStrictEqual } from 'node:util';
import { canonicalInputBy } from '../canonical-input.mjs';
import { NEWEST, REFERENCE } from '../clients.mjs';
import { isShownAsIs } from '../shown-as-is.mjs';
import { readLines, recordLines } from './fixtures.mjs';

const FILE = 'canonical-inputs.jsonl';

export default async function canonicalInputs(_client, check) {
  const observed = [];
  // One call at a time: the hash function is observed.
  for (const { note, inputText, shownAsIs } of readLines(FILE)) {
    const canonicalInput = await canonicalInputBy(REFERENCE, inputText);
    const newest = await canonicalInputBy(NEWEST, inputText);
    check(`${FILE}: one form in both versions: ${note}`, newest === canonicalInput);
    check(`${FILE}: shown as it is: ${note}`, isShownAsIs(inputText) === shownAsIs);
    observed.push({ note, inputText, shownAsIs, canonicalInput });
  }
  recordLines(FILE, observed);
  for (const [i, want] of readLines(FILE).entries()) {
    check(
      `${FILE}: ${want.note}`,
      isDeepStrictEqual(observed[i], want),
      JSON.stringify(observed[i]),
    );
  }
}
