// Plays the attacks of fixtures/attacks/ against the server of
// crates/chat/tests/attacks/attack_server.rs, and prints which requirements were met.
//   node attacks.mjs BASE_URL [--only TEXT]    a line for each attack: "N played, M do not hold"
//   node attacks.mjs BASE_URL --check          compares docs/attacks.md: "N played, M differ"
//   node attacks.mjs BASE_URL --update         writes the table of docs/attacks.md
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { play } from './attacks/player.mjs';
import { RemoteServer } from './attacks/remote.mjs';
import { differing, rewritten } from './attacks/document.mjs';
import { loadClient, REFERENCE } from './clients.mjs';

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    only: { type: 'string', default: '' },
    check: { type: 'boolean' },
    update: { type: 'boolean' },
  },
});
const [base] = positionals;
if (!base) throw new Error('which server? node attacks.mjs BASE_URL');
if (options.only && (options.check || options.update)) {
  throw new Error('the document holds all attacks, not only some');
}

globalThis.AI_SDK_LOG_WARNINGS = false;
const client = await loadClient(REFERENCE);
const folder = fileURLToPath(new URL('../../fixtures/attacks/', import.meta.url));
const document = fileURLToPath(new URL('../../docs/attacks.md', import.meta.url));

const results = [];
for (const file of filesOf(folder)) {
  const recipe = JSON.parse(readFileSync(folder + file, 'utf8'));
  try {
    const played = await play(client, recipe, await RemoteServer.start(base, recipe.model));
    results.push({ file, row: recipe.row, attack: recipe.attack, ...played });
  } catch (error) {
    throw new Error(file, { cause: error });
  }
}

if (options.update) rewritten(document, results);
else if (options.check) check();
else list();

function check() {
  const wrong = differing(document, results);
  for (const line of wrong) console.log(line);
  console.log(`attacks: ${results.length} played, ${wrong.length} differ`);
  process.exitCode = wrong.length ? 1 : 0;
}

function list() {
  for (const { file, findings, seen } of results) {
    const held = findings.map(({ text }) => text).join('; ') || 'holds';
    console.log(`${file}: ${held}  (${seen.join(', ')})`);
  }
  const broken = results.filter(({ findings }) => findings.length > 0);
  const unapproved = results.reduce((sum, result) => sum + result.unapproved, 0);
  console.log(
    `attacks: ${results.length} played, ${broken.length} do not hold, ` +
      `${unapproved} effects that may not be`,
  );
}

/** By row, then by name: a2 before a10. */
function filesOf(folder) {
  const files = readdirSync(folder).filter(file => file.endsWith('.json'));
  return files
    .filter(file => file.includes(options.only))
    .sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
}
