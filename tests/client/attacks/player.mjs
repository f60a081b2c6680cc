// Plays a recipe against a server through the real client, and finds the requirements that are not
// met.
import { randomUUID } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { memoryChat } from '../memory-chat.mjs';
import { json } from '../wire.mjs';
import { Body } from './values.mjs';

const SERVER = 'http://localhost';
const CHAT = `${SERVER}/api/chat`;

/**
 * Plays `recipe` against `server`: what did not hold, how the attacks were answered, and how many of
 * the effects may not be.
 */
export async function play(client, recipe, server) {
  const player = new Player(client, server);
  await player.playAll(recipe.steps).catch(error => player.giveUp(error));
  return player.judge(recipe.holds ?? {}, await server.log());
}

const KEYS = [
  ...['say', 'answer', 'reason', 'give', 'tool', 'send', 'again', 'raw', 'together'],
  ...['route', 'path', 'body'],
  ...['server', 'ms', 'description', 'path_starts_with', 'output', 'error'],
  ...['chat', 'as', 'headers', 'change', 'times', 'keep', 'label'],
  ...['status', 'answered', 'asks', 'reads', 'shows'],
];

class Player {
  #client;
  #server;
  #chats = {};
  #posts = [];
  #findings = [];
  /** The number of effects that the recipe does not permit. */
  #unapproved = 0;

  constructor(client, server) {
    this.#client = client;
    this.#server = server;
  }

  async playAll(steps) {
    for (const step of steps) await this.#play(step);
  }

  /** Records that the recipe could not be played to its end, because of the server. */
  giveUp(error) {
    if (!(error instanceof NothingToAnswer)) throw error;
    this.#find('unplayable', `not played to the end: ${error.message}`);
  }

  async #play(step) {
    const unknown = Object.keys(step).filter(key => !KEYS.includes(key));
    if (unknown.length) throw new Error(`a step has no ${unknown.join(', ')}`);
    if (step.server) return this.#server.change(step);
    if (step.together) {
      const all = step.together.flatMap(one => Array(one.times ?? 1).fill({ keep: false, ...one }));
      return Promise.all(all.map(one => this.#post(one)));
    }
    const attacks = step.change || step.times || step.again || step.route || 'raw' in step;
    for (let i = 0; i < (step.times ?? 1); i++) await this.#post({ keep: !attacks, ...step });
  }

  /** Sends one POST of the client, unchanged or edited, and records the response. */
  async #post(step) {
    const state = this.#chat(step.chat);
    const post = { label: step.label, attacks: !step.keep, step };
    const chat = this.#clientOf(state, step, post);
    this.#posts.push(post);
    if (step.route) {
      await this.#sendTo(step, post);
    } else if (step.again || 'raw' in step) {
      await this.#send(step, post, this.#bodyOf(step));
    } else {
      await act(chat, step);
      post.threw = chat.error !== undefined;
      post.message = json(chat.lastMessage);
      if (step.keep) state.messages = json(chat.messages);
    }
    this.#check(step, post);
  }

