// A chat route as the documentation of the AI SDK writes it, whose scripted model asks for approval
// to delete a file. It counts how often the file was deleted.
import { createServer } from 'node:http';
import { Readable } from 'node:stream';
import { z } from 'zod';
import { loadClient, loadMocks } from '../clients.mjs';

const { convertToModelMessages, stepCountIs, streamText, tool } = await loadClient('6.0.326');
const { MockLanguageModelV3, simulateReadableStream } = await loadMocks();

/** Starts the server. Returns its URL. */
export async function serveAiSdk({ secret }) {
  let effects = 0;
  const delete_file = tool({
    description: 'Deletes a file.',
    inputSchema: z.object({ path: z.string() }),
    needsApproval: true,
    execute: async () => {
      effects++;
      await new Promise(resolve => setTimeout(resolve, 400));
      return 'deleted';
    },
  });
  const post = async request => {
    const { messages } = await request.json();
    const tools = { delete_file };
    const result = streamText({
      model: scriptedModel(),
      messages: await convertToModelMessages(messages, { tools }),
      tools,
      stopWhen: stepCountIs(5),
      experimental_toolApprovalSecret: secret,
      onError: () => {},
    });
    return result.toUIMessageStreamResponse({ originalMessages: messages });
  };
  return serve(async request => {
    if (new URL(request.url).pathname === '/effects') return new Response(String(effects));
    return await post(request).catch(() => new Response('error', { status: 500 }));
  });
}

/** Calls the tool for the first message, and writes text once there is any result. */
const scriptedModel = () =>
  new MockLanguageModelV3({
    doStream: async ({ prompt }) => {
      const isFirst = prompt.at(-1).role === 'user';
      const call = { type: 'tool-call', toolCallId: 'call_1', toolName: 'delete_file' };
      const content = isFirst
        ? [{ ...call, input: '{"path":"notes.txt"}' }]
        : [
            { type: 'text-start', id: 't' },
            { type: 'text-delta', id: 't', delta: 'That is all.' },
            { type: 'text-end', id: 't' },
          ];
      const unified = isFirst ? 'tool-calls' : 'stop';
      const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
      const finish = { type: 'finish', finishReason: { unified, raw: unified }, usage };
      const chunks = [{ type: 'stream-start', warnings: [] }, ...content, finish];
      return { stream: simulateReadableStream({ chunks }) };
    },
  });

/** Serves a function from a request to a response, on a port of its own. */
async function serve(respond) {
  const server = createServer(async (incoming, outgoing) => {
    const { method, url, headers } = incoming;
    const body = method === 'POST' ? Readable.toWeb(incoming) : undefined;
    const init = { method, headers, body, duplex: 'half' };
    const response = await respond(new Request(`http://${headers.host}${url}`, init));
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    if (response.body) Readable.fromWeb(response.body).on('error', () => {}).pipe(outgoing);
    else outgoing.end();
  });
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  server.unref();
  return `http://127.0.0.1:${server.address().port}`;
}
