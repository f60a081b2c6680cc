#!/usr/bin/env bash
# ai 7.0.173, 2026-11-30, Node 20.
#
# Behaviour: in one step of an answer one call was denied (state `output-denied`), and a second call is one that the page
# executes. The page executes it and adds its output.
# Neither of the two functions that the package offers for `sendAutomaticallyWhen` returns true for this message: the one
# for tool calls counts `output-available` and `output-error` as complete and a denial not, and the one for approvals
# requires an approval that the user has just answered. With `output-error` in place of the denial the first one does.
#
# What most would guess: a denied call is complete, so that the output of the other call is sent.
#
# Whom it matters to: pages that combine tools of the browser with calls that a server denies. The output stays in the
# page, without an error, and the answer does not go on. Send `tool-output-error` for a refused call in such a step, or
# write the function yourself.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
cat >main.mjs <<'JS'
import * as ai from 'ai';

const call = (name, rest) => ({ type: `tool-${name}`, toolCallId: name, input: {}, ...rest });
const located = call('locate', { state: 'output-available', output: 'Bern' });
const denied = call('pay', { state: 'output-denied', approval: { id: 'a', approved: false } });
const failed = call('pay', { state: 'output-error', errorText: 'not permitted' });
for (const refused of [denied, failed]) {
  const parts = [{ type: 'step-start' }, refused, located];
  const messages = [{ id: 'm', role: 'assistant', parts }];
  const checked = await ai.safeValidateUIMessages({ messages });
  console.log(
    refused.state,
    `valid: ${checked.success},`,
    `calls: ${ai.lastAssistantMessageIsCompleteWithToolCalls({ messages })},`,
    `approvals: ${ai.lastAssistantMessageIsCompleteWithApprovalResponses({ messages })}`,
  );
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'output-denied valid: true, calls: false, approvals: false
output-error valid: true, calls: true, approvals: false' ]
