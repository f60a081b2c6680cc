// streams/*.jsonl: a message to continue and chunks, passed as bytes through parser, schema and
// reducer.
import { isDeepStrictEqual } from 'node:util';
import { byteStream, chunksOf, json, sseBody } from '../wire.mjs';
import { filesIn, readStream, recorded, stableError } from './fixtures.mjs';

export default async function streams(client, check) {
  for (const path of filesIn('streams', '.jsonl')) {
    const { message, chunks, expected } = readStream(path);
    const got = await reduce(client, message, chunks);
    const want = recorded(expected, got);
    check(path, isDeepStrictEqual(got, want), JSON.stringify(got));
  }
}

async function reduce(client, message, chunks) {
  const errors = [];
  let snapshots = 0;
  let last;
  const reader = client.readUIMessageStream({
    message,
    // Slices of 7 bytes, so that every chunk is split.
    stream: chunksOf(client, byteStream(sseBody(chunks), 7)),
    onError: error => errors.push(stableError(error)),
  });
  for await (const snapshot of reader) {
    snapshots++;
    last = snapshot;
  }
  return { snapshots, errors: json(errors), message: json(last) };
}
