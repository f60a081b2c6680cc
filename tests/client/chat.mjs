// Sends responses to the real `Chat`, a line of JSON in, a line of JSON out, in the order of the
// lines. The format of both stands in README.md.
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

/** The real transport, but that it counts what it reads and speaks with nobody. */
class Transport extends client.DefaultChatTransport {
  read = 0;
  errorText = null;

  constructor(sse) {
    super({ fetch: async () => new Response(sse) });
  }
  processResponseStream(stream) {
    const watched = new TransformStream({
      transform: (chunk, controller) => {
        this.read++;
        if (chunk.type === 'error') this.errorText ??= chunk.errorText;
        controller.enqueue(chunk);
      },
    });
    return super.processResponseStream(stream).pipeThrough(watched);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  if (line) console.log(JSON.stringify(await held(JSON.parse(line))));
}

async function held({ case: name, sse, message, resumes = false }) {
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
  const wasTold = transport.errorText !== null;
  const index = READING_ERRORS.includes(thrown?.name) ? transport.read : transport.read - 1;
  return {
    case: name,
    rejected: thrown && !wasTold ? { name: thrown.name, index } : null,
    errorText: transport.errorText,
    message: json(finished?.message),
    finishReason: finished?.finishReason ?? null,
  };
}
