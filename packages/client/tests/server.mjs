// A chat server in the test's process, and a chat of the AI SDK in front of it.

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { AbstractChat } from 'ai';
import { until } from '../../../tests/support/until.mjs';
import { ChatServer, StoredChat } from '../dist/core.js';

export const user = (id, text) => ({ id, role: 'user', parts: [{ type: 'text', text }] });
export const assistant = (id, ...parts) => ({
  id,
  role: 'assistant',
  parts: parts.map(part => (typeof part === 'string' ? { type: 'text', text: part } : part)),
});
export const question = (number, state = 'approval-requested') => ({
  type: 'tool-pay',
  toolCallId: `call-${number}`,
  state,
  input: {},
  approval: { id: `approval-${number}` },
});

/** The chunks of an answer with a text. */
export const answer = (messageId, text) => [
  { type: 'start', messageId },
  { type: 'text-start', id: 't' },
  { type: 'text-delta', id: 't', delta: text },
  { type: 'text-end', id: 't' },
  { type: 'finish' },
];

export { until };

/**
 * Waits so long that a request which should not be made would have been: what is under way in this process, which is also
 * the server, has gone on many times.
 */
export async function soon() {
  for (let turns = 0; turns < 20; turns += 1) await sleep(2);
}

/** A gate: `passage` is fulfilled when it is opened. */
export function gate() {
  let open;
  const passage = new Promise(resolve => (open = resolve));
  return { passage, open };
}

/**
 * A server with one chat. `routes` answers in its place: a function by the name of a route, with `{ response, body }`.
 * Its result is a status with an optional text, or nothing if it has answered, or will not.
 */
export class Server {
  routes = {};
  messages = [];
  version = 0;
  ended = 'finished';
  requests = [];
  #events = new Set();
  #http = createServer((request, response) => void this.#handle(request, response));

  static async start(t, messages = []) {
    const server = new Server();
    Object.assign(server, { messages, version: messages.length });
    await new Promise(listens => server.#http.listen(0, '127.0.0.1', listens));
    server.url = `http://127.0.0.1:${server.#http.address().port}/api/chat`;
    t.after(() => (server.#http.closeAllConnections(), server.#http.close()));
    return server;
  }

  /** A page with this chat. */
  open(t, { init = {}, server = {}, ...options } = {}) {
    // A token: Node has no tabs that share a connection.
    const routes = new ChatServer({ api: this.url, headers: { authorization: 'token' }, ...server });
    const chat = new StoredChat({ id: 'chat', server: routes, ...options }, parts => new NodeChat({ ...init, ...parts }));
    const close = chat.connect();
    t.after(close);
    return Object.assign(chat, { close });
  }

  /** The bodies that were posted. */
  get posts() {
    return this.requests.filter(({ route }) => route === 'post').map(({ body }) => body);
  }

  /** The texts that the user has posted, and the states of the calls. */
  get posted() {
    return this.posts.map(({ message }) => message.parts.map(part => part.text ?? part.state).join(' '));
  }

  get texts() {
    return this.messages.map(({ parts }) => parts.map(part => part.text ?? part.state).join(' '));
  }

  count(route) {
    return this.requests.filter(request => request.route === route).length;
  }

  /** Tells the pages that the chat has changed. */
  tell(event = 'chat') {
    const chat = { id: 'chat', title: '', updatedAt: 0, isLive: this.ended === undefined, hasQuestions: false, version: this.version };
    const data = event === 'deleted' ? { id: 'chat' } : chat;
    for (const response of this.#events) response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  /** Another page has changed the chat. */
  change(messages, { isLive = false } = {}) {
    Object.assign(this, { messages, ended: isLive ? undefined : 'finished', version: this.version + 1 });
    this.tell();
  }

  /** Writes chunks as frames, with numbers from `first` on. */
  async write(response, chunks, { first = 1, isEnd = true } = {}) {
    if (!response.headersSent) response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const [at, chunk] of chunks.entries()) {
      response.write(`id: run.${first + at}\ndata: ${JSON.stringify(chunk)}\n\n`);
      await sleep(0);
    }
    if (isEnd) response.end('data: [DONE]\n\n');
  }

  async #handle(request, response) {
    let text = '';
    for await (const part of request) text += part;
    const body = text ? JSON.parse(text) : undefined;
    const route = routeOf(request);
    this.requests.push({ route, body, version: request.headers['ai-sdk-version'] });
    const result = this.routes[route] ? await this.routes[route]({ response, body }) : 'usual';
    if (Array.isArray(result)) return response.writeHead(result[0]).end(result[1] ?? '');
    if (result !== 'usual') return;
    if (route === 'events') {
      this.#events.add(response);
      response.on('close', () => this.#events.delete(response));
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write('event: chats\ndata: {"chats":[],"after":"x"}\n\n');
    } else if (route === 'history') {
      const { messages, version, ended } = this;
      if (messages.length > 0) return response.end(JSON.stringify({ messages, version, ended }));
      response.writeHead(404).end();
    } else if (route === 'post') {
      await this.reply(response, body);
    } else {
      response.writeHead(204).end();
    }
  }

  /** Stores what was posted, and answers it. */
  async reply(response, { message, messageId, trigger }) {
    const at = this.messages.findIndex(({ id }) => id === (trigger === 'regenerate-message' ? undefined : messageId));
    if (message.role === 'user' && at >= 0) this.messages = this.messages.slice(0, at);
    const isContinued = message.role === 'assistant' || this.messages.some(({ id }) => id === message.id);
    if (!isContinued) this.messages = [...this.messages, message];
    if (message.role === 'assistant') this.messages = [...this.messages.slice(0, -1), message];
    this.version += 1;
    const id = `answer-${this.version}`;
    const reply = `re ${message.parts[0].text}`;
    if (message.role === 'user') this.messages = [...this.messages, assistant(id, reply)];
    await this.write(response, message.role === 'user' ? answer(id, reply) : [{ type: 'start', messageId: message.id }, { type: 'finish' }]);
    this.tell();
  }
}

function routeOf({ method, url }) {
  if (method === 'POST') return 'post';
  if (url.endsWith('?events')) return 'events';
  if (method === 'DELETE') return 'stop';
  return url.endsWith('/stream') ? 'stream' : 'history';
}

/** A `Chat` of the AI SDK without a framework. */
class NodeChat extends AbstractChat {
  constructor({ messages = [], ...init }) {
    const state = {
      status: 'ready',
      error: undefined,
      messages,
      pushMessage: message => (state.messages = [...state.messages, message]),
      popMessage: () => (state.messages = state.messages.slice(0, -1)),
      replaceMessage: (at, message) => (state.messages = state.messages.with(at, structuredClone(message))),
      snapshot: structuredClone,
    };
    super({ ...init, state });
  }
}

/** What a page shows: the texts, and the states of calls. */
export const shown = ({ messages }) => messages.map(({ parts }) => parts.map(part => part.text ?? part.state).join(' ').trim());

/** Waits until a page does nothing, and shows these messages. */
export async function shows(chat, expected) {
  let seen;
  await until(`${JSON.stringify(expected)}`, () => {
    seen = shown(chat);
    return !chat.isBusy && JSON.stringify(seen) === JSON.stringify(expected);
  }).catch(error => {
    throw new Error(`${error.message}; the page is ${chat.status} and shows ${JSON.stringify(seen)}`);
  });
}
