// Leads the real client through conversations with running servers of `examples/adapter.rs`.
//   node adapter.mjs BASE_URL…
// Each server has one conversation at a time, so its effects are those of this conversation. The servers work at the
// same time, because a client mostly waits.
// Prints a line per failure, then "adapter scenarios: N ran, M failed".
import assert from 'node:assert/strict';
import { loadClient, V6, V7 } from './clients.mjs';
import { Conversation } from './scenarios/conversation.mjs';

const servers = process.argv.slice(2);
if (servers.length === 0) throw new Error('which servers? node adapter.mjs BASE_URL…');

const effects = async server => Number(await (await fetch(`${server}/effects`)).text());

/** Each begins with a message, after which the example asks for approval to delete a file. */
const scenarios = {
  async approve(talk) {
    await talk.say('Delete my notes');
    const part = talk.toolPart('delete_file', 'approval-requested');
    assert.deepEqual(part.input, { path: 'notes.txt' });
    await talk.answerAndSend(part, { approved: true });
    const done = talk.toolPart('delete_file', 'output-available');
    assert.deepEqual(done.output, { path: 'notes.txt' });
    assert.equal(talk.approvalOf(done), 'approved');
    assert.match(talk.replyOf(), /notes\.txt/);
    await talk.end();
    return 1;
  },
  async 'deny with a reason'(talk, version) {
    await talk.say('Delete my notes');
    const part = talk.toolPart('delete_file', 'approval-requested');
    await talk.answerAndSend(part, { approved: false, reason: 'I still need them' });
    talk.toolPart('delete_file', 'output-denied');
    assert.match(talk.replyOf(), /not executed.*Reason: I still need them/);
    await talk.end();
    return 0;
  },
  async mixed(talk) {
    await talk.say('Delete my notes, and where am I?');
    const location = talk.toolPart('get_location', 'input-available');
    await talk.answer(talk.toolPart('delete_file', 'approval-requested'), { approved: true });
    await talk.giveOutput(location, { tool: 'get_location', output: { city: 'Lisbon' } });
    talk.toolPart('delete_file', 'output-available');
    assert.match(talk.replyOf(), /notes\.txt/);
    await talk.end();
    return 1;
  },
  async 'client result'(talk) {
    await talk.say('Delete my notes');
    const part = talk.toolPart('delete_file', 'approval-requested');
    await talk.answerAndSend(part, { approved: true });
    await talk.say('And where am I?');
    const location = talk.toolPart('get_location', 'input-available');
    await talk.giveOutput(location, { tool: 'get_location', output: { city: 'Lisbon' } });
    assert.match(talk.replyOf(), /Your browser says.*Lisbon/);
    await talk.end({ turns: 2 });
    return 1;
  },
  async 'another message instead of an answer'(talk) {
    await talk.say('Delete my notes');
    await talk.say('Never mind');
    await talk.end({ turns: 2, open: ['approval-requested'] });
    return 0;
  },
};

let ran = 0;
let failed = 0;
// An iterator that all servers share: each takes the next version when it has finished one.
const versions = [...V6, ...V7].values();
async function lead(server) {
  for (const version of versions) {
    const client = await loadClient(version);
    for (const [name, play] of Object.entries(scenarios)) {
      ran++;
      try {
        const before = await effects(server);
        const expected = await play(new Conversation(client, server, 'either'), version);
        const found = (await effects(server)) - before;
        assert.equal(found, expected, `${found} effects instead of ${expected}`);
      } catch (error) {
        failed++;
        console.log(`FAIL ${version} ${name}: ${error.message.replace(/\s+/g, ' ')}`);
      }
    }
  }
}
await Promise.all(servers.map(lead));
console.log(`adapter scenarios: ${ran} ran, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
