// The table of docs/attacks.md: a line for each attack, a column for each server. Columns that
// another program measures stay unchanged.
import { readFileSync, writeFileSync } from 'node:fs';

/** The line with the sums. */
const ALL = 'all';

/** The cells of the table that differ from `results`. */
export function differing(path, results) {
  const { columns, lines } = tableIn(readFileSync(path, 'utf8'));
  const wrong = [];
  let cells = 0;
  const names = [...results.map(({ file }) => file), ALL];
  for (const file of lines.keys()) {
    if (!names.includes(file)) wrong.push(`${file}: there is no such attack`);
  }
  for (const [file, measured] of measuredLines(results)) {
    const line = lines.get(file) ?? [];
    for (const [column, cell] of Object.entries(measured)) {
      cells++;
      const written = line[columns.indexOf(column)];
      if (written !== cell) wrong.push(`${file}, ${column}: "${written ?? ''}" is "${cell}"`);
    }
  }
  return { cells, wrong };
}

/** Writes the table with the measured results. */
export function rewritten(path, results) {
  const text = readFileSync(path, 'utf8');
  const { columns, lines, table } = tableIn(text);
  const measured = measuredLines(results);
  const own = Object.keys(measured.get(ALL));
  const all = [...columns, ...own.filter(column => !columns.includes(column))];
  const rows = [...measured].map(([file, cells]) => {
    const line = lines.get(file) ?? [];
    return all.map(column => cells[column] ?? line[columns.indexOf(column)] ?? '');
  });
  const written = [all, all.map(() => '---'), ...rows].map(row => `| ${row.join(' | ')} |`);
  writeFileSync(path, text.replace(table, () => written.join('\n')));
}

/** The cells by file, and last the sums of all files. */
function measuredLines(results) {
  const lines = new Map(results.map(result => [result.file, cellsOf(result)]));
  const sums = Object.keys(results[0].servers).map(name => {
    const all = results.map(({ servers }) => servers[name]);
    const held = all.filter(({ findings }) => findings.length === 0).length;
    const unapproved = all.reduce((sum, result) => sum + result.unapproved, 0);
    return [name, `${held} of ${all.length} hold; ${unapproved} effects that may not be`];
  });
  return lines.set(ALL, { row: ALL, attack: '', ...Object.fromEntries(sums) });
}

function cellsOf({ file, row, attack, servers }) {
  const measured = Object.entries(servers).map(([name, result]) => [name, cellOf(result)]);
  return Object.fromEntries([
    ['row', `[${row}](../fixtures/attacks/${file})`],
    ['attack', escaped(attack)],
    ...measured,
  ]);
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
  const [columns, , ...lines] = table.split('\n').map(line => {
    const cells = line.split(/(?<!\\)\|/).slice(1, -1);
    return cells.map(cell => cell.trim());
  });
  const byFile = lines.map(cells => [cells[0].match(/attacks\/(.*)\)/)?.[1] ?? cells[0], cells]);
  return { columns, lines: new Map(byFile), table };
}

const escaped = text => text.replace(/[|<>]/g, character => `\\${character}`);
