// sse/*.txt: raw response bodies, parsed as a whole and in slices, with the same result.
import { isDeepStrictEqual } from 'node:util';
import { byteStream, chunksOf, json } from '../wire.mjs';
import { filesIn, readText, recorded, stableError } from './fixtures.mjs';

export default async function sse(client, check) {
  for (const path of filesIn('sse', '.txt')) {
    for (const sliceSize of [0, 1, 5]) {
      const got = await parse(client, byteStream(readText(path), sliceSize));
      const want = recorded(path.replace('.txt', '.expected.json'), got);
      check(
        `${path} (slices of ${sliceSize || 'all'})`,
        isDeepStrictEqual(got, want),
        JSON.stringify(got),
      );
    }
  }
}

async function parse(client, bytes) {
  const chunks = [];
  let error = null;
  try {
    for await (const chunk of chunksOf(client, bytes)) chunks.push(chunk);
  } catch (thrown) {
    error = stableError(thrown);
  }
  return { chunks: json(chunks), error: json(error) };
}
