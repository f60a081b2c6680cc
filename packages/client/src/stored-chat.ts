import { DefaultChatTransport } from 'ai';
import type { ChatEvent } from './events.js';
import { answersOf, isOpen, reopened, withAnswer, type Answer, type AskingPart } from './messages.js';
import { reconnectingFetch } from './reconnecting-fetch.js';
import { isMissing, isOfConnection, isRefusal, soon, type Begun, type Posted, type Sending } from './sending.js';
import {
  defaultServer,
  type AnswerEnd,
  type ApprovalAnswer,
  type ChatServer,
  type History,
  type Message,
} from './server.js';

/** What this package uses of `Chat`, which each framework has its own class for. */
export type AnyChat<M extends Message> = {
  messages: M[];
  readonly status: 'submitted' | 'streaming' | 'ready' | 'error';
  readonly error: Error | undefined;
  // The arguments differ between versions and frameworks, and are passed on.
  sendMessage(message?: never, options?: never): Promise<void>;
  regenerate(options?: never): Promise<void>;
  addToolApprovalResponse(answer: { id: string; approved: boolean; reason?: string }): unknown;
  addToolOutput(output: never): unknown;
  clearError(): void;
  resumeStream(): Promise<void>;
  stop(): Promise<void>;
};

/** What a `Chat` is made with, besides the options of the page. */
export type ChatParts = {
  id: string;
  transport: object;
  sendAutomaticallyWhen: (sent: { messages: readonly Message[] }) => boolean;
  onFinish: (finished: unknown) => void;
};

export type StoredChatOptions = {
  id: string;
  server: ChatServer;
  /** The page has made the id, so the server has no such chat yet. */
  isNew?: boolean | undefined;
  /** More fields for the body of each request. */
  body?: (() => Record<string, unknown>) | undefined;
  /** Called after each response, with the argument of the AI SDK. */
  onFinish?: ((finished: unknown) => void) | undefined;
};

/** The options of a framework's `Chat` that are not about the connection, and those of this package. */
export type PageOptions<Init> = Omit<
  Init,
  'id' | 'messages' | 'transport' | 'sendAutomaticallyWhen' | 'experimental_queue'
> &
  Pick<StoredChatOptions, 'id' | 'isNew' | 'body'> & {
    /** How the server is reached. Default: `/api/chat` of the page's origin. Make it outside of the component. */
    server?: ChatServer;
  };

/** Separates the options of this package from those of the framework's `Chat`. */
export function separateOptions<Init>(all: PageOptions<Init>): { options: StoredChatOptions; init: object } {
  const { id, server = defaultServer(), isNew, body, onFinish, ...init } = all as PageOptions<StoredChatOptions>;
  return { options: { id, server, isNew, body, onFinish }, init };
}

/**
 * What the chat does. As the `status` of the AI SDK, and besides: `opening`, while the chat is read from the server;
 * `reconnecting`, after a connection has broken or the server of the answer was lost; `stopping`.
 */
export type Status = 'opening' | 'submitted' | 'streaming' | 'reconnecting' | 'stopping' | 'ready' | 'error';

/** What a page shows beside the messages of the AI SDK's `Chat`. */
export type State = {
  phase: 'idle' | 'opening' | 'stopping';
  isReconnecting: boolean;
  /** Whether the user has no chat with this id, or has deleted it. */
  isUnknown: boolean;
  /** How the last answer has ended. `undefined` while one is written. */
  ended: AnswerEnd | undefined;
  /** The place of older messages on the server, if there are any. */
  before: string | undefined;
  /** The messages of the user that the server lacks, the oldest first. */
  undelivered: readonly Message[];
  /** Why Stop, an answer or older messages have failed, or why a message has not arrived. */
  problem: Error | undefined;
};

