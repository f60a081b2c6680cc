// client.json: what the real `Chat` does with scripted responses, with React's hook and with
// memory-chat.mjs. Both must give the same results, so that the scenarios do not need React.
import { isDeepStrictEqual } from 'node:util';
import { Chat } from '@ai-sdk/react';
import { memoryChat } from '../memory-chat.mjs';
import { json, sseBody } from '../wire.mjs';
import { readJson, recordJson, stableError } from './fixtures.mjs';

/** A client that sends more requests than this would send requests without end. */
const MOST_REQUESTS = 5;

export default async function chat(client, check) {
  const scripts = readJson('client.json');
  const observed = [];
  for (const script of scripts) {
    const react = await play(client, script, Chat);
    const inMemory = await play(client, script, memoryChat(client));
    observed.push({ ...script, expected: react });
    check(
      `client.json in memory: ${script.note}`,
      isDeepStrictEqual(inMemory, react),
      JSON.stringify(inMemory),
    );
  }
  recordJson('client.json', observed, 1);
  for (const [i, { note, expected }] of readJson('client.json').entries()) {
    const got = observed[i].expected;
    check(`client.json: ${note}`, isDeepStrictEqual(got, expected), JSON.stringify(got));
  }
}

async function play(client, script, ChatClass) {
  const { messages, responses, actions, sendAutomaticallyWhen, toolResults } = script;
  let requests = 0;
  let ids = 0;
  const finishes = [];
  const chat = new ChatClass({
    id: 'chat-1',
    messages: structuredClone(messages),
    generateId: () => `client-${++ids}`,
    sendAutomaticallyWhen: {
      approvals: client.lastAssistantMessageIsCompleteWithApprovalResponses,
      tools: client.lastAssistantMessageIsCompleteWithToolCalls,
    }[sendAutomaticallyWhen],
    onToolCall: ({ toolCall: { toolName, toolCallId } }) => {
      const result = toolResults?.[toolName];
      if (result) chat.addToolOutput({ tool: toolName, toolCallId, ...result });
    },
    onFinish: ({ isAbort, isDisconnect, isError }) =>
      finishes.push({ isAbort, isDisconnect, isError }),
    transport: new client.DefaultChatTransport({
      fetch: async () => {
        const response = responses[Math.min(requests, responses.length - 1)];
        if (++requests > MOST_REQUESTS)
          return new Response('fixture stops the loop', { status: 500 });
        return respond(response);
      },
    }),
  });
  for (const action of actions) {
    if (action.do === 'send') {
      const sending = chat.sendMessage({ text: action.text });
      if (action.stopped) await pause(25).then(chat.stop);
      await sending;
    }
    if (action.do === 'approve') await chat.addToolApprovalResponse(action);
    if (action.do === 'regenerate') await chat.regenerate();
    if (action.do === 'resume') await chat.resumeStream();
    await pause(25);
  }
  const unbounded = requests > MOST_REQUESTS;
  return json({
    requests: unbounded ? `unbounded (stopped after ${MOST_REQUESTS})` : requests,
    status: chat.status,
    error: chat.error ? stableError(chat.error) : null,
    finishes: unbounded ? null : finishes,
    messages: unbounded ? null : chat.messages,
  });
}

function respond({ chunks, body, status = 200, then }) {
  const unfinished = () => sseBody(chunks).replace('data: [DONE]\n\n', '');
  if (then === 'network-error') return new Response(breakingOff(unfinished()));
  if (then === 'more') return new Response(stayingOpen(unfinished()));
  return new Response(chunks ? sseBody(chunks) : body, { status });
}

function breakingOff(text) {
  let sent = false;
  return new ReadableStream({
    async pull(controller) {
      if (!sent) {
        sent = true;
        controller.enqueue(new TextEncoder().encode(text));
        return;
      }
      await pause(20);
      controller.error(new TypeError('network error'));
    },
  });
}

const stayingOpen = text =>
  new ReadableStream({ start: body => body.enqueue(new TextEncoder().encode(text)) });

const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