  #bodyOf({ again, change, raw }) {
    if (!again) return this.#body(null).resolve(raw);
    const { sent } = this.#posts.find(({ label }) => label === again);
    return change ? this.#body(JSON.parse(sent)).edit(change).write() : sent;
  }

  /** A body whose values may speak of what was sent before and of the chats. */
  #body(value) {
    const named = name => {
      const post = this.#posts.find(({ label }) => label === name);
      return post ? JSON.parse(post.sent) : this.#chat(name);
    };
    return new Body(value, named);
  }

  #clientOf({ id, messages }, step, post) {
    const { DefaultChatTransport } = this.#client;
    const fetch = (_, { body }) => {
      const changed = this.#body(JSON.parse(body)).edit(step.change);
      return this.#send(step, post, changed.write());
    };
    return new (memoryChat(this.#client))({
      id,
      messages: structuredClone(messages),
      transport: new DefaultChatTransport({ api: CHAT, fetch }),
    });
  }

  /** A request to another route than the one that the client posts to. */
  #sendTo(step, post) {
    const path = this.#body(null).resolve(step.path);
    const body = step.body && JSON.stringify(this.#body(null).resolve(step.body));
    return this.#send(step, post, body, { method: step.route, url: SERVER + path });
  }

  async #send({ as = 'alice', headers: others }, post, body, to = { method: 'POST', url: CHAT }) {
    post.sent = body;
    const headers = { 'content-type': 'application/json', ...others };
    if (as !== null) headers['x-principal'] = as;
    const request = new Request(to.url, { method: to.method, headers, body });
    const response = await this.#server.respond(request);
    post.status = response.status;
    post.received = await response.text();
    return new Response(post.received, response);
  }

  #chat = (name = 'main') => (this.#chats[name] ??= { id: randomUUID(), messages: [] });

  #check({ status, answered, asks, reads, shows }, post) {
    if (status && ![status].flat().includes(post.status)) {
      this.#find('status', `answered ${post.status}, not ${[status].flat().join(' or ')}`);
    }
    if (answered && outcomeOf(post) !== 'answered') {
      this.#find('answered', `${nameOf(post.step)}: ${outcomeOf(post)}`);
    }
    if (asks && !isDeepStrictEqual(askedBy(post.message), asks)) {
      const asked = askedBy(post.message).map(described).join(', ') || 'nothing';
      this.#find('asks', `asks for ${asked}`);
    }
    if (shows && !isDeepStrictEqual(shownBy(post.message), shows)) {
      const shown = shownBy(post.message).map(({ tool, state }) => `${tool} as ${state}`);
      this.#find('shows', `shows ${shown.join(', ') || 'no call'}`);
    }
    if (reads && !textOf(post.message).includes(reads)) {
      this.#find('reads', `${nameOf(post.step)}: the text came back changed`);
    }
  }

  judge({ effects = [], absent = {}, present = {}, alike = [] }, log) {
    const { prompts } = log;
    this.#judgeEffects(effects, log.effects);
    const wire = this.#posts.map(({ received }) => received);
    if (absent.prompt?.some(text => isIn(text, prompts))) this.#find('prompt', 'reached the model');
    if (absent.wire?.some(text => isIn(text, wire))) this.#find('wire', 'reached the browser');
    if (present.prompt?.some(text => !isIn(text, prompts.slice(-1)))) {
      this.#find('prompt', 'is gone from what the model reads');
    }
    const answers = alike.map(label => withoutIds(this.#posts.find(post => post.label === label)));
    if (new Set(answers).size > 1) this.#find('alike', 'the refusals differ');
    const attacks = this.#posts.filter(post => post.attacks);
    return {
      findings: this.#findings,
      seen: [...new Set(attacks.map(responseOf))],
      unapproved: this.#unapproved,
    };
  }

  #judgeEffects(allowed, effects) {
    const log = new Map();
    for (const effect of effects) {
      const key = keyOf(effect);
      log.set(key, { effect, times: (log.get(key)?.times ?? 0) + 1 });
    }
    for (const { tool, input, times: [least, most] } of allowed) {
      const effect = { tool, input: this.#body(null).resolve(input) };
      const times = log.get(keyOf(effect))?.times ?? 0;
      log.delete(keyOf(effect));
      this.#unapproved += Math.max(times - most, 0);
      if (times > most) this.#find('effects', `${described(effect)} ran ${times}×, may ${most}×`);
      if (times < least) this.#find('lost', `${described(effect)} did not run, though approved`);
    }
    for (const { effect, times } of log.values()) {
      this.#unapproved += times;
      this.#find('effects', `${described(effect)} ran ${times}×, may not`);
    }
  }

  #find(what, text) {
    const known = this.#findings.some(finding => finding.text === text);
    if (!known) this.#findings.push({ what, text });
  }
}

