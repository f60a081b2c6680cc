// A chat route as in the documentation of the AI SDK, with a scripted model, four tools, and logs of
// the effects of the tools and of the prompts of the model.
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { loadMocks } from '../clients.mjs';
import { Body } from './values.mjs';

const { MockLanguageModelV3, simulateReadableStream } = await loadMocks();

const FILES = ['notes.txt', 'budget.xlsx', 'holiday.jpg', 'draft.md', 'report.pdf', 'old.log'];

export class NodeServer {
  #effects = [];
  #prompts = [];
  #client;
  #secret;
  #strict;
  #script;
  #gone = new Set();
  #redefined = {};
  #outputs = {};
  #failures = {};
  #modelFailure = null;

  /**
   * `model` is the model of the recipe. With `strict`, `validateUIMessages` checks the messages
   * first, and system messages are rejected.
   */
  constructor(client, { secret, strict = false }, model = []) {
    this.#client = client;
    this.#secret = secret;
    this.#strict = strict;
    this.#script = new Body().resolve(model);
  }

  /** What a framework makes of the route: a response, 500 where it throws, and no other route. */
  async respond(request) {
    const { pathname } = new URL(request.url);
    if (request.method !== 'POST' || pathname !== '/api/chat') {
      return new Response('Not Found', { status: 404 });
    }
    try {
      return await this.#post(request);
    } catch {
      return new Response('Internal Server Error', { status: 500 });
    }
  }

  async #post(request) {
    const { convertToModelMessages, streamText, stepCountIs, validateUIMessages } = this.#client;
    let { messages } = await request.json();
    const tools = this.#tools();
    if (this.#strict) messages = await validateUIMessages({ messages, tools });
    const result = streamText({
      model: this.#model(),
      messages: await convertToModelMessages(messages, { tools }),
      tools,
      stopWhen: stepCountIs(5),
      maxRetries: 0,
      allowSystemInMessages: this.#strict ? false : undefined,
      experimental_toolApprovalSecret: this.#secret,
      onError: () => {},
    });
    return result.toUIMessageStreamResponse({ originalMessages: messages });
  }

  /** The effects of the tools, and the prompts of the model. */
  log = () => ({ effects: this.#effects, prompts: this.#prompts });

  /** Executes a `server` step. */
  change({ server, tool, description, path_starts_with, output, error }) {
    const changes = {
      // The server uses the clock of this process.
      advance_clock: () => {},
      // The server keeps no chats: each request brings the history.
      lose_chats: () => {},
      // A user who may not use a tool does not get it.
      forbid: () => this.#gone.add(tool),
      remove_tool: () => this.#gone.add(tool),
      redefine_tool: () => (this.#redefined[tool] = { description, path_starts_with }),
      tool_returns: () => (this.#outputs[tool] = output),
      tool_fails: () => (this.#failures[tool] = error),
      model_fails: () => (this.#modelFailure = error),
    };
    if (!changes[server]) throw new Error(`no such step of the server: ${server}`);
    changes[server]();
  }

  #tools() {
    const { tool } = this.#client;
    const { description, path_starts_with: start = '' } = this.#redefined.delete_file ?? {};
    const tools = {
      get_weather: tool({
        description: 'Looks up the weather.',
        inputSchema: z.object({ city: z.string() }),
        execute: ({ city }) => this.#run('get_weather', { city, celsius: 21, sky: 'clear' }),
      }),
      delete_file: tool({
        description: description ?? 'Deletes a file.',
        inputSchema: z.object({ path: z.string().startsWith(start) }),
        needsApproval: true,
        execute: input => {
          this.#effects.push({ tool: 'delete_file', input });
          return this.#run('delete_file', { path: input.path, deleted: true });
        },
      }),
      transfer: tool({
        description: 'Transfers money.',
        inputSchema: z.object({ to: z.string(), amount: z.number() }),
        needsApproval: ({ amount }) => amount > 1000,
        execute: input => {
          this.#effects.push({ tool: 'transfer', input });
          return this.#run('transfer', { ...input, sent: true });
        },
      }),
      publish: tool({
        description: 'Publishes a text.',
        inputSchema: z.object({ text: z.string() }),
        // after data of others was read, a person decides
        needsApproval: (_, { messages }) => hasCall(messages, 'get_weather'),
        execute: input => {
          this.#effects.push({ tool: 'publish', input });
          return this.#run('publish', { ...input, published: true });
        },
      }),
      get_location: tool({ description: 'Where the person is.', inputSchema: z.object({}) }),
    };
    for (const name of this.#gone) delete tools[name];
    return tools;
  }

  async #run(tool, output) {
    if (this.#failures[tool]) throw new Error(this.#failures[tool]);
    return this.#outputs[tool] ? JSON.parse(this.#outputs[tool]) : output;
  }

  #model() {
    return new MockLanguageModelV3({
      doStream: async ({ prompt }) => {
        this.#prompts.push(JSON.stringify(prompt));
        return { stream: simulateReadableStream({ chunks: this.#turn(prompt) }) };
      },
    });
  }

  #turn(prompt) {
    const lastUser = prompt.findLastIndex(message => message.role === 'user');
    const userText = (prompt[lastUser]?.content ?? [])
      .flatMap(part => (part.type === 'text' ? part.text : []))
      .join(' ');
    const results = prompt.slice(lastUser + 1).filter(message => message.role === 'tool');
    const calls = results.length ? [] : this.#callsFor(userText);
    const text = results.length ? 'That is what came of it.' : `You said: ${userText}`;
    const chunks = [{ type: 'stream-start', warnings: [] }];
    if (calls.length === 0) {
      chunks.push({ type: 'text-start', id: 't' }, { type: 'text-delta', id: 't', delta: text });
      if (this.#modelFailure) {
        return [...chunks, { type: 'error', error: new Error(this.#modelFailure) }];
      }
      chunks.push({ type: 'text-end', id: 't' });
    }
    for (const { tool, input, id = `call_${randomUUID()}` } of calls) {
      chunks.push({ type: 'tool-call', toolCallId: id, toolName: tool, input });
    }
    const unified = calls.length ? 'tool-calls' : 'stop';
    const finishReason = { unified, raw: unified };
    const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
    return [...chunks, { type: 'finish', finishReason, usage }];
  }

  #callsFor(userText) {
    const file = FILES.find(name => userText.includes(name)) ?? FILES[0];
    const weather = { tool: 'get_weather', input: '{"city":"Lisbon"}' };
    const deletion = { tool: 'delete_file', input: JSON.stringify({ path: file }) };
    const transfer = { tool: 'transfer', input: '{"to":"Harbour Bakery","amount":5000}' };
    const publication = { tool: 'publish', input: '{"text":"It is sunny."}' };
    const script = [
      ...this.#script,
      { word: 'mixed', calls: [weather, deletion, transfer] },
      { word: 'delete', calls: [deletion] },
      { word: 'weather', calls: [weather] },
      { word: 'publish', calls: [publication] },
      { word: 'location', calls: [{ tool: 'get_location', input: '{}' }] },
    ];
    return script.find(({ word }) => userText.toLowerCase().includes(word))?.calls ?? [];
  }
}

/** Whether the model's messages hold a call of this tool. */
const hasCall = (messages, toolName) =>
  messages
    .filter(({ role, content }) => role === 'assistant' && Array.isArray(content))
    .some(({ content }) =>
      content.some(part => part.type === 'tool-call' && part.toolName === toolName),
    );
