// chunks.*.jsonl: one chunk on each line, validated by the real schema. It returns a valid chunk
// unchanged.
import { isDeepStrictEqual } from 'node:util';
import { json } from '../wire.mjs';
import { readLines } from './fixtures.mjs';

export default async function chunks(client, check) {
  const schema = client.uiMessageChunkSchema();
  for (const { note, chunk } of readLines('chunks.valid.jsonl')) {
    const result = await schema.validate(chunk);
    check(
      `chunks.valid.jsonl: ${note}`,
      result.success && isDeepStrictEqual(json(result.value), chunk),
    );
  }
  for (const { note, chunk } of readLines('chunks.invalid.jsonl')) {
    check(`chunks.invalid.jsonl: ${note}`, !(await schema.validate(chunk)).success);
  }
}
