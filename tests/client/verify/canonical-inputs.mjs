// canonical-inputs.jsonl: tool inputs, and the canonical form of those that a browser shows unchanged.
import { canonicalInput } from '../canonical-input.mjs';
import { readLines, recordLines } from './fixtures.mjs';

const FILE = 'canonical-inputs.jsonl';

export default function canonicalInputs(_client, check) {
  const observed = readLines(FILE).map(({ note, inputText }) => ({
    note,
    inputText,
    canonicalInput: canonicalInput(inputText),
  }));
  recordLines(FILE, observed);
  for (const [i, want] of readLines(FILE).entries()) {
    const got = observed[i].canonicalInput;
    check(`${FILE}: ${want.note}`, got === want.canonicalInput, JSON.stringify(got));
  }
}
