// What users do with the demo. Each scenario is played with every version of the client. Scenarios
// that delete a file are played after all others.
import assert from 'node:assert/strict';
import { isSince } from '../clients.mjs';
import { lateResponses } from './late-responses.mjs';

const DENIED = { approved: false, reason: 'I still need that' };
const APPROVED = { approved: true };

/** Since these releases the predicate counts a denied call as settled. */
const COUNTS_DENIED_CALLS = ['6.0.270', '7.0.83'];
/** Since these releases the client finds an approval on a message that is not the last one. */
const FINDS_EARLIER_APPROVALS = ['6.0.290', '7.0.113'];

// Why the predicate returns false, so that the application has to send.
const OTHER_ANSWER_MISSING = 'another approval is still to be answered';
const NOT_THE_LAST_MESSAGE = 'the answered approval is not on the last message';
const DENIED_CALL_NOT_COUNTED = `before ${COUNTS_DENIED_CALLS.join(' and ')} a denied call counts as open`;

export const scenarios = [
  ...lateResponses,
  {
    name: 'text',
    async play(talk) {
      await talk.say('hello');
      talk.replyOf();
      await talk.end();
    },
  },
  {
    name: 'text, then regenerated',
    async play(talk) {
      await talk.say('hello');
      await talk.regenerate();
      talk.replyOf();
      await talk.end();
    },
  },
  {
    name: 'text, then edited',
    async play(talk) {
      await talk.say('hello');
      await talk.say('weather');
      await talk.edit(talk.message(0), 'good bye');
      assert.match(talk.replyOf(), /good bye/);
      await talk.end();
    },
  },
  {
    name: 'weather',
    async play(talk) {
      await talk.say('weather');
      talk.toolPart('get_weather', 'output-available');
      talk.replyOf();
      await talk.end();
    },
  },
  {
    name: 'fail',
    async play(talk) {
      await talk.sayAndExpectError('fail');
      await talk.end();
    },
  },
  {
    name: 'fail, then a new message',
    async play(talk) {
      await talk.sayAndExpectError('fail');
      await talk.say('hello');
      talk.replyOf();
      await talk.end({ turns: 2 });
    },
  },
  {
    name: 'slow, stopped in the browser and on the server, then a new message',
    async play(talk) {
      await talk.sayAndInterrupt('slow', async () => {
        await talk.stop();
        await talk.stopOnServer();
      });
      await talk.say('hello');
      talk.replyOf();
      // The client stopped reading before the end of the text.
      await talk.end({ turns: 2, open: ['streaming'] });
    },
  },
  {
    name: 'slow, stopped in the browser only, and the model goes on from the partial answer',
    async play(talk) {
      await talk.sayAndInterrupt('slow', talk.stop);
      const shown = talk.replyOf();
      await talk.say('Please go on');
      // The server may have kept more than the page has shown.
      const [next] = talk.replyOf().split(' ').map(Number);
      assert(next > Number(shown.split(' ').at(-1)), `${next} follows ${shown}`);
      await talk.end({ turns: 2, open: ['streaming'] });
    },
  },
  {
    name: 'slow, stopped on the server while the browser reads',
    async play(talk) {
      await talk.sayAndInterrupt('slow', talk.stopOnServer);
      await talk.end();
    },
  },
  ...[
    {
      how: 'output',
      result: { output: { latitude: 52.5, longitude: 13.4 } },
      state: 'output-available',
    },
    {
      how: 'error',
      result: { state: 'output-error', errorText: 'the person said no' },
      state: 'output-error',
    },
  ].map(({ how, result, state }) => ({
    name: `location, answered with an ${how}`,
    helper: 'toolCalls',
    async play(talk) {
      await talk.say('location');
      await talk.giveOutput(talk.toolPart('get_location', 'input-available'), result);
      talk.toolPart('get_location', state);
      talk.replyOf();
      await talk.end();
    },
  })),
  {
    name: 'delete, denied with a reason',
    helper: 'approvals',
    async play(talk, { world }) {
      await denyDeletion(talk, world, DENIED);
      await talk.end();
    },
  },
  {
    name: 'delete, denied without a reason',
    helper: 'approvals',
    async play(talk, { world }) {
      await denyDeletion(talk, world, { approved: false });
      await talk.end();
    },
  },
  {
    name: 'delete, denied, then a new message',
    helper: 'approvals',
    async play(talk, { world }) {
      await denyDeletion(talk, world, DENIED);
      await talk.say('hello');
      talk.replyOf();
      await world.mustHold(world.keptFile);
      await talk.end({ turns: 2 });
    },
  },
  {
    name: 'delete, a new message instead of an answer',
    helper: 'approvals',
    async play(talk, { world }) {
      await sendMessageInsteadOfAnswering(talk, world);
      await talk.end({ turns: 2, open: ['approval-requested'] });
    },
  },
  ...[
    { answer: APPROVED, settledAs: 'output-error' },
    { answer: DENIED, settledAs: 'output-denied' },
  ].map(({ answer, settledAs }) => ({
    name: `delete, a new message, then ${decisionName(answer)} after all`,
    helper: 'approvals',
    async play(talk, { world, version }) {
      const part = await sendMessageInsteadOfAnswering(talk, world);
      if (isSince(version, FINDS_EARLIER_APPROVALS)) {
        await talk.answerAndSend(part, answer, NOT_THE_LAST_MESSAGE);
        // The new message superseded the request. An approval is too late, and gets an error.
        talk.toolPart('delete_file', settledAs, talk.message(1));
        // The model is not called again for a message that another one follows.
        talk.replyOf();
        await world.mustHold(part.input.path);
        await talk.end({ turns: 2 });
      } else {
        await talk.answer(part, answer);
        await talk.end({ turns: 2, open: ['approval-requested'] });
      }
    },
  })),
  {
    name: 'mixed: transfer approved with another amount, deletion denied',
    helper: 'approvals',
    play: changeAmount,
  },
  {
    name: 'mixed: transfer approved, deletion left open, then "No, stop"',
    helper: 'approvals',
    play: stopWithNewMessage,
  },
  {
    name: 'delete, approved',
    helper: 'approvals',
    deletes: true,
    async play(talk, { world }) {
      const part = await askForDeletion(talk, 'delete', world.claimFile());
      await talk.answerAndSend(part, APPROVED);
      const { output } = talk.toolPart('delete_file', 'output-available');
      await world.mustHaveDeleted(part.input, output);
      talk.replyOf();
      await talk.end();
    },
  },
  ...[APPROVED, DENIED].flatMap(deletion =>
    [APPROVED, DENIED].flatMap(transfer =>
      [
        ['delete_file', 'transfer'],
        ['transfer', 'delete_file'],
      ].flatMap(order => [
        mixed({ delete_file: deletion, transfer }, order, { together: true }),
        mixed({ delete_file: deletion, transfer }, order, { together: false }),
      ]),
    ),
  ),
];

