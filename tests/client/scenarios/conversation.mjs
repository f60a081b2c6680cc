// One chat with the demo, through the real `AbstractChat` and `DefaultChatTransport` of a version.
// Every POST has to be announced. The client does not prevent endless automatic requests, so a POST
// that was not announced is a failure.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { until } from '../../support/until.mjs';
import { memoryChat } from '../memory-chat.mjs';
import { json } from '../wire.mjs';

/** If the client sends automatically, it does so within this time. */
const REACTION_MS = 20;
/**
 * A late automatic request is sent within this time. A user does not send a message sooner after a
 * failure.
 */
const LATE_REQUEST_MS = 300;

/** When the client sends automatically: the function that an application passes as `sendAutomaticallyWhen`. */
const HELPERS = {
  approvals: client => client.lastAssistantMessageIsCompleteWithApprovalResponses,
  toolCalls: client => client.lastAssistantMessageIsCompleteWithToolCalls,
  either: client => state => HELPERS.approvals(client)(state) || HELPERS.toolCalls(client)(state),
};

export class Conversation {
  /** The reason for each request that the application had to send itself. */
  sentByHand = [];
  #client;
  #fetchOfPage;
  #chat;
  #baseUrl;
  #streamUrl;
  #announced = 0;
  #posted = 0;
  #finished = 0;
  #errors = [];
  #expectedErrors = 0;
  #expectedStatus = 'ready';
  /** The inputs that the user has changed, by the ids of their approvals. */
  #approvalInputs = {};

  /**
   * The ids of the client are random, unless `generateId` is given. `fetchOfPage` is what the client
   * sends with.
   */
  constructor(client, baseUrl, helper, generateId, fetchOfPage = fetch) {
    const id = randomUUID();
    const Chat = memoryChat(client);
    this.#client = client;
    this.#fetchOfPage = fetchOfPage;
    this.#baseUrl = baseUrl;
    this.#streamUrl = `${baseUrl}/api/chat/${id}/stream`;
    this.#chat = new Chat({
      id,
      generateId,
      sendAutomaticallyWhen: HELPERS[helper](client),
      transport: new client.DefaultChatTransport({
        api: `${baseUrl}/api/chat`,
        body: () => ({ approvalInputs: this.#approvalInputs }),
        fetch: this.#fetch,
      }),
      onError: error => this.#errors.push(error),
      onFinish: () => this.#finished++,
    });
  }

  /** Sends a message, and waits for the complete answer. */
  async say(text) {
    await this.#posting(() => this.#chat.sendMessage({ text }));
  }

