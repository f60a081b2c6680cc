import { DefaultChatTransport } from 'ai';
import type { ChatEvent } from './events.js';
import type { AskingPart } from './messages.js';
import { reconnectingFetch } from './reconnecting-fetch.js';
import type { AnswerEnd, ApprovalAnswer, ChatServer, History, Message } from './server.js';

/** What this package uses of `Chat`, which each framework has its own class for. */
export type Chat<M extends Message> = {
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
  transport: object;
  sendAutomaticallyWhen: () => boolean;
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

/**
 * What the chat does. As the `status` of the AI SDK, and besides: `opening`, while the chat is read from the server;
 * `reconnecting`, after a connection has broken or the server of the answer was lost; `stopping`.
 */
export type Status = 'opening' | 'submitted' | 'streaming' | 'reconnecting' | 'stopping' | 'ready' | 'error';

/** What a page shows beside the messages. */
export type State = {
  phase: 'idle' | 'opening' | 'stopping';
  isReconnecting: boolean;
  /** Whether the user has no chat with this id, or has deleted it. */
  isUnknown: boolean;
  /** How the last answer has ended. `undefined` while one is written. */
  ended: AnswerEnd | undefined;
  /** The place of older messages on the server, if there are any. */
  before: string | undefined;
  /** Why Stop, an answer or older messages have failed. */
  problem: Error | undefined;
};

/** A chat that the server stores, with a `Chat` of the AI SDK in front of it. */
export class StoredChat<M extends Message, C extends Chat<M>> {
  readonly id: string;
  readonly chat: C;
  readonly server: ChatServer;
  readonly #options: StoredChatOptions;
  readonly #listeners = new Set<() => void>();
  #state: State = {
    phase: 'idle',
    isReconnecting: false,
    isUnknown: false,
    ended: undefined,
    before: undefined,
    problem: undefined,
  };
  /** The answers of this page that the server may lack: how each is sent again, by the id of approval or call. */
  readonly #unsent = new Map<string, () => unknown>();
  /**
   * The changed inputs, by the ids of the approvals. They stay after the answer was sent: it may be sent again, and
   * must not run the input of the model then. The server ignores an input after the first answer.
   */
  readonly #inputs: Record<string, unknown> = {};
  /** How many requests have begun: a history that was read across the begin of one is not shown. */
  #requests = 0;
  /** The last request that posted, if the server may not have received it. */
  #undelivered: 'submit-message' | 'regenerate-message' | undefined;
  /** The version of the messages that were last read, and the newest that the events name. */
  #shown: number | undefined;
  #newest: number | undefined;

  constructor(options: StoredChatOptions, newChat: (parts: ChatParts) => C) {
    this.id = options.id;
    this.server = options.server;
    this.#options = options;
    if (!options.isNew) this.#state = { ...this.#state, phase: 'opening' };
    const stream = `${this.server.url(this.id)}/stream`;
    this.chat = newChat({
      transport: new DefaultChatTransport({
        api: this.server.api,
        fetch: (url, init = {}) => (init.method === 'POST' ? this.#post(url, init) : this.#resume(url, init)),
        prepareReconnectToStreamRequest: () => ({ api: stream }),
        // The server has the other messages.
        prepareSendMessagesRequest: ({ body, messages, trigger, messageId }) => {
          const { id } = this;
          const approvalInputs = this.#inputs;
          const own = this.#options.body?.();
          return { body: { ...own, ...body, id, message: messages.at(-1), trigger, messageId, approvalInputs } };
        },
      }),
      // Each answer is sent at once, also beside open questions. The server calls the model after the last one.
      sendAutomaticallyWhen: () => this.#unsent.size > 0,
      onFinish: finished => {
        options.onFinish?.(finished);
        queueMicrotask(() => this.#catchUp());
      },
    });
  }

  get state(): State {
    return this.#state;
  }

  get messages(): M[] {
    return this.chat.messages;
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
    const unsubscribe = this.server.events.subscribe(event => this.#onEvent(event));
    if (!this.#options.isNew) void this.#open();
    return () => {
      unsubscribe();
      void this.chat.stop();
    };
  }

  /** Sends a message. It ends an answer that is being written. */
  readonly sendMessage = (async (message: never, options: never) => {
    await this.#makeFree();
    await this.chat.sendMessage(message, options);
  }) as C['sendMessage'];

  /** Writes the last answer again. */
  readonly regenerate = (async (options: never) => {
    await this.#makeFree();
    await this.chat.regenerate(options);
  }) as C['regenerate'];

  /**
   * Answers a question. It is sent at once, also beside other open questions. An answer to a question of an earlier
   * message, which `staysOpen`, goes to `approval_routes`.
   */
  readonly respond = async ({ approval }: AskingPart, { input, ...answer }: ApprovalAnswer): Promise<void> => {
    const { id } = approval ?? {};
    if (id === undefined) throw new Error('this part has no approval request');
    const parts: readonly AskingPart[] = (this.chat.messages.at(-1)?.parts ?? []) as never;
    if (!parts.some(part => part.approval?.id === id)) return this.#decide(id, { input, ...answer });
    if (input === undefined) delete this.#inputs[id];
    else this.#inputs[id] = input;
    this.#unsent.set(id, () => this.chat.sendMessage());
    const { approved, reason } = answer;
    await this.chat.addToolApprovalResponse({ id, approved, ...(reason !== undefined && { reason }) });
  };

  /** Gives the output of a tool of the page. */
  readonly addToolOutput = ((output: never) => {
    const send = () => this.chat.addToolOutput(output);
    this.#unsent.set((output as { toolCallId: string }).toolCallId, send);
    return send();
  }) as C['addToolOutput'];

  /** Stops the answer. The server keeps what was written. */
  readonly stop = async (): Promise<void> => {
    await this.#attempt('stopping', async () => {
      await this.chat.stop(); // closes the connection alone
      await this.server.stop(this.id);
    });
    await this.#refresh(); // the server has ended the open calls
  };

  /** Tries again what has failed: sends, reads or writes again, whichever the server lacks. */
  readonly retry = async (): Promise<void> => {
    this.#set({ problem: undefined });
    const last = this.chat.messages.at(-1);
    const [send] = [...this.#unsent.values()].slice(-1);
    if (send) {
      await send();
    } else if (this.#undelivered === 'submit-message' && last?.role === 'user') {
      // With its id: the server recognizes a message that it has.
      const { parts, metadata } = last;
      await this.chat.sendMessage({ parts, metadata, messageId: last.id } as never);
    } else if (this.#undelivered === 'regenerate-message') {
      await this.chat.regenerate();
    } else {
      await this.#open();
      if (this.ended) await this.chat.regenerate();
    }
  };

  async #loadOlder(before: string) {
    await this.#attempt(undefined, async () => {
      const page = await this.server.history<M>(this.id, { before });
      if (!page || this.#state.before !== before) return;
      this.chat.messages = [...page.messages, ...this.chat.messages];
      this.#set({ before: page.before });
    });
  }

  #set(changed: Partial<State>) {
    this.#state = { ...this.#state, ...changed };
    for (const listener of this.#listeners) listener();
  }

  /** Does what may fail. The failure becomes the `problem`. */
  async #attempt(phase: State['phase'] | undefined, act: () => Promise<void>) {
    this.#set({ problem: undefined, ...(phase && { phase }) });
    const problem = await act().then(
      () => undefined,
      (error: Error) => error,
    );
    this.#set({ problem, ...(phase && { phase: 'idle' }) });
  }

  /** Ends what this page reads. */
  async #makeFree() {
    this.#set({ problem: undefined });
    if (this.isBusy) await this.chat.stop();
  }

  /** Reads the chat from the server, and the answer that is being written. */
  async #open() {
    this.chat.clearError();
    this.#set({ phase: 'opening' });
    await this.chat.resumeStream();
  }

  readonly #reconnecting = {
    fetch: (url: string | URL | Request, init?: RequestInit) => this.server.fetch(url, init),
    onReconnecting: (isReconnecting: boolean) => this.#set({ isReconnecting }),
  };

  async #post(url: string | URL | Request, init: RequestInit): Promise<Response> {
    this.#requests += 1;
    this.#set({ phase: 'idle', ended: undefined });
    const answered = [...this.#unsent.keys()];
    const { trigger } = JSON.parse(`${init.body}`);
    this.#undelivered = trigger;
    const response = await reconnectingFetch(url, init, this.#reconnecting);
    if (!response.ok) {
      const refusal = await this.server.refusal(response);
      // The server does not accept a changed input, and has stored nothing: its question is open again.
      if (response.status === 400) this.#askAgain(answered);
      throw refusal;
    }
    this.#undelivered = undefined;
    for (const id of answered) this.#unsent.delete(id);
    this.#set({ isUnknown: false });
    return response;
  }

  /** Opens the stream first and reads the history then: a response that has ended in between is in the history. */
  async #resume(url: string | URL | Request, init: RequestInit): Promise<Response> {
    this.#requests += 1;
    const request = this.#requests;
    try {
      const response = await reconnectingFetch(url, init, this.#reconnecting);
      if (!response.ok) throw await this.server.refusal(response);
      const page = await this.server.history<M>(this.id, { signal: init.signal });
      const last = this.chat.messages.at(-1);
      if (last?.role === 'user' && !page?.messages.some(({ id }) => id === last.id)) {
        this.#undelivered = 'submit-message';
        throw new Error(this.server.texts.notArrived);
      }
      this.#show(page);
      return response;
    } finally {
      if (request === this.#requests) this.#set({ phase: 'idle' });
    }
  }

  #show(page: History<M> | undefined) {
    const [first] = page?.messages ?? [];
    const older = first ? this.chat.messages.findIndex(({ id }) => id === first.id) : -1;
    // Older messages that were read stay, if the page continues them.
    const kept = older > 0 ? this.chat.messages.slice(0, older) : [];
    this.chat.messages = [...kept, ...(page?.messages ?? [])];
    this.#shown = page?.version;
    const before = kept.length > 0 ? this.#state.before : page?.before;
    this.#set({ before, isUnknown: !page, ended: page?.ended });
  }

  /** Reads the messages again, unless the page does something else meanwhile. */
  async #refresh() {
    const requests = this.#requests;
    const isFree = () => requests === this.#requests && !this.isBusy && this.#unsent.size === 0;
    if (!isFree()) return;
    const page = await this.server.history<M>(this.id).catch(() => undefined);
    if (!page || !isFree()) return;
    this.#show(page);
    const isLive = page.ended === undefined && page.messages.length > 0;
    if (isLive) await this.#open();
  }

  #onEvent(event: ChatEvent) {
    if (event.type === 'deleted') {
      if (event.id === this.id) this.#show(undefined);
      return;
    }
    const chats = event.type === 'chats' ? event.chats : [event.chat];
    this.#newest = chats.find(({ id }) => id === this.id)?.version ?? this.#newest;
    this.#catchUp();
  }

  #catchUp() {
    if (this.#newest !== undefined && this.#newest !== this.#shown && !this.isBusy) void this.#refresh();
  }

  async #decide(id: string, answer: ApprovalAnswer) {
    await this.#attempt(undefined, async () => {
      const isAccepted = await this.server.decide(id, answer);
      await this.#refresh();
      if (!isAccepted) throw new Error(this.server.texts.notAccepted);
    });
  }

  /** Opens the questions again that were answered with a changed input. */
  #askAgain(answered: string[]) {
    const changed = answered.filter(id => id in this.#inputs);
    for (const id of changed) {
      delete this.#inputs[id];
      this.#unsent.delete(id);
    }
    this.chat.messages = this.chat.messages.map(message => ({
      ...message,
      parts: (message.parts as readonly AskingPart[]).map(part => {
        if (!part.approval || !changed.includes(part.approval.id)) return part;
        return { ...part, state: 'approval-requested', approval: { id: part.approval.id } };
      }),
    }));
  }
}
