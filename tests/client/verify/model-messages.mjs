// model-messages.jsonl: UI messages, and the model messages to which the SDK converts them.
import { isDeepStrictEqual } from 'node:util';
import { json } from '../wire.mjs';
import { readLines, recordLines } from './fixtures.mjs';

const FILE = 'model-messages.jsonl';

export default async function modelMessages(client, check) {
  const observed = [];
  for (const line of readLines(FILE)) {
    const { messages } = line;
    observed.push({
      ...line,
      modelMessages: json(await client.convertToModelMessages(messages)),
      modelMessagesIgnoringIncomplete: json(
        await client.convertToModelMessages(messages, { ignoreIncompleteToolCalls: true }),
      ),
    });
  }
  recordLines(FILE, observed);
  for (const [i, want] of readLines(FILE).entries()) {
    for (const key of ['modelMessages', 'modelMessagesIgnoringIncomplete']) {
      check(`${FILE}: ${want.note} (${key})`, isDeepStrictEqual(observed[i][key], want[key]));
    }
  }
}
