// Plays the attacks of fixtures/attacks/ against Node servers built with the AI SDK, or against the
// server of crates/chat/tests/attacks/attack_server.rs, and prints which requirements were met.
//   node attacks.mjs [--only TEXT]    a line for each attack and server: "N played, M do not hold"
//   node attacks.mjs --json           the same as JSON, with the effects
//   node attacks.mjs --check          compares docs/attacks.md: "N cells, M differ"
//   node attacks.mjs --update         writes the table of docs/attacks.md
//   --against URL                     the server there, instead of the Node servers
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { play } from './attacks/player.mjs';
import { RemoteServer } from './attacks/remote.mjs';
import { NodeServer } from './attacks/server.mjs';
import { differing, rewritten } from './attacks/document.mjs';
import { loadClient, REFERENCE } from './clients.mjs';

const SECRET = 'a secret of 32 bytes, for a test';

/** The Node servers, by the name of their column in the table. */
const NODE_SERVERS = {
  'no secret': {},
  secret: { secret: SECRET },
  strict: { secret: SECRET, strict: true },
};

/** The column of the server in another process. */
const REMOTE = 'this crate';

const { values: options } = parseArgs({
  options: {
    only: { type: 'string', default: '' },
    against: { type: 'string' },
    json: { type: 'boolean' },
    check: { type: 'boolean' },
    update: { type: 'boolean' },
  },
});

if (options.only && (options.check || options.update)) {
  throw new Error('the document holds all attacks, not only some');
}

globalThis.AI_SDK_LOG_WARNINGS = false;
const client = await loadClient(REFERENCE);
const folder = fileURLToPath(new URL('../../fixtures/attacks/', import.meta.url));
const document = fileURLToPath(new URL('../../docs/attacks.md', import.meta.url));

/** The functions that start each server with the model of a recipe. */
const servers = options.against
  ? { [REMOTE]: model => RemoteServer.start(options.against, model) }
  : Object.fromEntries(
      Object.entries(NODE_SERVERS).map(([name, settings]) => [
        name,
        model => new NodeServer(client, settings, model),
      ]),
    );

const results = [];
for (const file of filesOf(folder)) {
  const recipe = JSON.parse(readFileSync(folder + file, 'utf8'));
  const played = {};
  for (const [name, start] of Object.entries(servers)) {
    try {
      played[name] = await play(client, recipe, start);
    } catch (error) {
      throw new Error(`${file}, ${name}`, { cause: error });
    }
  }
  results.push({ file, row: recipe.row, attack: recipe.attack, servers: played });
}

if (options.json) console.log(JSON.stringify(results, null, 2));
else if (options.update) rewritten(document, results);
else if (options.check) check();
else list();

function check() {
  const { cells, wrong } = differing(document, results);
  for (const line of wrong) console.log(line);
  console.log(`attacks: ${results.length} played, ${cells} cells, ${wrong.length} differ`);
  process.exitCode = wrong.length ? 1 : 0;
}

function list() {
  for (const { file, servers } of results) {
    console.log(file);
    for (const [name, { findings, seen }] of Object.entries(servers)) {
      const held = findings.map(({ text }) => text).join('; ') || 'holds';
      console.log(`    ${name}: ${held}  (${seen.join(', ')})`);
    }
  }
  const all = results.flatMap(({ servers }) => Object.values(servers));
  const broken = all.filter(({ findings }) => findings.length > 0);
  const unapproved = all.reduce((sum, result) => sum + result.unapproved, 0);
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
