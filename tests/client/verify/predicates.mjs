// predicates.jsonl: for which messages the SDK's two predicates for `sendAutomaticallyWhen` return
// true.
import { isDeepStrictEqual } from 'node:util';
import { readLines, recordLines } from './fixtures.mjs';

const FILE = 'predicates.jsonl';

export default async function predicates(client, check) {
  const observed = readLines(FILE).map(line => ({
    ...line,
    approvalResponsesComplete: client.lastAssistantMessageIsCompleteWithApprovalResponses(line),
    toolCallsComplete: client.lastAssistantMessageIsCompleteWithToolCalls(line),
  }));
  recordLines(FILE, observed);
  for (const [i, want] of readLines(FILE).entries()) {
    check(`${FILE}: ${want.note}`, isDeepStrictEqual(observed[i], want));
  }
}
