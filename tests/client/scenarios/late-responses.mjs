// Responses to an approval request that reach the server after something else has decided about it.
// The first decision counts. Every place then shows the same: the part and the data part on the
// page that answered late, its text, and the history of the server, which a page reads that is
// opened again. `crates/chat/tests/chat/approvals/late_responses.rs` has the cases that the demo cannot produce: expired,
// revoked, failed, still executing, outcome unknown, and decided by another principal.
import assert from 'node:assert/strict';

const APPROVE = { approved: true };
const DENY = { approved: false, reason: 'too late' };

/**
 * What happened before the late response, and what is shown afterwards. A late denial of a call
 * that did not run is shown as a denial: that is true, and the client accepts no other end of a
 * denied part. The data part shows what happened first.
 */
const TABLE = [
  {
    happened: 'approved on another page',
    act: (talk, part) => talk.decideElsewhere(part, { approved: true }),
    runs: true,
    approval: 'approved',
    inHistory: 'output-available',
    afterLate: { approve: 'output-available', deny: 'output-available' },
  },
  {
    happened: 'denied on another page',
    act: (talk, part) => talk.decideElsewhere(part, { approved: false }),
    approval: 'denied',
    inHistory: 'output-denied',
    afterLate: { approve: 'output-error', deny: 'output-denied' },
  },
  {
    happened: 'superseded by a message from another page',
    act: (talk, part) => talk.writeElsewhere(part),
    approval: 'superseded',
    inHistory: 'output-error',
    afterLate: { approve: 'output-error', deny: 'output-denied' },
  },
  {
    happened: 'approved together with a message from another page',
    act: (talk, part) => talk.writeElsewhere(part, { approved: true }),
    approval: 'lapsed',
    inHistory: 'output-error',
    afterLate: { approve: 'output-error', deny: 'output-denied' },
  },
  {
    happened: 'denied together with a message from another page',
    act: (talk, part) => talk.writeElsewhere(part, { approved: false }),
    approval: 'denied',
    inHistory: 'output-denied',
    afterLate: { approve: 'output-error', deny: 'output-denied' },
  },
];

export const lateResponses = TABLE.flatMap(row =>
  [
    ['approve', APPROVE],
    ['deny', DENY],
  ].map(([late, answer]) => ({
    name: `delete, ${row.happened}, then a late ${late}`,
    helper: 'approvals',
    deletes: row.runs,
    async play(talk, { world }) {
      const file = row.runs ? world.claimFile() : world.keptFile;
      await talk.say(`delete ${file}`);
      const part = talk.toolPart('delete_file', 'approval-requested');
      await row.act(talk, part);
      const before = await talk.toolPartInHistory('delete_file');
      assert.equal(before.part.state, row.inHistory, 'state in the history');
      assert.equal(before.approval, row.approval, 'approval in the history');

      await talk.answerAndSend(part, answer);

      const shown = talk.toolPart('delete_file', row.afterLate[late]);
      assert.equal(talk.approvalOf(part), row.approval, 'approval on the page');
      const after = await talk.toolPartInHistory('delete_file');
      assert.deepEqual(after.part, before.part, 'the late response changes no history');
      assert.equal(after.approval, row.approval);
      if (row.runs) {
        assert.deepEqual(shown.output, after.part.output, 'output on the page and in the history');
        await world.mustHaveDeleted(part.input, shown.output);
      } else {
        await world.mustHold(part.input.path);
      }
      // A second late response, from another page.
      await talk.decideElsewhere(part, { approved: !answer.approved });
      const reloaded = await talk.toolPartInHistory('delete_file');
      assert.deepEqual(reloaded, after, 'the second late response changes no history');
      if (!row.runs) await world.mustHold(part.input.path);
      // The version 6 client keeps `approved: false` beside an output, which its own validation
      // rejects. No chunk of version 6 removes it.
      await talk.end({ isValid: !(row.runs && late === 'deny') });
    },
  })),
);