  /** Sends a message that the server answers with an error. */
  async sayAndExpectError(text) {
    this.#expectedErrors++;
    await this.#posting(() => this.#chat.sendMessage({ text }), 'error');
    assert(this.#chat.error.message, 'the error has no text');
    await pause(LATE_REQUEST_MS);
  }

  /** Sends a message, and calls `interrupt` when the first text of the answer is shown. */
  async sayAndInterrupt(text, interrupt) {
    const before = this.#chat.messages.length;
    await this.#posting(async () => {
      const sending = this.#chat.sendMessage({ text });
      await until(
        () => `the answer begins to show: ${this.#state()}`,
        () => this.#chat.messages.length > before + 1 && replyOf(this.lastMessage),
      );
      await interrupt();
      await sending;
    });
    await pause(LATE_REQUEST_MS);
  }

  stop = () => this.#chat.stop();

  /** Stops the run on the server, as the Stop button of an application does. `stop` only disconnects. */
  stopOnServer = async () => {
    const response = await fetch(this.#streamUrl, { method: 'DELETE' });
    assert(response.ok, `DELETE stream: ${response.status}`);
  };

  /** Replaces a message of the user, and all that follows it. */
  async edit(message, text) {
    await this.#posting(() => this.#chat.sendMessage({ text, messageId: message.id }));
  }

  async regenerate() {
    await this.#posting(() => this.#chat.regenerate());
  }

  /** Answers an approval request. The client must not send the answer yet. */
  async answer(part, { approved, reason }) {
    await this.#chat.addToolApprovalResponse({ id: part.approval.id, approved, reason });
    await pause(REACTION_MS);
    this.#checkPosts();
  }

  /**
   * Answers an approval request and waits until the answer is sent: by the client or, if `byHand`
   * gives a reason why the client does not send it, by the application.
   */
  async answerAndSend(part, { approved, reason }, byHand) {
    await this.#posting(async () => {
      await this.#chat.addToolApprovalResponse({ id: part.approval.id, approved, reason });
      await pause(REACTION_MS);
      if (byHand) {
        this.#checkPosts(this.#announced - 1);
        this.sentByHand.push(byHand);
        await this.#chat.sendMessage();
      }
    });
  }

  /** Changes the input with which a call is to run. It goes with the answer. */
  changeInput(part, input) {
    this.#approvalInputs[part.approval.id] = input;
  }

  /** Another page of the same user decides. */
  async decideElsewhere(part, { approved }) {
    const decisions = [{ approvalId: part.approval.id, approved }];
    await this.#postElsewhere('/api/approvals', { decisions });
    await until('the decision is in the history', async () => {
      return !UNSETTLED.includes((await this.toolPartInHistory('delete_file')).part.state);
    });
    // A late response would read the frames of the run that the decision has begun.
    await (await fetch(`${this.#baseUrl}/api/chat/${this.#chat.id}/stream`)).text();
  }

  /** Another page of the same user sends a message, and a decision with it if one is given. */
  async writeElsewhere(part, decision) {
    const messages = structuredClone(json(this.#chat.messages));
    if (decision) {
      const own = messages.at(-1).parts.find(one => one.toolCallId === part.toolCallId);
      own.state = 'approval-responded';
      Object.assign(own.approval, decision);
    }
    const text = { type: 'text', text: 'hello' };
    messages.push({ id: randomUUID(), role: 'user', parts: [text] });
    await this.#postElsewhere('/api/chat', { id: this.#chat.id, messages });
  }

  async #postElsewhere(path, body) {
    const response = await fetch(this.#baseUrl + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    const text = await response.text();
    assert(response.ok, `POST ${path}: ${response.status} ${text}`);
  }

  /** The one part of a tool that the server stores, and the state of its approval. */
  async toolPartInHistory(name) {
    const response = await fetch(`${this.#baseUrl}/api/chat/${this.#chat.id}`);
    assert(response.ok, `GET the chat: ${response.status}`);
    const { messages } = await response.json();
    const parts = messages.flatMap(message => message.parts);
    const own = parts.filter(part => part.type === `tool-${name}`);
    assert.equal(own.length, 1, `parts of ${name} in the history`);
    return { part: own[0], approval: newestApproval(messages, own[0].toolCallId) };
  }

  /** The newest state of the approval of a call that the page holds. */
  approvalOf({ toolCallId }) {
    return newestApproval(this.#chat.messages, toolCallId);
  }

  /** The description of the approval request that the page shows for a call. */
  descriptionOf(part) {
    return this.approvalDataOf(part).description;
  }

  /** What the page holds about the approval of a call. */
  approvalDataOf({ toolCallId }) {
    const data = this.#chat.messages.flatMap(({ parts }) => parts);
    return data.findLast(({ type, id }) => type === 'data-approval' && id === toolCallId).data;
  }

  /** Gives the result of a client-executed tool. */
  async giveOutput(part, result) {
    await this.#posting(() => this.#chat.addToolOutput({ toolCallId: part.toolCallId, ...result }));
  }

  get messages() {
    return this.#chat.messages;
  }

  message(index) {
    const message = this.#chat.messages.at(index);
    assert(message, `there is no message ${index}`);
    return message;
  }

  get lastMessage() {
    return this.message(-1);
  }

  /** The one part of a tool in a message, which must be in `state`. */
  toolPart(name, state, message = this.lastMessage) {
    const parts = message.parts.filter(part => part.type === `tool-${name}`);
    assert.equal(parts.length, 1, `parts of ${name} in ${shapeOf(message)}`);
    assert.equal(parts[0].state, state, `state of ${name}`);
    return parts[0];
  }

  /** The text of the last step of a message, which must not be empty. */
  replyOf(message = this.lastMessage) {
    const reply = replyOf(message);
    assert(reply, `no reply after the last step: ${shapeOf(message)}`);
    return reply;
  }

  /**
   * Checks the end of the conversation: no further request is sent, each turn has one user and one
   * assistant message, only parts in one of the states of `open` are open, and the server of this
   * version accepts the messages.
   */
  async end({ turns = 1, open = [], isValid = true } = {}) {
    await pause(LATE_REQUEST_MS);
    this.#checkPosts();
    this.#checkOutcome();
    const messages = json(this.#chat.messages);
    const roles = messages.map(message => message.role);
    const expectedRoles = Array.from({ length: turns }, () => ['user', 'assistant']).flat();
    assert.deepEqual(roles, expectedRoles, 'roles of the messages');
    const ids = new Set(messages.map(message => message.id));
    assert.equal(ids.size, messages.length, 'distinct message ids');
    const unsettled = UNSETTLED.filter(state => !open.includes(state));
    for (const message of messages) {
      const isOpen = message.parts.some(part => unsettled.includes(part.state));
      assert(!isOpen, `left open: ${shapeOf(message)}`);
    }
    const { success, error } = await this.#client.safeValidateUIMessages({ messages });
    assert.equal(success, isValid, error?.message);
  }

  #fetch = (url, init) => {
    if (++this.#posted > this.#announced) throw new Error(this.#unexpectedPost());
    return this.#fetchOfPage(url, init);
  };

  async #posting(act, status = 'ready') {
    this.#announced++;
    this.#expectedStatus = status;
    await act();
    await until(
      () => `POST ${this.#announced} is answered: ${this.#posted} sent, ${this.#state()}`,
      () => this.#isOver(),
    );
    this.#checkPosts();
    this.#checkOutcome();
  }

  #isOver() {
    const answered = this.#posted >= this.#announced && this.#finished >= this.#posted;
    return answered && ['ready', 'error'].includes(this.#chat.status);
  }

  #checkPosts(most = this.#announced) {
    assert(this.#posted <= most, this.#unexpectedPost());
  }

  #checkOutcome() {
    const reported = this.#errors.map(error => `${error.name}: ${error.message.slice(0, 300)}`);
    assert.equal(
      this.#errors.length,
      this.#expectedErrors,
      `errors reported to the application: ${reported.join(' | ')}`,
    );
    assert.equal(this.#chat.status, this.#expectedStatus, 'status of the chat');
  }

  #unexpectedPost() {
    return `POST ${this.#posted} was not expected: ${this.#state()}`;
  }

  #state() {
    return `status ${this.#chat.status}, last ${shapeOf(this.#chat.messages.at(-1))}`;
  }
}

function newestApproval(messages, toolCallId) {
  const data = messages.flatMap(({ parts }) => parts).filter(part => part.type === 'data-approval');
  return data.findLast(({ id }) => id === toolCallId)?.data.state;
}

const UNSETTLED = [
  'streaming',
  'input-streaming',
  'input-available',
  'approval-requested',
  'approval-responded',
];

function replyOf({ parts }) {
  const lastStep = parts.slice(parts.findLastIndex(part => part.type === 'step-start') + 1);
  return lastStep
    .map(part => (part.type === 'text' ? part.text : ''))
    .join('')
    .trim();
}

function shapeOf({ role, parts }) {
  const shapes = parts.map(({ type, state }) => (state ? `${type} ${state}` : type));
  return `${role} [${shapes.join(', ')}]`;
}

const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