/** Executes the user's action in the client. */
async function act(chat, { say, answer, give, tool, reason }) {
  const part = tool && openPart(chat.messages, tool, give === undefined);
  if (answer !== undefined) {
    await chat.addToolApprovalResponse({ id: part.approval.id, approved: answer, reason });
  }
  if (give !== undefined) {
    await chat.addToolOutput({ tool, toolCallId: part.toolCallId, output: give });
  }
  return chat.sendMessage(say === undefined ? undefined : { text: say });
}

function openPart(messages, tool, waitsForApproval) {
  const state = waitsForApproval ? 'approval-requested' : 'input-available';
  const parts = messages.flatMap(({ parts }) => parts);
  const part = parts.findLast(part => part.type === `tool-${tool}` && part.state === state);
  if (!part) throw new NothingToAnswer(`no ${tool} is ${state}`);
  return part;
}

class NothingToAnswer extends Error {}

/** How the server answered. */
function responseOf({ status, received }) {
  if (status !== 200) return `status ${status}`;
  return chunksOf(received).some(chunk => chunk.type === 'error') ? '`error` chunk' : 'answered';
}

/** How the server answered, and whether the client read it. */
function outcomeOf(post) {
  const response = responseOf(post);
  return response === 'answered' && post.threw ? 'the client throws' : response;
}

const chunksOf = received =>
  received
    .split('\n\n')
    .map(frame => frame.replace(/^id: \S+\n/, ''))
    .filter(data => data.startsWith('data: {'))
    .map(data => JSON.parse(data.slice(6)));

const askedBy = message =>
  (message?.parts ?? [])
    .filter(part => part.state === 'approval-requested')
    .map(({ type, input }) => ({ tool: type.slice('tool-'.length), input }));

/** What the client shows of each call. */
const shownBy = message =>
  (message?.parts ?? [])
    .filter(({ type }) => type.startsWith('tool-'))
    .map(({ type, state }) => ({ tool: type.slice('tool-'.length), state }));

const textOf = message =>
  (message?.parts ?? []).flatMap(part => (part.type === 'text' ? part.text : [])).join('');

const nameOf = ({ say, answer }) => {
  if (say !== undefined && answer !== undefined) return `the answer beside “${say}”`;
  if (say !== undefined) return `“${say.length > 40 ? `${say.slice(0, 9)}…` : say}”`;
  return answer ? 'the approval' : 'the answer';
};

const keyOf = ({ tool, input }) => JSON.stringify([tool, Object.entries(input).sort()]);

/** Describes a call in a text that fits into a table. */
const described = ({ tool, input }) => {
  const text = JSON.stringify(input);
  return `${tool} ${text.length > 90 ? `${text.slice(0, 60)}…` : text}`;
};

const isIn = (text, haystack) => haystack.some(hay => hay.includes(text));

const NAMED = ['id', 'messageId', 'toolCallId', 'approvalId'];

/** A response in which the ids are replaced by numbers. */
function withoutIds({ status, received }) {
  const names = new Map();
  const replaceId = (key, value) => {
    if (!NAMED.includes(key) || typeof value !== 'string') return value;
    if (!names.has(value)) names.set(value, `<${names.size + 1}>`);
    return names.get(value);
  };
  const frames = received.split('\n\n');
  // Before the first frame with an id, a response repeats the parts of the message that the page
  // lacks, which are those of the responses before.
  const begun = Math.max(frames.findIndex(frame => /^id: run_\w+\.[1-9]/.test(frame)), 0);
  const named = frames.slice(begun).map(frame => {
    // The number after the id of the run would show what the log holds besides the frames.
    const [, number = '', data] = frame.match(/^(?:id: run_\w+\.(\d+)\n)?(.*)$/s);
    if (!data.startsWith('data: {')) return number + data;
    return number + JSON.stringify(JSON.parse(data.slice(6)), replaceId);
  });
  return [status, ...named].join('\n');
}
