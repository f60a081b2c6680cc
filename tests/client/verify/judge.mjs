// judge.mjs on streams/*.jsonl: its results must be the recorded ones.
import { isDeepStrictEqual } from 'node:util';
import { verdict } from '../judge/verdict.mjs';
import { json, sseBody } from '../wire.mjs';
import { filesIn, readJson, readStream } from './fixtures.mjs';

export default async function judge(client, check) {
  for (const path of filesIn('streams', '.jsonl')) {
    const { message, chunks, expected } = readStream(path);
    const got = json(await verdict(client, sseBody(chunks), { message, readOn: true }));
    const want = readJson(expected);
    const shown = 'shown' in got ? got.shown : got.message;
    check(`judge ${path}`, isDeepStrictEqual(shown, want.message), JSON.stringify(got));

    const [error] = want.errors;
    const reported = got.rejected?.message ?? got.errorText;
    check(`judge ${path}: error`, error ? reported.startsWith(error.message) : reported === null, reported);
    if (error?.chunkId) {
      const { id, toolCallId = id } = chunks[got.rejected.index];
      check(`judge ${path}: index`, toolCallId === error.chunkId, `${got.rejected.index}`);
    }
  }
}