/** A chat that the server stores, with a `Chat` of the AI SDK in front of it. */
export class StoredChat<M extends Message, C extends AnyChat<M>> {
  readonly id: string;
  readonly chat: C;
  readonly server: ChatServer;
  readonly #options: StoredChatOptions;
  readonly #listeners = new Set<() => void>();
  #state: State;
  #connection: 'none' | 'open' | 'closed' = 'none';
  /** What the user has sent and the server may lack, the oldest first. The answers are not among it. */
  #unsent: Sending<M>[] = [];
  /** The request whose body is made next. */
  #next: Sending<M> | undefined;
  /** Fulfilled when the last request of the user has its response: then the next one begins. */
  #turn: Promise<unknown> = Promise.resolve();
  /** The answers to questions and the outputs of tools that the server may lack, by the id of approval or call. */
  readonly #answers = new Map<string, Answer>();
  /**
   * The changed inputs, by the ids of the approvals. They stay after the answer was sent: it may be sent again, and
   * must not run the input of the model then. The server ignores an input after the first answer.
   */
  readonly #inputs = new Map<string, unknown>();
  /** What else has failed, by its name, and how it is done again. */
  readonly #failures = new Map<string, { error: Error; again: () => Promise<void> }>();
  /** How many requests have begun: a history that was read across the begin of one is not shown. */
  #requests = 0;
  /** Fulfilled when the last request has its response, and the history is read. */
  #arriving: Promise<unknown> = Promise.resolve();
  #opening: Promise<void> | undefined;
  #stopping: Promise<void> = Promise.resolve();
  #isStored: boolean;
  /** The version of the messages that are shown, and the newest that an event names. */
  #version: number | undefined;
  #newest: number | undefined;
  /** Whether the server may hold something else, whatever the versions are. */
  #isOutdated = false;
  #isRefreshing = false;

