// messages.*.jsonl: one message on each line, validated by the real validator without schemas of an
// application.
import { readLines } from './fixtures.mjs';

export default async function messages(client, check) {
  for (const [file, valid] of [
    ['messages.valid.jsonl', true],
    ['messages.invalid.jsonl', false],
  ]) {
    for (const { note, message } of readLines(file)) {
      const result = await client.safeValidateUIMessages({ messages: [message] });
      check(`${file}: ${note}`, result.success === valid, result.error?.message);
    }
  }
}
