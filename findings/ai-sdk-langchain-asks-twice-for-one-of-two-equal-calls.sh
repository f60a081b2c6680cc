#!/usr/bin/env bash
# @ai-sdk/langchain 3.0.99 with @langchain/langgraph 1.7.3 and @langchain/core 1.4.0, 2026-12-01, Node 20.
#
# Behaviour: a model makes two calls of one tool with the same arguments, and the graph stops until both are approved, with
# the value that the middleware of LangChain for this uses. `toUIMessageStream` finds the call of a request by its name and
# arguments. Both requests go to the second call, with one and the same id. The first call waits for ever, as one that has
# not been executed, and no page can show a question for it. With different arguments each call has its request.
#
# What most would guess: two calls that wait for approval have two requests.
#
# Whom it matters to: pages with approvals. One decision comes back, and the graph wants two. Take the ids of the calls from
# the last message of the graph instead.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --legacy-peer-deps @ai-sdk/langchain@3.0.99 ai@7.0.173 @langchain/langgraph@1.7.3 \
  @langchain/core@1.4.0 zod@4.1.8
cat >main.mjs <<'JS'
import { toUIMessageStream } from '@ai-sdk/langchain';
import { AIMessage } from '@langchain/core/messages';
import { END, interrupt, MemorySaver, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';
import { readUIMessageStream } from 'ai';

for (const amounts of [[5, 6], [5, 5]]) {
  const calls = amounts.map((amount, at) => ({ id: `call ${at + 1}`, name: 'pay', args: { amount } }));
  const actionRequests = calls.map(({ name, args }) => ({ name, args }));
  const graph = new StateGraph(MessagesAnnotation)
    .addNode('model', () => ({ messages: [new AIMessage({ content: '', tool_calls: calls })] }))
    .addNode('ask', () => ({ messages: interrupt({ actionRequests }) }))
    .addEdge(START, 'model')
    .addEdge('model', 'ask')
    .addEdge('ask', END)
    .compile({ checkpointer: new MemorySaver() });
  const options = { configurable: { thread_id: 't' }, streamMode: ['values', 'messages'] };
  const stream = toUIMessageStream(await graph.stream({ messages: [] }, options));
  let message;
  for await (message of readUIMessageStream({ stream, terminateOnError: true }));
  const parts = message.parts.filter(part => part.toolCallId);
  console.log(`${amounts}: ${parts.map(part => `${part.toolCallId} ${part.state}`).join(', ')}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = '5,6: call 1 approval-requested, call 2 approval-requested
5,5: call 1 input-available, call 2 approval-requested' ]
