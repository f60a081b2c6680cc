#!/usr/bin/env bash
# ai 7.0.173, 2026-12-01, Node 20.
#
# Behaviour: `execute` of a tool is an asynchronous generator. It yields its progress and returns its result. The progress
# arrives as preliminary outputs, and the last piece of progress arrives once more as the final output. The returned value
# is in neither the stream nor the next request to the model, and nothing warns of it.
#
# What most would guess: the returned value is the output, and what is yielded before is preliminary.
#
# Whom it matters to: authors of tools that report progress. The page shows "reading" as the result, and the model answers
# from it. Yield the result as the last value.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173 zod@4.1.8
cat >main.mjs <<'JS'
import { isStepCount, streamText, tool } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { z } from 'zod';

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const finish = unified => ({ type: 'finish', finishReason: { unified, raw: unified }, usage });
let read;
const model = new MockLanguageModelV4({
  doStream: async ({ prompt }) => {
    const last = prompt.at(-1);
    if (last.role === 'tool') read = last.content[0].output.value;
    const call = { type: 'tool-call', toolCallId: 'c', toolName: 'search', input: '{}' };
    return { stream: ReadableStream.from(last.role === 'tool' ? [finish('stop')] : [call, finish('tool-calls')]) };
  },
});
for (const kind of ['returns', 'yields']) {
  const search = tool({
    inputSchema: z.object({}),
    async *execute() {
      yield 'searching';
      yield 'reading';
      if (kind === 'returns') return 'three hits';
      yield 'three hits';
    },
  });
  const result = streamText({ model, prompt: 'Search', tools: { search }, stopWhen: isStepCount(2) });
  const shown = [];
  for await (const { type, output, preliminary } of result.toUIMessageStream()) {
    if (type === 'tool-output-available') shown.push(preliminary ? `(${output})` : output);
  }
  console.log(`${kind}: the page gets ${shown.join(', ')}; the model reads ${read}`);
}
JS
printed=$(node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'returns: the page gets (searching), (reading), reading; the model reads reading
yields: the page gets (searching), (reading), (three hits), three hits; the model reads three hits' ]
