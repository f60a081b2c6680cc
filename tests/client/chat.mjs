// Passes responses to the real `Chat`: one line of JSON in, one line out, in the same order.
// README.md describes both formats.
//   node chat.mjs
import { createInterface } from 'node:readline';
import { loadClient, REFERENCE } from './clients.mjs';
import { memoryChat } from './memory-chat.mjs';
import { json } from './wire.mjs';

const client = await loadClient(REFERENCE);
const MemoryChat = memoryChat(client);

// Thrown before the reducer sees the chunk; everything else is thrown by the reducer.
const READING_ERRORS = ['AI_TypeValidationError', 'AI_JSONParseError'];

const USER = { id: 'user-1', role: 'user', parts: [{ type: 'text', text: 'Hi' }] };

/** The real transport. It reads the given response instead of fetching one, and counts the chunks. */
class Transport extends client.DefaultChatTransport {
  read = 0;
  errorText = null;

  constructor(sse) {
    super({ fetch: async () => new Response(sse) });
  }
  processResponseStream(stream) {
    const counting = new TransformStream({
      transform: (chunk, controller) => {
        this.read++;
        if (chunk.type === 'error') this.errorText ??= chunk.errorText;
        controller.enqueue(chunk);
      },
    });
    return super.processResponseStream(stream).pipeThrough(counting);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  if (line) console.log(JSON.stringify(await result(JSON.parse(line))));
}

async function result({ case: name, sse, message, resumes = false }) {
  const transport = new Transport(sse);
  let thrown = null;
  let finished;
  const chat = new MemoryChat({
    messages: message ? [USER, message] : [USER],
    generateId: () => 'client-1',
    transport,
    onError: error => (thrown = error),
    onFinish: event => (finished = event),
  });
  await (resumes ? chat.resumeStream() : chat.sendMessage());
  const hasErrorChunk = transport.errorText !== null;
  const index = READING_ERRORS.includes(thrown?.name) ? transport.read : transport.read - 1;
  return {
    case: name,
    rejected: thrown && !hasErrorChunk ? { name: thrown.name, index } : null,
    errorText: transport.errorText,
    message: json(finished?.message),
    finishReason: finished?.finishReason ?? null,
  };
}
