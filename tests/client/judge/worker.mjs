// One thread of judge.mjs: one line in, one line out.
import { parentPort } from 'node:worker_threads';
import { loadClient, REFERENCE, V6 } from '../clients.mjs';
import { validation, verdict } from './verdict.mjs';

parentPort.on('message', async ({ number, line }) => {
  parentPort.postMessage({ number, answer: JSON.stringify(await answer(line)) });
});

async function answer(line) {
  let question = {};
  try {
    question = JSON.parse(line);
    return { case: question.case, ...(await judge(question)) };
  } catch (error) {
    return { case: question?.case, refused: String(error.message) };
  }
}

async function judge({ message, sse, readOn, validate, versions }) {
  if (validate != null) return validation(await loadClient(REFERENCE), validate);
  if (typeof sse !== 'string') throw new Error('neither "sse" (a string) nor "validate" is given');
  if (message != null && message.role !== 'assistant')
    throw new Error('"message" is not an assistant message');
  const results = {};
  for (const version of versions ?? V6)
    results[version] = await verdict(await loadClient(version), sse, { message, readOn });
  return { results };
}
