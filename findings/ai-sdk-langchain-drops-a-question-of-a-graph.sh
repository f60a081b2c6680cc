#!/usr/bin/env bash
# @ai-sdk/langchain 3.0.99 with @langchain/langgraph 1.7.3 and @langchain/core 1.4.0, 2026-12-01, Node 20.
#
# Behaviour: a graph stops at `interrupt(...)` to ask something. `toUIMessageStream` turns the interrupts of one middleware
# of LangChain into approval requests, which have a list named `actionRequests`. Any other value, such as a text or an
# object with a question, becomes nothing: the stream is the same as that of a graph that has ended, and ends with `finish`.
# There is neither a chunk nor a warning nor an error.
#
# What most would guess: a question of the graph reaches the page, as an approval or as data.
#
# Whom it matters to: graphs that call `interrupt` themselves. The chat becomes ready, and the graph waits for an answer
# that no user was asked for. Read `__interrupt__` of the stream of the graph, and send it as a data part.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --legacy-peer-deps @ai-sdk/langchain@3.0.99 ai@7.0.173 @langchain/langgraph@1.7.3 \
  @langchain/core@1.4.0 zod@4.1.8
cat >main.mjs <<'JS'
import { toUIMessageStream } from '@ai-sdk/langchain';
import { END, interrupt, MemorySaver, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph';

const actionRequests = [{ name: 'pay', args: { amount: 5 } }];
const questions = { none: undefined, text: 'Pay 5?', object: { question: 'Pay 5?' }, middleware: { actionRequests } };
for (const [name, question] of Object.entries(questions)) {
  const ask = () => {
    if (question) interrupt(question);
    return {};
  };
  const graph = new StateGraph(MessagesAnnotation)
    .addNode('ask', ask)
    .addEdge(START, 'ask')
    .addEdge('ask', END)
    .compile({ checkpointer: new MemorySaver() });
  const configurable = { thread_id: 't' };
  const stream = await graph.stream({ messages: [] }, { configurable, streamMode: ['values', 'messages'] });
  const types = [];
  for await (const { type } of toUIMessageStream(stream)) types.push(type);
  const { next } = await graph.getState({ configurable });
  console.log(`${name}: the graph ${next.length ? 'waits' : 'has ended'}; ${types.join(' ')}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'none: the graph has ended; start finish
text: the graph waits; start finish
object: the graph waits; start finish
middleware: the graph waits; start tool-input-start tool-input-available tool-approval-request finish' ]