  constructor(options: StoredChatOptions, newChat: (parts: ChatParts) => C) {
    this.id = options.id;
    this.server = options.server;
    this.#options = options;
    this.#isStored = !options.isNew;
    this.#state = {
      phase: options.isNew ? 'idle' : 'opening',
      isReconnecting: false,
      isUnknown: false,
      ended: undefined,
      before: undefined,
      undelivered: [],
      problem: undefined,
    };
    const stream = `${this.server.url(this.id)}/stream`;
    this.chat = newChat({
      id: this.id,
      transport: new DefaultChatTransport({
        api: this.server.api,
        fetch: (url, init = {}) => (init.method === 'POST' ? this.#post(url, init) : this.#resume(url, init)),
        prepareReconnectToStreamRequest: () => ({ api: stream }),
        // The server has the other messages.
        prepareSendMessagesRequest: ({ body, messages, trigger, messageId }) => {
          const { id } = this;
          const message = messages.at(-1);
          const approvalInputs = this.#inputsOf(message as Message | undefined);
          return { body: { ...this.#options.body?.(), ...body, id, message, trigger, messageId, approvalInputs } };
        },
      }),
      // Each answer is sent at once, also beside open questions. The server calls the model after the last one.
      sendAutomaticallyWhen: ({ messages }) => answersOf(messages.at(-1), this.#answers).length > 0,
      onFinish: finished => {
        const { isError } = finished as { isError: boolean };
        queueMicrotask(() => {
          if (isError && !isOfConnection(this.chat.error)) this.#set({ ended: 'failed' });
          this.#catchUp();
        });
        options.onFinish?.(finished);
      },
    });
  }

  get state(): State {
    return this.#state;
  }

  get messages(): M[] {
    const { undelivered } = this.state;
    return undelivered.length === 0 ? this.chat.messages : [...this.chat.messages, ...(undelivered as M[])];
  }

  get status(): Status {
    const { phase, isReconnecting } = this.state;
    if (phase !== 'idle') return phase;
    return isReconnecting ? 'reconnecting' : this.chat.status;
  }

  /** Whether an answer is written, or the chat is read. */
  get isBusy(): boolean {
    return this.status !== 'ready' && this.status !== 'error';
  }

  get error(): Error | undefined {
    return this.state.problem ?? this.chat.error;
  }

  /** Whether the user has no chat with this id, or has deleted it. */
  get isUnknown(): boolean {
    return this.state.isUnknown;
  }

  /**
   * How the last answer has ended, if it is not complete: also one that was stopped, or has failed, before it had a
   * message. `answerEnd` tells it of each message.
   */
  get ended(): Exclude<AnswerEnd, 'finished'> | undefined {
    const { ended } = this.state;
    return ended === 'finished' ? undefined : ended;
  }

  /** Reads older messages. `undefined` if all are shown. */
  get loadOlder(): (() => Promise<void>) | undefined {
    const { before } = this.state;
    return before === undefined ? undefined : () => this.#loadOlder(before);
  }

  /** Calls a function after each change of `state`. Returns what ends this. */
  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  };

  /** Opens the chat, and shows what other pages and devices do in it. Returns what ends this. */
  connect(): () => void {
    this.#connection = 'open';
    const unsubscribe = this.server.events.subscribe(event => this.#onEvent(event));
    if (this.#isStored || this.chat.messages.length > 0) void this.#open();
    return () => {
      this.#connection = 'closed';
      unsubscribe();
      // What the user has sent still arrives: `#request` ends it then.
      if (this.chat.status === 'streaming') void this.chat.stop();
    };
  }

  /** Sends a message. It ends an answer that is being written, and follows the messages that have not arrived. */
  readonly sendMessage = (async (message: never, options: never) => {
    this.#discardRefused();
    for (const unsent of [...this.#unsent]) await this.#resend(unsent).arrived;
    const { messageId } = (message ?? {}) as { messageId?: string };
    const edited = messageId === undefined ? undefined : this.#partsOf(messageId);
    await this.#send({ options, edited }, () => this.chat.sendMessage(message, options)).ended;
  }) as C['sendMessage'];

  /** Writes the last answer again. */
  readonly regenerate = (async (options: never) => {
    this.#discardRefused();
    await this.#send({ options }, async () => {
      if (this.chat.messages.length > 0) await this.chat.regenerate(options);
    }).ended;
  }) as C['regenerate'];

  /**
   * Answers a question. It is sent at once, also beside other open questions. An answer to a question of an earlier
   * message, which `staysOpen`, goes to `approval_routes`.
   */
  readonly respond = async ({ approval }: AskingPart, { input, ...answer }: ApprovalAnswer): Promise<void> => {
    const { id } = approval ?? {};
    if (id === undefined) throw new Error('this part has no approval request');
    await soon(this.#arriving);
    const part = this.#lastParts().find(part => part.approval?.id === id);
    if (!part) return this.#decide(id, { input, ...answer });
    if (!isOpen(part)) return;
    if (input === undefined) this.#inputs.delete(id);
    else this.#inputs.set(id, input);
    const { approved, reason } = answer;
    const approvalAnswer = { approved, ...(reason !== undefined && { reason }) };
    this.#answers.set(id, approvalAnswer);
    await this.chat.addToolApprovalResponse({ id, ...approvalAnswer });
  };

  /** Gives the output of a tool of the page. */
  readonly addToolOutput = (async (output: never) => {
    await soon(this.#arriving);
    const { toolCallId, state = 'output-available', ...given } = output as { toolCallId: string; state?: string };
    const part = this.#lastParts().find(part => part.toolCallId === toolCallId);
    if (part && isOpen(part)) this.#answers.set(toolCallId, { state, ...given });
    await this.chat.addToolOutput(output);
  }) as C['addToolOutput'];

  /** Stops the answer. The server keeps what was written. */
  readonly stop = (): Promise<void> => {
    this.#set({ phase: 'stopping' });
    this.#stopping = this.#attempt('stop', async () => {
      void this.chat.stop(); // it waits for the tools of the page
      await this.server.stop(this.id).finally(() => this.#set({ phase: 'idle' }));
      // The server has ended the open calls, and has closed the questions.
      this.#isOutdated = true;
    });
    return this.#stopping;
  };

  /** Tries again what has failed: sends, reads or writes again, whichever the server lacks. */
  readonly retry = async (): Promise<void> => {
    const failures = [...this.#failures.values()];
    const isOfChat = failures.length === 0 || this.chat.error !== undefined || this.#unsent.length > 0;
    this.#clearErrors();
    for (const { again } of failures) await again();
    if (!isOfChat) return;
    const [...earlier] = this.#unsent;
    const last = earlier.pop();
    if (last) {
      for (const unsent of earlier) await this.#resend(unsent).arrived;
      await this.#resend(last).ended;
    } else if (answersOf(this.chat.messages.at(-1), this.#answers).length > 0) {
      await this.#send({ isOfAnswers: true }, () => this.chat.sendMessage()).ended;
    } else if (this.state.ended === 'failed' || this.state.ended === 'interrupted') {
      await this.regenerate();
    } else {
      await this.#open();
    }
  };

  /** Removes the error, and a message that the server has refused. */
  readonly clearError = (): void => {
    this.#clearErrors();
    this.#discardRefused();
  };

  #clearErrors() {
    this.#failures.clear();
    this.chat.clearError();
    this.#update();
  }

  #set(changed: Partial<State>) {
    this.#state = { ...this.#state, ...changed };
    for (const listener of this.#listeners) listener();
  }

  #lastParts(): readonly AskingPart[] {
    return (this.chat.messages.at(-1)?.parts ?? []) as never;
  }

  /** The parts of a message as text, to compare them. */
  #partsOf(messageId: string): string | undefined {
    return JSON.stringify(this.chat.messages.find(({ id }) => id === messageId)?.parts);
  }

  /** Begins a request of the user, after the one before has its response. */
  #send(sending: Omit<Sending<M>, 'isRefused'>, begin: () => Promise<void>): Begun {
    const before = this.#turn;
    let arrive = () => {};
    const arrived = new Promise<void>(resolve => (arrive = resolve));
    this.#turn = arrived;
    const send = async () => {
      await soon(before);
      await this.#makeFree();
      this.#next = { ...sending, isRefused: false, arrive };
      await begin();
    };
    const ended = send().finally(arrive);
    ended.catch(() => {}); // whoever waits for it sees the error
    return { arrived, ended };
  }

  /** Sends again what the server lacks. */
  #resend(unsent: Sending<M>): Begun {
    const { message, regenerated, edited, options } = unsent;
    return this.#send({ ...unsent }, () => {
      this.#setUnsent(this.#unsent.filter(other => other !== unsent));
      if (regenerated) {
        const isShown = this.chat.messages.some(({ id }) => id === regenerated.messageId);
        return this.chat.regenerate({ ...(options as object), ...(isShown && regenerated) } as never);
      }
      if (edited === undefined) return this.chat.sendMessage(message as never, options as never);
      const { id, parts, metadata } = message as Message;
      return this.chat.sendMessage({ parts, metadata, messageId: id } as never, options as never);
    });
  }

