// server/*.json: what the SDK's own server streams for given messages and scripted model turns.
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { loadMocks } from '../clients.mjs';
import { json } from '../wire.mjs';
import { filesIn, readJson, recordJson } from './fixtures.mjs';

const { MockLanguageModelV3, simulateReadableStream } = await loadMocks();

export default async function server(client, check) {
  const schema = client.uiMessageChunkSchema();
  for (const path of filesIn('server', '.json')) {
    const fixture = readJson(path);
    const got = await respond(client, fixture);
    for (const [i, chunk] of got.chunks.entries()) {
      check(`${path} chunk ${i}`, (await schema.validate(chunk)).success);
    }
    const stable = withoutVariation(got);
    recordJson(path, { ...fixture, expected: stable });
    check(path, isDeepStrictEqual(stable, readJson(path).expected), JSON.stringify(stable));
  }
}

async function respond(client, { messages, modelTurns, maxSteps = 3, secret }) {
  const tools = toolsOf(client);
  const turns = modelTurns.values();
  const model = new MockLanguageModelV3({
    doStream: async () => ({
      stream: simulateReadableStream({
        chunks: [{ type: 'stream-start', warnings: [] }, ...turns.next().value],
      }),
    }),
  });
  let generatedIds = 0;
  const result = client.streamText({
    model,
    tools,
    messages: await client.convertToModelMessages(messages, { tools }),
    stopWhen: client.stepCountIs(maxSteps),
    onError: () => {},
    experimental_toolApprovalSecret: secret ?? undefined,
    _internal: { generateId: () => `gen-${++generatedIds}` },
  });
  let finish;
  const stream = result.toUIMessageStream({
    originalMessages: messages,
    generateMessageId: () => 'srv-new',
    onFinish: event => (finish = event),
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const { isContinuation, responseMessage } = finish;
  return json({
    chunks,
    modelPrompts: model.doStreamCalls.map(call => call.prompt),
    isContinuation,
    responseMessage,
    responseMessageValidates: (await client.safeValidateUIMessages({ messages: [responseMessage] }))
      .success,
  });
}

const slowly = () => new Promise(resolve => setTimeout(resolve, 50, 'slow'));

const toolsOf = client => ({
  del: client.tool({
    inputSchema: z.object({ path: z.string() }),
    needsApproval: true,
    execute: async ({ path }) => ({ deleted: path }),
  }),
  ask: client.tool({ inputSchema: z.object({}) }),
  slow: client.tool({ inputSchema: z.object({}), execute: slowly }),
  late: client.tool({ inputSchema: z.object({}), needsApproval: true, execute: slowly }),
  free: client.tool({ inputSchema: z.object({}), execute: async () => 'free' }),
  gen: client.tool({
    inputSchema: z.object({}),
    needsApproval: true,
    async *execute() {
      yield { p: 1 };
      yield { p: 2 };
    },
  }),
  bad: client.tool({
    inputSchema: z.object({}),
    needsApproval: true,
    async execute() {
      throw new Error('secret detail');
    },
  }),
});

// Generated ids depend on the order of calls inside the SDK, and the texts of the schema library on
// its version.
const withoutVariation = value =>
  JSON.parse(
    JSON.stringify(value)
      .replace(/"gen-\d+"/g, '"<generated>"')
      .replace(/"errorText":"Invalid input[^"]*"/g, '"errorText":"x"'),
  );
