import { DefaultChatTransport } from 'ai';
import { Answers, callsOf, isOpen, type Answer } from './answers.js';
import type { ChatEvent } from './events.js';
import type { AskingPart } from './messages.js';
import { isMissing, isOfConnection, isRefusal, messageOf, nextOf, soon, type NewMessage, type Sending } from './outbox.js';
import { reconnectingFetch } from './reconnecting-fetch.js';
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
  readonly generateId: () => string;
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
  phase: 'idle' | 'opening' | 'submitted' | 'stopping';
  isReconnecting: boolean;
  /** Whether the user has no chat with this id, or has deleted it. */
  isUnknown: boolean;
  /** How the last answer has ended. `undefined` while one is written. */
  ended: AnswerEnd | undefined;
  /** The place of older messages on the server, if there are any. */
  before: string | undefined;
  /** The messages of the user that the server may lack, the oldest first. */
  undelivered: readonly Message[];
  /** Why Stop, an answer or older messages have failed, or why a message has not arrived. */
  problem: Error | undefined;
};

/** What became of a request: an error, `none` if no answer is written, or its response, which is read now. */
type Arrival = Error | 'none' | 'response';

/**
 * A chat that the server stores, with a `Chat` of the AI SDK in front of it.
 *
 * `#next` decides what is done, one thing after the other: a request that the AI SDK begins while it reads the response
 * of another one ends both. What the user has sent stays in the outbox, and answers stay in `#answers`, until the
 * server has them.
 */
export class StoredChat<M extends Message, C extends AnyChat<M>> {
  readonly id: string;
  readonly chat: C;
  readonly server: ChatServer;
  readonly #listeners = new Set<() => void>();
  #state: State;
  #connection: 'none' | 'open' | 'closed' = 'none';
  /** What the user has sent and the server may lack, the oldest first. */
  #outbox: Sending<M>[] = [];
  /** The one that is being sent. */
  #current: Sending<M> | undefined;
  readonly #answers = new Answers();
  /** Answers could not be sent. They are sent again when the user does something. */
  #haveAnswersFailed = false;
  /** What else has failed, by its name, and how it is done again. */
  readonly #failures = new Map<string, { error: Error; again: () => Promise<void> }>();
  /** Fulfilled when nothing is due. */
  #working: Promise<void> | undefined;
  /** Fulfilled when the response of the last request was read. `undefined` if it was. */
  #reading: Promise<void> | undefined;
  /** Tells what became of the last request. */
  #arrive: (arrival: Arrival) => void = () => {};
  #opening: 'none' | 'due' | 'begun' = 'none';
  /** Ends the reading of the messages, until their response is there. */
  #reader = new AbortController();
  #preparing: Promise<unknown> = Promise.resolve();
  #stopping: Promise<void> = Promise.resolve();
  #isStored: boolean;
  /** The version of the messages that are shown, and the newest that an event names. */
  #version: number | undefined;
  #newest: number | undefined;
  /** Whether the server may hold something else, whatever the versions are. */
  #isOutdated = false;
  /** The messages could not be read, and are read again after a while. */
  #isPausing = false;

