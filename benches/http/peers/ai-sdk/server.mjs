// `node server.mjs PORT ANSWERS`: the AI SDK's own server, with the answers of a file.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createUIMessageStream, pipeUIMessageStreamToResponse } from 'ai';

const [port, file] = process.argv.slice(2);
const answers = JSON.parse(readFileSync(file, 'utf8'));

function* chunks(answer) {
  yield { type: 'start', messageId: 'msg_1' };
  for (const [number, { texts, calls }] of answer.entries()) {
    const id = `text-${number}`;
    yield { type: 'start-step' };
    if (texts.length > 0) {
      yield { type: 'text-start', id };
      for (const delta of texts) yield { type: 'text-delta', id, delta };
      yield { type: 'text-end', id };
    }
    for (const { id: toolCallId, tool: toolName, input, pieces, output } of calls) {
      yield { type: 'tool-input-start', toolCallId, toolName };
      for (const inputTextDelta of pieces) yield { type: 'tool-input-delta', toolCallId, inputTextDelta };
      yield { type: 'tool-input-available', toolCallId, toolName, input: JSON.parse(input) };
      yield { type: 'tool-output-available', toolCallId, output };
    }
    yield { type: 'finish-step' };
  }
  yield { type: 'finish', finishReason: 'stop' };
}

const server = createServer(async (request, response) => {
  let body = '';
  for await (const piece of request) body += piece;
  JSON.parse(body);
  const answer = answers[request.url.slice(1)];
  const stream = createUIMessageStream({
    execute({ writer }) {
      for (const chunk of chunks(answer)) writer.write(chunk);
    },
  });
  await pipeUIMessageStreamToResponse({ response, stream });
});
server.listen(Number(port), '127.0.0.1');
