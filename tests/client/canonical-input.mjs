// The canonical form in which the SDK's server hashes the input of a tool call. The SDK does not
// export it. It hashes that text when it signs an approval request, so the hash function is
// observed while a scripted model makes the call.
import { z } from 'zod';
import { loadClient, loadMocks, NEWEST, REFERENCE } from './clients.mjs';

const sdks = new Map();
for (const version of [REFERENCE, NEWEST]) {
  const { MockLanguageModelV3 } = await loadMocks(version);
  const { generateText, tool } = await loadClient(version);
  sdks.set(version, { generateText, tool, MockLanguageModelV3 });
}

let hashed;
const { subtle } = crypto;
const { digest } = subtle;
subtle.digest = (algorithm, bytes) => {
  hashed = new TextDecoder().decode(bytes);
  return digest.call(subtle, algorithm, bytes);
};

/**
 * The text that the SDK hashes for an input that the model gave as `inputText`; null if the SDK
 * does not request approval. One call at a time.
 */
export async function canonicalInputBy(version, inputText) {
  const { generateText, tool, MockLanguageModelV3 } = sdks.get(version);
  const content = [{ type: 'tool-call', toolCallId: 'c', toolName: 't', input: inputText }];
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
  const finishReason = { unified: 'tool-calls', raw: '' };
  hashed = undefined;
  const result = await generateText({
    model: new MockLanguageModelV3({
      doGenerate: async () => ({ content, finishReason, usage, warnings: [] }),
    }),
    tools: { t: tool({ inputSchema: z.any(), needsApproval: true, execute: async () => 'ok' }) },
    experimental_toolApprovalSecret: 'secret',
    prompt: 'x',
  });
  const isRequested = result.content.some(part => part.type === 'tool-approval-request');
  return isRequested ? hashed : null;
}
