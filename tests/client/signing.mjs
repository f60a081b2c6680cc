// What the SDK's server signs when a model calls a tool that needs approval, and whether it lets the
// tool run for a signature that comes back. Its own code does both; what goes through its hash and
// its HMAC is read on the way.
import { z } from 'zod';
import { loadClient, loadMocks, NEWEST, REFERENCE } from './clients.mjs';

const sdks = new Map();
for (const version of [REFERENCE, NEWEST]) {
  const { MockLanguageModelV3 } = await loadMocks(version);
  const { generateText, tool } = await loadClient(version);
  sdks.set(version, { generateText, tool, MockLanguageModelV3 });
}

let hashed;
let signed;
const { subtle } = crypto;
const { digest, sign } = subtle;
subtle.digest = (algorithm, bytes) => {
  hashed = new TextDecoder().decode(bytes);
  return digest.call(subtle, algorithm, bytes);
};
subtle.sign = (algorithm, key, bytes) => {
  signed = { canonicalInput: hashed, payload: new TextDecoder().decode(bytes) };
  return sign.call(subtle, algorithm, key, bytes);
};

/**
 * `{canonicalInput, payload, signature}` of a call whose input the model gave as the text
 * `inputText`; null if the SDK does not ask about it. One call at a time.
 */
export async function signedBy(version, { secret, approvalId, toolCallId, toolName, inputText }) {
  const call = { type: 'tool-call', toolCallId, toolName, input: inputText };
  signed = undefined;
  const content = await generate(version, {
    model: [call],
    secret,
    toolName,
    prompt: 'x',
    _internal: { generateId: () => approvalId },
  });
  const request = content.find(part => part.type === 'tool-approval-request');
  return request ? { ...signed, signature: request.signature } : null;
}

/** Whether the SDK runs the tool for a person's yes under this signature. */
export async function runsTheTool(version, vector, signature) {
  const { secret, approvalId, toolCallId, toolName, inputText } = vector;
  const call = { type: 'tool-call', toolCallId, toolName, input: JSON.parse(inputText) };
  const request = { type: 'tool-approval-request', approvalId, toolCallId, signature };
  const answer = { type: 'tool-approval-response', approvalId, approved: true };
  let executed = false;
  const messages = [
    { role: 'user', content: 'x' },
    { role: 'assistant', content: [call, request] },
    { role: 'tool', content: [answer] },
  ];
  try {
    await generate(version, {
      model: [],
      secret,
      toolName,
      messages,
      execute: async () => {
        executed = true;
        return 'ok';
      },
    });
  } catch (error) {
    if (error.name !== 'AI_InvalidToolApprovalSignatureError') throw error;
  }
  return executed;
}

async function generate(version, { model, secret, toolName, execute, ...rest }) {
  const { generateText, tool, MockLanguageModelV3 } = sdks.get(version);
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
  const finishReason = { unified: model.length ? 'tool-calls' : 'stop', raw: '' };
  const result = await generateText({
    model: new MockLanguageModelV3({
      doGenerate: async () => ({ content: model, finishReason, usage, warnings: [] }),
    }),
    tools: {
      [toolName]: tool({
        inputSchema: z.any(),
        needsApproval: true,
        execute: execute ?? (async () => 'ok'),
      }),
    },
    experimental_toolApprovalSecret: secret,
    ...rest,
  });
  return result.content;
}