  constructor(options: StoredChatOptions, newChat: (parts: ChatParts) => C) {
    this.id = options.id;
    this.server = options.server;
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
          const message = messages.at(-1) as Message | undefined;
          const approvalInputs = this.#answers.inputsIn(message);
          return { body: { ...options.body?.(), ...body, id, message, trigger, messageId, approvalInputs } };
        },
      }),
      onFinish: finished => options.onFinish?.(finished),
    });
  }

  get state(): State {
    return this.#state;
  }

  get messages(): M[] {
    return withUndelivered(this.chat.messages, this.state);
  }

  get status(): Status {
    const { phase, isReconnecting } = this.state;
    if (phase !== 'idle') return phase;
    if (isReconnecting) return 'reconnecting';
    // The AI SDK says so only when the response is there, or still for a moment afterwards.
    const { status } = this.chat;
    return this.#reading && status !== 'streaming' ? 'submitted' : status;
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
      void this.#work(); // what the user has sent still arrives
    };
  }

  /** Sends a message. It ends an answer that is being written, and follows the messages that have not arrived. */
  readonly sendMessage = (async (message: never, options: never) => {
    if (message) await this.#prepare(message, options);
    await this.#act();
  }) as C['sendMessage'];

  /** Writes the last answer again, or that with this `messageId`. */
  readonly regenerate = (async ({ messageId, ...options }: { messageId?: string } = {}) => {
    const last = this.chat.messages.at(-1)?.id;
    // A message that has not arrived has no answer, and a second click is no second wish.
    const isUnsent = messageId === undefined && this.state.undelivered.length > 0;
    const isIt = (sending: Sending<M>) => sending.type === 'regeneration' && sending.messageId === messageId && !sending.error;
    if (last !== undefined && !isUnsent && !this.#outbox.some(isIt)) {
      this.#discardFailed();
      this.#outbox.push({ type: 'regeneration', messageId, last, options });
    }
    await this.#act();
  }) as C['regenerate'];

  /**
   * Answers a question. It is sent at once, also beside other open questions. An answer to a question of an earlier
   * message, which `staysOpen`, goes to `approval_routes`.
   */
  readonly respond = async ({ approval }: AskingPart, { input, ...answer }: ApprovalAnswer): Promise<void> => {
    const { id } = approval ?? {};
    if (id === undefined) throw new Error('this part has no approval request');
    const part = callsOf(this.chat.messages.at(-1)).find(part => part.approval?.id === id);
    if (!part) return this.#decide(id, { input, ...answer });
    if (!isOpen(part)) return;
    const { approved, reason } = answer;
    const given = { approved, ...(reason !== undefined && { reason }) };
    this.#answers.add(id, given, input);
    this.#showAnswers();
    await this.chat.addToolApprovalResponse({ id, ...given }); // so that later chunks do not overwrite it
    await this.#act();
  };

  /** Gives the output of a tool of the page. If the call needs an approval, the output is sent after the approval. */
  readonly addToolOutput = (async (output: never) => {
    const { toolCallId, state = 'output-available', ...others } = output as Output;
    const part = callsOf(this.chat.messages.at(-1)).find(part => part.toolCallId === toolCallId);
    const isEarly = part?.state.startsWith('approval-') ?? false;
    if (part && (isOpen(part) || isEarly)) {
      const { output: value, errorText } = others;
      const answer: Answer = state === 'output-error' ? { state, errorText } : { state, output: value };
      this.#answers.add(toolCallId, answer);
      this.#showAnswers();
    }
    if (isEarly) return;
    await this.chat.addToolOutput(output);
    // The AI SDK reads on when the tool of the page has ended.
    void this.#act();
  }) as C['addToolOutput'];

  /** Stops the answer. The server keeps what was written. */
  readonly stop = (): Promise<void> => {
    if (this.#state.phase === 'stopping') return this.#stopping;
    this.#set({ phase: 'stopping' });
    this.#stopping = this.#attempt('stop', async () => {
      this.#reader.abort();
      void this.chat.stop(); // it waits for the tools of the page
      try {
        await this.server.stop(this.id);
        // The server has ended the open calls, and has closed the questions.
        this.#answers.forgetClosed(undefined);
      } finally {
        this.#isOutdated = true;
        this.#leave('stopping');
      }
    });
    return this.#stopping;
  };

  /** Tries again what has failed: sends, reads or writes again, whichever the server lacks. */
  readonly retry = async (): Promise<void> => {
    const failures = [...this.#failures.values()];
    const isLost = this.chat.error !== undefined && !this.#failures.has('open');
    const isOfChat = failures.length === 0 || isLost || this.#outbox.length > 0 || this.#hasAnswers;
    this.#clearErrors();
    for (const { again } of failures) await again();
    if (!isOfChat) return;
    if (this.#outbox.length > 0 || this.#hasAnswers) {
      this.#sendAgain(() => true);
      await this.#act();
    } else if (this.state.ended === 'failed' || this.state.ended === 'interrupted') {
      await this.regenerate();
    } else if (!this.isBusy) {
      await this.#open();
    }
  };

  /** Removes the error, and a message that the server has refused. Another one that has not arrived waits. */
  readonly clearError = (): void => {
    this.#discardFailed();
    this.#outbox = this.#outbox.map(sending => (sending.error ? { ...sending, isHidden: true } : sending));
    this.#clearErrors();
  };

  /** Puts a message into the outbox. */
  async #prepare(given: NewMessage, options: unknown) {
    const prepared = this.#preparing.then(() => messageOf(given, this.chat.generateId));
    this.#preparing = prepared.catch(() => {});
    const message = (await prepared) as M;
    const isIt = (sending: Sending<M>) => sending.type !== 'regeneration' && sending.message.id === message.id;
    const waiting = this.#outbox.find(sending => isIt(sending) && sending !== this.#current);
    const replaced = this.chat.messages.find(({ id }) => id === given.messageId);
    if (waiting) {
      // It is sent in the place of the one that has not arrived.
      const changed = { ...waiting, message, options, error: undefined };
      this.#outbox = this.#outbox.map(sending => (sending === waiting ? changed : sending));
    } else if (replaced) {
      this.#outbox.push({ type: 'edit', message, replaced: JSON.stringify(replaced.parts), options });
    } else {
      if (given.messageId !== undefined) throw new Error(`message with id ${given.messageId} not found`);
      this.#outbox.push({ type: 'message', message, options });
    }
    this.#discardFailed();
  }

  #clearErrors() {
    this.#failures.clear();
    this.chat.clearError();
    this.#update();
  }

  #set(changed: Partial<State>) {
    this.#state = { ...this.#state, ...changed };
    for (const listener of this.#listeners) {
      try {
        listener();
      } catch (error) {
        reportError(error);
      }
    }
  }

  #leave(phase: State['phase']) {
    if (this.#state.phase === phase) this.#set({ phase: 'idle' });
  }

  /** Shows what has not arrived, and the last failure. */
  #update() {
    const undelivered = this.#outbox.flatMap(sending => (sending.type === 'message' ? sending.message : []));
    const failed = [...this.#failures.values(), ...this.#outbox.filter(({ isHidden }) => !isHidden)];
    this.#set({ undelivered, problem: failed.flatMap(({ error }) => error ?? []).at(-1) });
  }

  /** Forgets what the server has refused, and changes of shown messages that have not arrived. */
  #discardFailed() {
    this.#outbox = this.#outbox.filter(({ type, error }) => !error || (type === 'message' && !isRefusal(error)));
  }

  /** What has failed with such an error is sent again. */
  #sendAgain(isIt: (error: Error) => boolean) {
    const again = { error: undefined, isHidden: false };
    this.#outbox = this.#outbox.map(sending => (sending.error && isIt(sending.error) ? { ...sending, ...again } : sending));
  }

  /** The user has done something. What waits is tried again, and is sent in its order. */
  async #act() {
    this.#sendAgain(error => !isRefusal(error));
    this.#haveAnswersFailed = false;
    this.#failures.clear();
    if (this.#opening !== 'begun') this.#reader.abort();
    this.#update();
    await this.#work();
    await this.#reading;
  }

  /** Reads the chat from the server, and the answer that is being written. */
  async #open() {
    if (this.#opening === 'none') this.#opening = 'due';
    if (!this.#reading) this.#set({ phase: 'opening' });
    await this.#work();
  }

  /** Does what is due. Fulfilled when nothing is. */
  #work(): Promise<void> {
    this.#working ??= this.#workOff();
    return this.#working;
  }

  async #workOff() {
    await undefined; // what is asked for at the same time belongs to it
    try {
      for (let act = this.#next(); act; act = this.#next()) await act();
    } finally {
      this.#working = undefined;
    }
  }

  /** Decides what is done next. What the user waits for comes first, and what the user has sent keeps its order. */
  #next(): (() => Promise<void>) | undefined {
    if (this.#state.phase === 'stopping') return undefined;
    if (this.#opening === 'due' && !this.#reading && this.#connection === 'open') return () => this.#read();
    // A message follows the answers that were given before it.
    const areAnswersHeld = this.#hasAnswers && this.#haveAnswersFailed;
    const sending = areAnswersHeld ? undefined : nextOf(this.#outbox);
    if (sending && this.#reading) return () => this.#endReading();
    if (this.#hasAnswers && !areAnswersHeld && !this.#reading) return () => this.#sendAnswers();
    if (sending) return () => this.#send(sending);
    if (this.#connection === 'closed' && this.#reading) void this.chat.stop();
    if (this.#connection !== 'open' || this.#reading || this.#isPausing) return undefined;
    // With `!==`: a chat that was deleted and begun again has a lower version. A late event costs a needless request.
    const isBehind = this.#isOutdated || (this.#newest !== undefined && this.#newest !== this.#version);
    return isBehind ? () => this.#read() : undefined;
  }

  get #hasAnswers(): boolean {
    return this.#answers.idsIn(this.chat.messages.at(-1)).length > 0;
  }

  async #send(sending: Sending<M>) {
    const shown = [...this.chat.messages]; // some frameworks change the list itself
    this.#current = sending;
    const arrival = await this.#submit(() => this.#begin(sending));
    this.#current = undefined;
    const isFailed = arrival instanceof Error;
    if (isFailed) this.chat.messages = shown; // until the server says otherwise
    this.#outbox = this.#outbox.flatMap(other =>
      other !== sending ? other : isFailed ? { ...sending, error: arrival } : [],
    );
    this.#update();
  }

  #begin(sending: Sending<M>): Promise<void> {
    const { options } = sending;
    const isShown = (messageId: string | undefined) => this.chat.messages.some(({ id }) => id === messageId);
    if (sending.type === 'regeneration') {
      const { messageId } = sending;
      return this.chat.regenerate({ ...(options as object), ...(isShown(messageId) && { messageId }) } as never);
    }
    const { id, ...content } = sending.message;
    // Another page may have removed the message that was changed.
    const isEdit = sending.type === 'edit' && isShown(id);
    return this.chat.sendMessage((isEdit ? { ...content, messageId: id } : sending.message) as never, options as never);
  }

  async #sendAnswers() {
    // The AI SDK would continue the last message with an approval, which may be an earlier one.
    const messageId = this.chat.messages.at(-1)?.id;
    const arrival = await this.#submit(() => this.chat.sendMessage(undefined, { messageId } as never));
    if (!(arrival instanceof Error)) return;
    this.#haveAnswersFailed = !isRefusal(arrival);
    // Both are shown also if a message follows, or another response is read. `retry` sends what is held. After Stop,
    // nothing is.
    if (isRefusal(arrival)) this.#failures.set('answers', { error: arrival, again: () => this.#open() });
    else if (this.#hasAnswers) this.#failures.set('held', { error: arrival, again: async () => {} });
    this.#update();
  }

  /** Ends the reading of an answer: a message follows. */
  async #endReading() {
    this.#set({ phase: 'submitted' });
    await soon(Promise.all([this.chat.stop(), this.#reading]));
    this.#reading = undefined;
  }

  async #submit(begin: () => Promise<void>): Promise<Arrival> {
    this.#set({ phase: 'submitted', ended: undefined });
    this.chat.clearError();
    const arrival = await this.#request(begin);
    this.#leave('submitted');
    return arrival;
  }

  /** Has the AI SDK begin a request, and waits for its response. */
  #request(begin: () => Promise<void>, isResumed = false): Promise<Arrival> {
    return new Promise(arrive => {
      this.#arrive = arrive;
      const notArrived = () => arrive(this.chat.error ?? new Error(this.server.texts.notArrived));
      const reading: Promise<void> = begin()
        .then(notArrived, arrive)
        .then(() => {
          if (this.#reading === reading) this.#hasRead(isResumed);
        });
      this.#reading = reading;
    });
  }

  #hasRead(isResumed: boolean) {
    this.#reading = undefined;
    const { status, error } = this.chat;
    const hasFailed = status === 'error' && !isOfConnection(error);
    this.#isOutdated ||= status === 'error';
    // The answer may fail at the same chunk again.
    if (status === 'error' && isResumed) this.#pause();
    this.#set(hasFailed ? { ended: 'failed' } : {});
    this.#showAnswers();
    void this.#work();
  }

  /** Reads the messages from the server, and the answer that is being written. */
  async #read() {
    const isAsked = this.#opening === 'due';
    if (isAsked) this.#opening = 'begun';
    this.#isOutdated = false;
    this.#reader = new AbortController();
    const ended = this.#reader.signal;
    const late = AbortSignal.timeout(MAX_READ);
    const signal = AbortSignal.any([ended, late]);
    const stop = () => void this.chat.stop();
    try {
      if (isAsked) this.chat.clearError();
      let isLive = await this.#readHistory(isAsked, signal);
      while (isLive) {
        signal.addEventListener('abort', stop);
        const arriving = this.#request(() => this.chat.resumeStream(), true);
        this.#leave('opening'); // the messages are shown
        const arrival = await arriving;
        if (arrival instanceof Error) throw arrival;
        if (arrival === 'response') break;
        // It has ended in between. If the chat has changed, another one may have begun.
        const version = this.#version;
        isLive = (await this.#readHistory(isAsked, signal)) && this.#version !== version;
      }
    } catch (cause) {
      this.#isOutdated = true;
      const error = late.aborted ? new Error(this.server.texts.unreachable) : (cause as Error);
      if (isAsked && !ended.aborted) this.#failures.set('open', { error, again: () => this.#open() });
      if (!ended.aborted) this.#pause();
      this.#update();
    }
    signal.removeEventListener('abort', stop);
    if (isAsked) this.#opening = 'none';
    this.#leave('opening');
  }

  /** Shows the messages of the server. Returns whether an answer is being written. */
  async #readHistory(isAsked: boolean, signal: AbortSignal): Promise<boolean> {
    const newest = this.#newest;
    const page = await this.server.history<M>(this.id, { signal, isUnasked: !isAsked });
    signal.throwIfAborted();
    if (newest === this.#newest) this.#newest = undefined;
    this.#failures.delete('open');
    this.#show(page);
    return page !== undefined && page.ended === undefined && page.messages.length > 0;
  }

  #pause() {
    this.#isPausing = true;
    setTimeout(() => {
      this.#isPausing = false;
      void this.#work();
    }, REFRESH_PAUSE);
  }

  #show(page: History<M> | undefined) {
    const shown = this.chat.messages;
    const messages = page?.messages ?? [];
    const [first] = messages;
    // Older messages that were read stay, if the page continues them.
    const older = first && page?.before !== undefined ? shown.findIndex(({ id }) => id === first.id) : -1;
    const kept = older > 0 ? shown.slice(0, older) : [];
    this.#isStored ||= page !== undefined;
    this.chat.messages = [...kept, ...messages];
    this.#answers.forgetClosed(messages.at(-1));
    this.#showAnswers();
    const missing = this.#outbox.filter(sending => isMissing(sending, page));
    const haveArrived = missing.length < this.#outbox.length;
    this.#outbox = missing;
    const { ended } = page ?? {};
    const isSettled = ended !== 'failed' && ended !== 'interrupted' && missing.length === 0 && !this.#hasAnswers;
    // The server has everything: an error of the connection is over. A refusal is not.
    if (isSettled && (haveArrived || !isRefusal(this.chat.error))) this.chat.clearError();
    this.#version = page?.version;
    this.#update();
    this.#set({ before: kept.length > 0 ? this.#state.before : page?.before, ended, isUnknown: !page && this.#isStored });
  }

  /** Shows the answers that the server lacks. If it lacks none, none is held. */
  #showAnswers() {
    const last = this.chat.messages.at(-1);
    if (last && !this.#answers.isEmpty) {
      this.chat.messages = [...this.chat.messages.slice(0, -1), this.#answers.shownIn(last)];
    }
    if (this.#hasAnswers) return;
    this.#haveAnswersFailed = false;
    if (this.#failures.delete('held')) this.#update();
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

  /** Does what may fail. The failure becomes the `problem`, and `retry` does it again. */
  async #attempt(name: string, act: () => Promise<void>): Promise<void> {
    this.#failures.delete(name);
    await act().catch((error: Error) => {
      this.#failures.set(name, { error, again: () => this.#attempt(name, act) });
    });
    this.#update();
    void this.#work();
  }

  get #reconnecting() {
    return {
      fetch: this.server.fetch,
      lost: this.server.texts.lost,
      onReconnecting: (isReconnecting: boolean) => this.#set({ isReconnecting }),
    };
  }

  async #post(url: string | URL | Request, init: RequestInit): Promise<Response> {
    const { message } = JSON.parse(`${init.body}`) as { message?: Message };
    // Those that this body has: another one may be given before the response.
    const answered = this.#answers.idsIn(message);
    try {
      const response = await reconnectingFetch(url, init, this.#reconnecting);
      if (!response.ok) throw await this.server.refusal(response);
      this.#isStored = true;
      this.#answers.arrived(answered);
      this.#set({ isUnknown: false });
      this.#arrive('response');
      return response;
    } catch (error) {
      this.#isOutdated = true;
      const isStopped = init.signal?.aborted ?? false;
      const last = this.chat.messages.at(-1);
      if (last && (isStopped || isRefusal(error))) {
        // Nothing is stored, as far as is known here. The history is read next.
        this.chat.messages = [...this.chat.messages.slice(0, -1), this.#answers.refused(answered, last)];
      }
      this.#arrive(isStopped ? new Error(this.server.texts.notArrived) : (error as Error));
      throw error;
    }
  }

  async #resume(url: string | URL | Request, init: RequestInit): Promise<Response> {
    try {
      const response = await reconnectingFetch(url, init, this.#reconnecting);
      if (!response.ok) throw await this.server.refusal(response);
      this.#arrive(response.status === 204 ? 'none' : 'response');
      return response;
    } catch (error) {
      this.#arrive(error as Error);
      throw error;
    }
  }

  #onEvent(event: ChatEvent) {
    if (event.type === 'deleted') {
      this.#isOutdated ||= event.id === this.id;
    } else {
      const chats = event.type === 'chats' ? event.chats : [event.chat];
      const own = chats.find(({ id }) => id === this.id);
      if (own) this.#newest = own.version;
      // All chats of the user, without this one: it was deleted while no events came.
      else if (event.type === 'chats' && event.after === undefined) this.#isOutdated ||= this.#version !== undefined;
    }
    void this.#work();
  }
}

/** The messages of the AI SDK, and those that have not arrived. The one that is being sent is in both. */
export function withUndelivered<M extends Message>(messages: M[], { undelivered }: State): M[] {
  const others = undelivered.filter(({ id }) => messages.every(message => message.id !== id));
  return others.length === 0 ? messages : [...messages, ...(others as M[])];
}

/** The output of a tool of the page, as the AI SDK takes it. */
type Output = { toolCallId: string; state?: string; output?: unknown; errorText?: string };

/** Milliseconds before the messages are read again after a failure. */
const REFRESH_PAUSE = 5_000;

/** Milliseconds that the messages, or the answer that is being written, may take to arrive. */
const MAX_READ = 30_000;