  #discardRefused() {
    this.#setUnsent(this.#unsent.filter(({ isRefused }) => !isRefused));
  }

  #setUnsent(unsent: Sending<M>[]) {
    this.#unsent = unsent;
    this.#update();
  }

  /** Shows what has not arrived, and the last failure. */
  #update() {
    // A message with another text stands at its old place.
    const added = this.#unsent.filter(({ edited }) => edited === undefined);
    const undelivered = added.flatMap(({ message }) => message ?? []);
    const problem = [...this.#failures.values(), ...this.#unsent].at(-1)?.error;
    this.#set({ undelivered, problem });
  }

  /** Does what may fail. The failure becomes the `problem`, and `retry` does it again. */
  async #attempt(name: string, act: () => Promise<void>): Promise<void> {
    this.#failures.delete(name);
    await act().catch((error: Error) => {
      this.#failures.set(name, { error, again: () => this.#attempt(name, act) });
    });
    this.#update();
    this.#catchUp();
  }

  /** Waits until the last request has arrived and Stop is done, and ends what this page reads. */
  async #makeFree() {
    await soon(Promise.all([this.#arriving, this.#stopping]));
    this.#clearErrors();
    if (this.isBusy) await soon(this.chat.stop());
  }

  /** Reads the chat from the server, and the answer that is being written. */
  #open(): Promise<void> {
    this.#opening ??= this.#read().finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  async #read() {
    this.chat.clearError();
    this.#set({ phase: 'opening' });
    await this.chat.resumeStream();
  }

  #loadOlder(before: string) {
    return this.#attempt('older', async () => {
      const page = await this.server.history<M>(this.id, { before });
      if (!page || this.#state.before !== before) return;
      this.chat.messages = [...page.messages, ...this.chat.messages];
      this.#set({ before: page.before });
    });
  }

  #decide(id: string, answer: ApprovalAnswer) {
    return this.#attempt(id, async () => {
      const isAccepted = await this.server.decide(id, answer);
      this.#isOutdated = true;
      if (!isAccepted) throw new Error(this.server.texts.notAccepted);
    });
  }

  /** The changed inputs of the calls of a message. */
  #inputsOf(message: Message | undefined): Record<string, unknown> {
    const parts = (message?.parts ?? []) as readonly AskingPart[];
    const ids = parts.map(({ approval }) => approval?.id ?? '').filter(id => this.#inputs.has(id));
    return Object.fromEntries(ids.map(id => [id, this.#inputs.get(id)]));
  }

  get #reconnecting() {
    return {
      fetch: this.server.fetch,
      lost: this.server.texts.lost,
      onReconnecting: (isReconnecting: boolean) => this.#set({ isReconnecting }),
    };
  }

  #post(url: string | URL | Request, init: RequestInit): Promise<Response> {
    const { message, trigger, messageId } = JSON.parse(`${init.body}`) as Posted<M>;
    const isRegenerated = trigger === 'regenerate-message';
    const isOfUser = isRegenerated || message?.role === 'user';
    const sending = this.#takeNext(isOfUser);
    if (isRegenerated) sending.regenerated = { messageId };
    else if (isOfUser) sending.message = message;
    sending.version = this.#version;
    // Those that this body has: another one may be given before the response.
    const answered = answersOf(message, this.#answers);
    this.#set({ phase: 'idle', ended: undefined });
    return this.#request(async () => {
      try {
        const response = await reconnectingFetch(url, init, this.#reconnecting);
        if (!response.ok) throw await this.server.refusal(response);
        this.#isStored = true;
        for (const id of answered) this.#answers.delete(id);
        this.#set({ isUnknown: false });
        return response;
      } catch (error) {
        this.#isOutdated = true;
        sending.isRefused = isRefusal(error);
        if (sending.isRefused) this.#reopen(answered);
        if (isOfUser) {
          const isStopped = init.signal?.aborted;
          sending.error = isStopped ? new Error(this.server.texts.notArrived) : (error as Error);
          // It is shown after the messages that the server has.
          const { id } = sending.edited === undefined ? (sending.message ?? {}) : {};
          this.chat.messages = this.chat.messages.filter(shown => shown.id !== id);
          this.#setUnsent([...this.#unsent, sending]);
        }
        throw error;
      } finally {
        sending.arrive?.();
      }
    });
  }

  /** The request that `#send` has begun. The AI SDK sends answers without it. */
  #takeNext(isOfUser: boolean): Sending<M> {
    const next = this.#next;
    if (!next || (!isOfUser && !next.isOfAnswers)) return { isRefused: false };
    this.#next = undefined;
    return next;
  }

  /** Opens questions again whose answers the server has refused: nothing is stored. */
  #reopen(ids: readonly string[]) {
    for (const id of ids) {
      this.#answers.delete(id);
      this.#inputs.delete(id);
    }
    this.#changeLast(part => (ids.includes(part.approval?.id ?? '') || ids.includes(part.toolCallId) ? reopened(part) : part));
  }

  #changeLast(change: (part: AskingPart) => AskingPart) {
    const last = this.chat.messages.at(-1);
    if (!last) return;
    const parts = (last.parts as readonly AskingPart[]).map(change);
    this.chat.messages = [...this.chat.messages.slice(0, -1), { ...last, parts }];
  }

  /** Opens the stream first and reads the history then: a response that has ended in between is in the history. */
  async #resume(url: string | URL | Request, init: RequestInit): Promise<Response> {
    const resumed = this.#request(async () => {
      const response = await reconnectingFetch(url, init, this.#reconnecting);
      if (!response.ok) throw await this.server.refusal(response);
      try {
        const page = await this.server.history<M>(this.id, { signal: init.signal });
        init.signal?.throwIfAborted();
        this.#show(page);
      } catch (error) {
        void response.body?.cancel();
        throw error;
      }
      return response;
    });
    const requests = this.#requests;
    return resumed.finally(() => {
      if (requests !== this.#requests) return;
      this.#set({ phase: 'idle' });
      queueMicrotask(() => this.#catchUp());
    });
  }

  #request(send: () => Promise<Response>): Promise<Response> {
    this.#requests += 1;
    const response = send();
    this.#arriving = response.catch(() => {});
    // A page that is closed reads nothing.
    void this.#arriving.then(() => setTimeout(() => this.#connection === 'closed' && void this.chat.stop()));
    return response;
  }

  #show(page: History<M> | undefined) {
    const shown = this.chat.messages;
    const messages = page?.messages ?? [];
    const [first] = messages;
    // Older messages that were read stay, if the page continues them.
    const older = first && page?.before !== undefined ? shown.findIndex(({ id }) => id === first.id) : -1;
    const kept = older > 0 ? shown.slice(0, older) : [];
    this.chat.messages = [...kept, ...messages];
    this.#unsent = this.#unsent.filter(unsent => isMissing(unsent, page));
    this.#answerAgain();
    // An error that is no longer true.
    const { ended } = page ?? {};
    const isWhole = ended !== 'failed' && ended !== 'interrupted' && this.#unsent.length === 0 && this.#answers.size === 0;
    if (isWhole && !isRefusal(this.chat.error)) this.chat.clearError();
    this.#version = page?.version;
    this.#update();
    this.#set({ before: kept.length > 0 ? this.#state.before : page?.before, ended, isUnknown: !page && this.#isStored });
  }

  /** Shows the answers that the server lacks. Those to questions that are closed are removed. */
  #answerAgain() {
    const given = new Map(this.#answers);
    this.#answers.clear();
    if (given.size === 0) return;
    this.#changeLast(part => {
      const id = [part.approval?.id, part.toolCallId].find(id => id !== undefined && given.has(id));
      const answer = id !== undefined && isOpen(part) ? given.get(id) : undefined;
      if (!answer) return part;
      this.#answers.set(id as string, answer);
      return withAnswer(part, answer);
    });
  }

  #onEvent(event: ChatEvent) {
    if (event.type === 'deleted') {
      if (event.id !== this.id) return;
      this.#newest = undefined;
      this.#show(undefined);
      return;
    }
    const chats = event.type === 'chats' ? event.chats : [event.chat];
    const own = chats.find(({ id }) => id === this.id);
    if (own) this.#newest = own.version;
    // All chats of the user, without this one: it was deleted while no events came.
    else if (event.type === 'chats' && event.after === undefined) this.#isOutdated ||= this.#version !== undefined;
    this.#catchUp();
  }

  /** Reads the messages again if the server has others, and the page does nothing else. */
  #catchUp() {
    // A chat that was deleted and begun again has a lower version. An older event costs a request.
    const isBehind = this.#isOutdated || (this.#newest !== undefined && this.#newest !== this.#version);
    if (!isBehind || !this.#isFree() || this.#isRefreshing) return;
    this.#isOutdated = false;
    this.#isRefreshing = true;
    this.#refresh()
      .catch(async () => {
        this.#isOutdated = true;
        await new Promise(wake => setTimeout(wake, REFRESH_PAUSE));
      })
      .finally(() => {
        this.#isRefreshing = false;
        this.#catchUp();
      });
  }

  #isFree(): boolean {
    return this.#connection === 'open' && !this.isBusy;
  }

  async #refresh() {
    const requests = this.#requests;
    const newest = this.#newest;
    const page = await this.server.history<M>(this.id, { isUnasked: true });
    if (requests !== this.#requests || !this.#isFree()) {
      this.#isOutdated = true;
      return;
    }
    if (newest === this.#newest) this.#newest = undefined;
    this.#show(page);
    const isLive = page !== undefined && page.ended === undefined && page.messages.length > 0;
    if (isLive) void this.#open();
  }
}

/** Milliseconds before the history is read again after a failure that the user does not see. */
const REFRESH_PAUSE = 5_000;
