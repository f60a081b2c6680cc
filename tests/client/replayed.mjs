// Has the same conversations with a server in each run. Prints the messages that the client holds at
// the end of each conversation, as one line of JSON. Then prints "conversations: N".
//   node replayed.mjs BASE_URL [--version 6.0.326]
import assert from 'node:assert/strict';
import { parseArgs } from 'node:util';
import { loadClient, REFERENCE } from './clients.mjs';
import { Conversation } from './scenarios/conversation.mjs';

const {
  values: { version },
  positionals: [baseUrl],
} = parseArgs({
  allowPositionals: true,
  options: { version: { type: 'string', default: REFERENCE } },
});
if (!baseUrl) throw new Error('which server? node replayed.mjs BASE_URL');

const conversations = [
  async talk => {
    await talk.say('delete');
    const part = talk.toolPart('delete_file', 'approval-requested');
    await talk.answerAndSend(part, { approved: true });
    talk.toolPart('delete_file', 'output-available');
    await talk.say('hello');
    await talk.end({ turns: 2 });
  },
  async talk => {
    // No call runs meanwhile: its output would come before the last question at times.
    await talk.say('clear out notes.txt and budget.xlsx');
    const deletions = () => talk.lastMessage.parts.filter(({ type }) => type === 'tool-delete_file');
    const [denied, approved] = deletions();
    await talk.answer(denied, { approved: false, reason: 'I still need that' });
    await talk.answerAndSend(approved, { approved: true, reason: 'as agreed' });
    assert.deepEqual(deletions().map(({ state }) => state), ['output-denied', 'output-available']);
    await talk.end();
  },
  async talk => {
    await talk.say('location');
    const part = talk.toolPart('get_location', 'input-available');
    await talk.giveOutput(part, { output: { latitude: 52.5, longitude: 13.4 } });
    await talk.end();
  },
  async talk => {
    await talk.say('weather');
    await talk.regenerate();
    talk.toolPart('get_weather', 'output-available');
    await talk.end();
  },
];

const client = await loadClient(version);
for (const [number, play] of conversations.entries()) {
  let ids = 0;
  const talk = new Conversation(client, baseUrl, 'either', () => `person-${number}-${ids++}`);
  await play(talk);
  console.log(JSON.stringify(talk.messages));
}
console.log(`conversations: ${conversations.length}`);
