// A provider with the API of OpenAI, as a process of its own: prints its port. The last message of the
// user says what it answers: `calls N`, `text BYTES`, `slow SECONDS`; anything else gets one word.
import { once } from 'node:events';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

const chunk = (delta, finish_reason = null) =>
  `data: ${JSON.stringify({ id: 'c', model: 'm', choices: [{ index: 0, delta, finish_reason }] })}\n\n`;

let number = 0;
const call = index => ({
  index,
  id: `call_${++number}`,
  type: 'function',
  function: { name: 'delete_file', arguments: JSON.stringify({ path: `file-${index}.txt` }) },
});

async function* answer(command, size) {
  switch (command) {
    case 'calls':
      for (let index = 0; index < size; index++) yield chunk({ tool_calls: [call(index)] });
      yield chunk({}, 'tool_calls');
      break;
    case 'text': {
      const piece = chunk({ content: 'word '.repeat(2_000) });
      for (let bytes = 0; bytes < size; bytes += 10_000) yield piece;
      yield chunk({}, 'stop');
      break;
    }
    case 'slow':
      for (let second = 0; second < size; second++) {
        yield chunk({ content: `${second} ` });
        await sleep(1_000);
      }
      yield chunk({}, 'stop');
      break;
    default:
      yield chunk({ content: `answer-${++number}` });
      yield chunk({}, 'stop');
  }
  yield 'data: [DONE]\n\n';
}

const textOf = content =>
  typeof content === 'string' ? content : (content ?? []).map(part => part.text ?? '').join('');

const server = createServer(async (request, response) => {
  let body = '';
  for await (const piece of request) body += piece;
  const last = JSON.parse(body).messages.at(-1);
  const [command, size] = last.role === 'user' ? textOf(last.content).split(' ') : [];
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  for await (const piece of answer(command, Number(size))) {
    if (response.destroyed) return;
    if (!response.write(piece)) {
      const waits = new AbortController();
      const ended = ['drain', 'close'].map(name => once(response, name, { signal: waits.signal }).catch(() => {}));
      await Promise.race(ended);
      waits.abort();
    }
  }
  response.end();
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
