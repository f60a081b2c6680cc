// requests/*.json: requests recorded from the real `Chat`, whether the SDK's server accepts their
// messages, and the model messages to which it converts them.
import { isDeepStrictEqual } from 'node:util';
import { json } from '../wire.mjs';
import { filesIn, readJson, recordJson } from './fixtures.mjs';

export default async function requests(client, check) {
  for (const path of filesIn('requests', '.json')) {
    const request = readJson(path);
    const messages = request.body?.messages;
    if (messages === undefined) {
      check(`${path} has no messages`, !('validates' in request));
      continue;
    }
    const { success, error } = await client.safeValidateUIMessages({ messages });
    const got = { validates: success };
    if (success) got.modelMessages = json(await client.convertToModelMessages(messages));
    recordJson(path, { ...request, ...got });
    const { validates, modelMessages } = readJson(path);
    check(`${path} validates: ${validates}`, success === validates, error?.message);
    if (success)
      check(`${path} model messages`, isDeepStrictEqual(got.modelMessages, modelMessages));
  }
}