/** An approval that was not sent before the user wrote "No, stop" has no effect. */
async function stopWithNewMessage(talk, { world }) {
  const asked = {
    delete_file: await askForDeletion(talk, 'mixed', world.keptFile),
    transfer: talk.toolPart('transfer', 'approval-requested'),
  };
  const described = talk.descriptionOf(asked.transfer);
  await talk.answer(asked.transfer, APPROVED);

  await talk.say('No wait, stop, do not send anything');

  // The client shows the part of an earlier message as it was, and beside it the new data.
  assert.equal(talk.approvalOf(asked.transfer), 'lapsed');
  assert.equal(talk.approvalOf(asked.delete_file), 'superseded');
  const stored = await talk.toolPartInHistory('transfer');
  assert.equal(stored.part.state, 'output-error');
  assert.equal(stored.approval, 'lapsed');
  assert.match(stored.part.errorText, /approved/);
  assert.match((await talk.toolPartInHistory('delete_file')).part.errorText, /not executed/);

  // The model may ask again, with the same description.
  await talk.say(`mixed ${world.keptFile}`);
  const again = talk.toolPart('transfer', 'approval-requested');
  assert.equal(talk.descriptionOf(again), described);
  await world.mustHold(asked.delete_file.input.path);
  await talk.end({ turns: 3, open: ['approval-requested', 'approval-responded'] });
}

