// signature.json: signed approvals, recomputed here and then put to the SDK, which must run the
// tool for the true signature and refuse a tampered one.
import { createHash, createHmac } from 'node:crypto';
import { z } from 'zod';
import { loadMocks } from '../clients.mjs';
import { readJson } from './fixtures.mjs';

const { MockLanguageModelV3, simulateReadableStream } = await loadMocks();

export default async function signature(client, check) {
  for (const vector of readJson('signature.json').vectors) {
    const { note, secret, approvalId, toolCallId, toolName, canonicalInput } = vector;
    const digest = createHash('sha256').update(canonicalInput).digest('base64url');
    const payload = [approvalId, toolCallId, toolName, digest].join('\n');
    const signed = createHmac('sha256', secret).update(payload).digest('base64url');
    check(`signature ${note}`, digest === vector.inputDigest && signed === vector.signature);

    const tampered = (signed[0] === 'A' ? 'B' : 'A') + signed.slice(1);
    check(`signature accepted by the SDK: ${note}`, await runsTheTool(client, vector, signed));
    check(
      `tampered signature refused by the SDK: ${note}`,
      !(await runsTheTool(client, vector, tampered)),
    );
  }
}

async function runsTheTool(client, { secret, approvalId, toolCallId, toolName, input }, signature) {
  let executed = false;
  const execute = async () => {
    executed = true;
    return 'ok';
  };
  const result = client.streamText({
    model: silentModel(),
    onError: () => {},
    experimental_toolApprovalSecret: secret,
    tools: { [toolName]: client.tool({ inputSchema: z.any(), needsApproval: true, execute }) },
    messages: [
      { role: 'user', content: 'x' },
      {
        role: 'assistant',
        content: [
          { type: 'tool-call', toolCallId, toolName, input },
          { type: 'tool-approval-request', approvalId, toolCallId, signature },
        ],
      },
      { role: 'tool', content: [{ type: 'tool-approval-response', approvalId, approved: true }] },
    ],
  });
  // a refusal is an `error` chunk or a thrown error: either way the tool did not run
  await client.consumeStream({ stream: result.toUIMessageStream(), onError: () => {} });
  return executed;
}

function silentModel() {
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
  const chunks = [
    { type: 'stream-start', warnings: [] },
    { type: 'finish', finishReason: { unified: 'stop', raw: 'stop' }, usage },
  ];
  return new MockLanguageModelV3({
    doStream: async () => ({ stream: simulateReadableStream({ chunks }) }),
  });
}
