// The table of docs/attacks.md: a line for each attack, and a last one with the sums.
import { readFileSync, writeFileSync } from 'node:fs';

/** What the document and `results` do not have in common. */
export function differing(path, results) {
  const written = tableIn(readFileSync(path, 'utf8')).split('\n');
  const measured = tableOf(results);
  const wrong = [
    ...written.filter(line => !measured.includes(line)).map(line => `written: ${line}`),
    ...measured.filter(line => !written.includes(line)).map(line => `measured: ${line}`),
  ];
  if (!wrong.length && written.join() !== measured.join()) wrong.push('the order of the lines');
  return wrong;
}

/** Writes the table with the measured results. */
export function rewritten(path, results) {
  const text = readFileSync(path, 'utf8');
  writeFileSync(path, text.replace(tableIn(text), () => tableOf(results).join('\n')));
}

function tableOf(results) {
  const held = results.filter(({ findings }) => findings.length === 0).length;
  const unapproved = results.reduce((sum, result) => sum + result.unapproved, 0);
  const sums = `${held} of ${results.length} hold; ${unapproved} effects that may not be`;
  const rows = [
    ['row', 'attack', 'this crate'],
    ['---', '---', '---'],
    ...results.map(result => [
      `[${result.row}](../fixtures/attacks/${result.file})`,
      escaped(result.attack),
      cellOf(result),
    ]),
    ['all', '', sums],
  ];
  return rows.map(cells => `| ${cells.join(' | ')} |`);
}

/** The requirements that were not met; or "holds", with the response to the attack. */
function cellOf({ findings, seen }) {
  if (findings.length) return escaped(`**${findings.map(({ text }) => text).join('; ')}**`);
  const how = seen.filter(outcome => outcome !== 'answered');
  return how.length ? `holds (${how.join(', ')})` : 'holds';
}

function tableIn(text) {
  const table = text.match(/^\| row \|.*\n(\|.*\n?)+/m)?.[0].trimEnd();
  if (!table) throw new Error('there is no table whose first column is `row`');
  return table;
}

const escaped = text => text.replace(/[|<>]/g, character => `\\${character}`);
