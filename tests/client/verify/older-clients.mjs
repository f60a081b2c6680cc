// older-clients/*.jsonl: streams with only keys that 6.0.0 knows, which older clients read
// differently.
import { isDeepStrictEqual } from 'node:util';
import { loadClient, REFERENCE } from '../clients.mjs';
import { verdict } from '../judge/verdict.mjs';
import { json, sseBody } from '../wire.mjs';
import { filesIn, readStream, recorded } from './fixtures.mjs';

const VERSIONS = ['6.0.0', '6.0.230', REFERENCE];

export default async function olderClients(_client, check) {
  for (const path of filesIn('older-clients', '.jsonl')) {
    const { message, chunks } = readStream(path);
    const got = {};
    for (const version of VERSIONS) {
      const client = await loadClient(version);
      const { rejected, message: held } = await verdict(client, sseBody(chunks), { message });
      got[version] = json({ refused: rejected?.index ?? null, message: held });
    }
    const want = recorded(path.replace('.jsonl', '.expected.json'), got);
    check(path, isDeepStrictEqual(got, want), JSON.stringify(got));
    const differs = version => !isDeepStrictEqual(got[version], got[REFERENCE]);
    check(`${path}: differs`, VERSIONS.some(differs), JSON.stringify(got));
  }
}