async function changeAmount(talk, { world }) {
  const asked = {
    delete_file: await askForDeletion(talk, 'mixed', world.keptFile),
    transfer: talk.toolPart('transfer', 'approval-requested'),
  };
  const original = asked.transfer.input;
  const changed = { ...original, amount: 41 };
  talk.changeInput(asked.transfer, changed);
  world.approveTransfer(changed);
  await talk.answer(asked.transfer, APPROVED);
  await talk.answerAndSend(asked.delete_file, DENIED);

  const { input, output, approval } = talk.toolPart('transfer', 'output-available');
  world.transferDone(changed);
  assert.deepEqual(input, changed, 'the client shows the changed input');
  assert.deepEqual(output, { ...changed, sent: true }, 'the tool ran with it');
  assert.equal(approval.approved, true, 'the call keeps its approval');
  const { changedInput, originalInput } = talk.approvalDataOf(asked.transfer);
  assert.deepEqual({ changedInput, originalInput }, { changedInput: changed, originalInput: original });
  const stored = await talk.toolPartInHistory('transfer');
  assert.deepEqual(stored.part.input, changed, 'the server stores the changed input');
  await world.mustHold(asked.delete_file.input.path);
  await talk.end();
}

async function denyDeletion(talk, world, answer) {
  const part = await askForDeletion(talk, 'delete', world.keptFile);
  await talk.answerAndSend(part, answer);
  const { approval } = talk.toolPart('delete_file', 'output-denied');
  assert.equal(approval.approved, false);
  assert.equal(approval.reason, answer.reason);
  mustMention(talk.replyOf(), answer);
  await world.mustHold(part.input.path);
}

async function sendMessageInsteadOfAnswering(talk, world) {
  const part = await askForDeletion(talk, 'delete', world.keptFile);
  await talk.say('hello');
  talk.replyOf();
  await world.mustHold(part.input.path);
  return part;
}

/** Sends a word for which the demo requests to delete `file`, or a file of its choice. */
async function askForDeletion(talk, word, file) {
  await talk.say(file ? `${word} ${file}` : word);
  const part = talk.toolPart('delete_file', 'approval-requested');
  if (file) assert.equal(part.input.path, file, 'the file to be deleted');
  return part;
}

/** Two approvals in one step, answered in `order` and sent together, or one at a time. */
function mixed(answers, order, { together }) {
  const [first, second] = order;
  const story = order
    .map(tool => `${tool} ${decisionName(answers[tool])}`)
    .join(together ? ', ' : ', sent, then ');
  return {
    name: `mixed: ${story}`,
    helper: 'approvals',
    deletes: answers.delete_file.approved,
    async play(talk, { world, version }) {
      const file = answers.delete_file.approved ? world.claimFile() : world.keptFile;
      const asked = {
        delete_file: await askForDeletion(talk, 'mixed', file),
        transfer: talk.toolPart('transfer', 'approval-requested'),
      };
      talk.toolPart('get_weather', 'output-available');
      const { id } = talk.lastMessage;
      if (answers.transfer.approved) world.approveTransfer(asked.transfer.input);

      if (together) {
        await talk.answer(asked[first], answers[first]);
        await talk.answerAndSend(asked[second], answers[second]);
      } else {
        await talk.answerAndSend(asked[first], answers[first], OTHER_ANSWER_MISSING);
        settled(talk, first);
        talk.toolPart(second, 'approval-requested');
        const helped = answers[first].approved || isSince(version, COUNTS_DENIED_CALLS);
        await talk.answerAndSend(
          asked[second],
          answers[second],
          helped ? undefined : DENIED_CALL_NOT_COUNTED,
        );
      }

      assert.equal(talk.lastMessage.id, id, 'id of the continued message');
      talk.toolPart('get_weather', 'output-available');
      const deletion = settled(talk, 'delete_file');
      if (answers.delete_file.approved)
        await world.mustHaveDeleted(asked.delete_file.input, deletion.output);
      else await world.mustHold(asked.delete_file.input.path);
      settled(talk, 'transfer');
      if (answers.transfer.approved) world.transferDone(asked.transfer.input);
      await world.transfersMustBePlausible();
      // The model is not called for the first of two answers, and reads both with the second.
      for (const tool of order) mustMention(talk.replyOf(), answers[tool]);
      await talk.end();
    },
  };

  function settled(talk, tool) {
    return talk.toolPart(tool, answers[tool].approved ? 'output-available' : 'output-denied');
  }
}

function mustMention(reply, { approved, reason }) {
  if (!approved && reason)
    assert(reply.includes(reason), `the reply does not mention the reason: ${reply}`);
}

function decisionName({ approved }) {
  return approved ? 'approved' : 'denied';
}
