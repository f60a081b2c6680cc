import { DefaultChatTransport } from 'ai';
import type { ChatEvent } from './events.js';
import type { AskingPart } from './messages.js';
import { reconnectingFetch } from './reconnecting-fetch.js';
import {
  defaultServer,
  ResponseError,
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
export class StoredChat<M extends Message, C extends AnyChat<M>> {
  readonly id: string;
  readonly chat: C;
  readonly server: ChatServer;
  readonly #options: StoredChatOptions;
  readonly #listeners = new Set<() => void>();
  #state: State;
  #isConnected = false;
  /** The answers of this page that the server may lack: how each is sent again, by the id of approval or call. */
  readonly #answers = new Map<string, () => unknown>();
  /**
   * The changed inputs, by the ids of the approvals. They stay after the answer was sent: it may be sent again, and
   * must not run the input of the model then. The server ignores an input after the first answer.
   */
  readonly #inputs: Record<string, unknown> = {};
  /** What the last request to post is for, and the same as long as the server may not have received it. */
  #trigger: Trigger = 'submit-message';
  #undelivered: Trigger | undefined;
  /** Whether the last answer that this page has read ended with an error of the agent. */
  #hasFailed = false;
  /** What has failed with the `problem`. */
  #failed: (() => Promise<void>) | undefined;
  /** How many requests have begun: a history that was read across the begin of one is not shown. */
  #requests = 0;
  /** Fulfilled when the last request has its response, and the history is read. */
  #arriving: Promise<unknown> = Promise.resolve();
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
    const phase = options.isNew ? 'idle' : 'opening';
    this.#state = { phase, isReconnecting: false, isUnknown: false, ended: undefined, before: undefined, problem: undefined };
    const stream = `${this.server.url(this.id)}/stream`;
    this.chat = newChat({
      id: this.id,
      transport: new DefaultChatTransport({
        api: this.server.api,
        fetch: (url, init = {}) => (init.method === 'POST' ? this.#post(url, init) : this.#resume(url, init)),
        prepareReconnectToStreamRequest: () => ({ api: stream }),
        // The server has the other messages.
        prepareSendMessagesRequest: ({ body, messages, trigger, messageId }) => {
          this.#trigger = trigger;
          const { id } = this;
          const message = messages.at(-1);
          const approvalInputs = this.#inputsOf((message?.parts ?? []) as never);
          return { body: { ...this.#options.body?.(), ...body, id, message, trigger, messageId, approvalInputs } };
        },
      }),
      // Each answer is sent at once, also beside open questions. The server calls the model after the last one.
      sendAutomaticallyWhen: () => this.#answers.size > 0,
      onFinish: finished => {
        options.onFinish?.(finished);
        const { isError } = finished as { isError: boolean };
        queueMicrotask(() => {
          this.#hasFailed = isError && !isOfConnection(this.chat.error);
          this.#catchUp();
        });
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
    this.#isConnected = true;
    const unsubscribe = this.server.events.subscribe(event => this.#onEvent(event));
    if (!this.#options.isNew || this.chat.messages.length > 0) void this.#open();
    return () => {
      this.#isConnected = false;
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
    if (this.chat.messages.length > 0) await this.chat.regenerate(options);
  }) as C['regenerate'];

  /**
   * Answers a question. It is sent at once, also beside other open questions. An answer to a question of an earlier
   * message, which `staysOpen`, goes to `approval_routes`.
   */
  readonly respond = async ({ approval }: AskingPart, { input, ...answer }: ApprovalAnswer): Promise<void> => {
    const { id } = approval ?? {};
    if (id === undefined) throw new Error('this part has no approval request');
    await this.#arriving;
    const parts: readonly AskingPart[] = (this.chat.messages.at(-1)?.parts ?? []) as never;
    if (!parts.some(part => part.approval?.id === id)) return this.#decide(id, { input, ...answer });
    if (input === undefined) delete this.#inputs[id];
    else this.#inputs[id] = input;
    this.#answers.set(id, () => this.chat.sendMessage());
    const { approved, reason } = answer;
    await this.chat.addToolApprovalResponse({ id, approved, ...(reason !== undefined && { reason }) });
  };

  /** Gives the output of a tool of the page. */
  readonly addToolOutput = (async (output: never) => {
    await this.#arriving;
    const send = () => this.chat.addToolOutput(output);
    this.#answers.set((output as { toolCallId: string }).toolCallId, send);
    await send();
  }) as C['addToolOutput'];

  /** Stops the answer. The server keeps what was written. */
  readonly stop = (): Promise<void> =>
    this.#attempt(async () => {
      void this.chat.stop(); // it waits for the tools of the page
      await this.server.stop(this.id);
      // The server has ended the open calls, and has closed the questions.
      this.#answers.clear();
      this.#isOutdated = true;
    }, 'stopping');

  /** Tries again what has failed: sends, reads or writes again, whichever the server lacks. */
  readonly retry = async (): Promise<void> => {
    const failed = this.#failed;
    const last = this.chat.messages.at(-1);
    const [send] = [...this.#answers.values()].slice(-1);
    this.clearError();
    if (failed) {
      await failed();
    } else if (this.#undelivered === 'submit-message' && last?.role === 'user') {
      // With its id: the server recognizes a message that it has.
      const { parts, metadata } = last;
      await this.chat.sendMessage({ parts, metadata, messageId: last.id } as never);
    } else if (send) {
      await send();
    } else if (this.#undelivered === 'regenerate-message' || this.#hasFailed) {
      await this.regenerate();
    } else {
      await this.#open();
    }
  };

  /** Removes the error. */
  readonly clearError = (): void => {
    this.#failed = undefined;
    this.chat.clearError();
    this.#set({ problem: undefined });
  };

  #set(changed: Partial<State>) {
    this.#state = { ...this.#state, ...changed };
    for (const listener of this.#listeners) listener();
  }

  /** Does what may fail. The failure becomes the `problem`, and `retry` does it again. */
  async #attempt(act: () => Promise<void>, phase?: 'stopping'): Promise<void> {
    this.#failed = undefined;
    this.#set({ problem: undefined, ...(phase && { phase }) });
    const problem = await act().then(
      () => undefined,
      (error: Error) => error,
    );
    if (problem) this.#failed = () => this.#attempt(act, phase);
    this.#set({ problem, ...(phase && { phase: 'idle' }) });
    this.#catchUp();
  }

  /** Waits until the last request has arrived, and ends what this page reads. */
  async #makeFree() {
    await this.#arriving;
    this.clearError();
    if (this.isBusy) await this.chat.stop();
  }

  /** Reads the chat from the server, and the answer that is being written. */
  async #open() {
    this.chat.clearError();
    this.#set({ phase: 'opening' });
    await this.chat.resumeStream();
  }

  #loadOlder(before: string) {
    return this.#attempt(async () => {
      const page = await this.server.history<M>(this.id, { before });
      if (!page || this.#state.before !== before) return;
      this.chat.messages = [...page.messages, ...this.chat.messages];
      this.#set({ before: page.before });
    });
  }

  #decide(id: string, answer: ApprovalAnswer) {
    return this.#attempt(async () => {
      const isAccepted = await this.server.decide(id, answer);
      this.#isOutdated = true;
      if (!isAccepted) throw new Error(this.server.texts.notAccepted);
    });
  }

  /** The changed inputs of the calls of a message. */
  #inputsOf(parts: readonly AskingPart[]): Record<string, unknown> {
    const ids = parts.flatMap(({ approval }) => (approval && approval.id in this.#inputs ? [approval.id] : []));
    return Object.fromEntries(ids.map(id => [id, this.#inputs[id]]));
  }

  readonly #reconnecting = {
    fetch: (url: string | URL | Request, init?: RequestInit) => this.server.fetch(url, init),
    onReconnecting: (isReconnecting: boolean) => this.#set({ isReconnecting }),
  };

  #post(url: string | URL | Request, init: RequestInit): Promise<Response> {
    const answered = [...this.#answers.keys()];
    this.#undelivered = this.#trigger;
    this.#hasFailed = false;
    this.#set({ phase: 'idle', ended: undefined });
    return this.#request(async () => {
      const response = await reconnectingFetch(url, init, this.#reconnecting);
      const { ok, status } = response;
      const isRefused = status >= 400 && status < 500 && ![401, 408, 429].includes(status);
      if (ok || isRefused) for (const id of answered) this.#answers.delete(id);
      // For example an input that the tool does not accept: nothing is stored, and the question is open.
      if (isRefused) for (const id of answered) delete this.#inputs[id];
      if (!ok) {
        this.#isOutdated = true;
        throw await this.server.refusal(response);
      }
      this.#undelivered = undefined;
      this.#set({ isUnknown: false });
      return response;
    });
  }

  /** Opens the stream first and reads the history then: a response that has ended in between is in the history. */
  async #resume(url: string | URL | Request, init: RequestInit): Promise<Response> {
    const resumed = this.#request(async () => {
      const response = await reconnectingFetch(url, init, this.#reconnecting);
      if (!response.ok) throw await this.server.refusal(response);
      const page = await this.server.history<M>(this.id, { signal: init.signal });
      init.signal?.throwIfAborted();
      this.#show(page);
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
    return response;
  }

  #show(page: History<M> | undefined) {
    const shown = this.chat.messages;
    const messages = page?.messages ?? [];
    const [first] = messages;
    // Older messages that were read stay, if the page continues them.
    const older = first ? shown.findIndex(({ id }) => id === first.id) : -1;
    const kept = older > 0 ? shown.slice(0, older) : [];
    // So does a message that has not arrived.
    const last = shown.at(-1);
    const own = this.#undelivered === 'submit-message' && last?.role === 'user' ? last : undefined;
    const isMissing = own !== undefined && !messages.some(({ id }) => id === own.id);
    if (own && !isMissing) {
      this.#undelivered = undefined;
      this.chat.clearError();
    }
    this.chat.messages = [...kept, ...messages, ...(isMissing ? [own] : [])];
    const isStored = !this.#options.isNew || this.#version !== undefined;
    this.#version = page?.version;
    this.#set({
      before: kept.length > 0 ? this.#state.before : page?.before,
      ended: page?.ended,
      isUnknown: !page && isStored,
      ...(isMissing && !this.chat.error && { problem: new Error(this.server.texts.notArrived) }),
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
    this.#newest = chats.find(({ id }) => id === this.id)?.version ?? this.#newest;
    this.#catchUp();
  }

  /** Reads the messages again if the server has others, and the page does nothing else. */
  #catchUp() {
    // A chat that was deleted and begun again has a lower version. An older event costs a request.
    const isBehind = this.#isOutdated || (this.#newest !== undefined && this.#newest !== this.#version);
    if (!isBehind || !this.#isFree() || this.#isRefreshing) return;
    this.#isOutdated = false;
    this.#isRefreshing = true;
    this.#refresh().then(
      () => {
        this.#isRefreshing = false;
        this.#catchUp();
      },
      () => {
        this.#isRefreshing = false;
        this.#isOutdated = true; // until the next event
      },
    );
  }

  #isFree(): boolean {
    return this.#isConnected && !this.isBusy && this.#answers.size === 0;
  }

  async #refresh() {
    const requests = this.#requests;
    const newest = this.#newest;
    const page = await this.server.history<M>(this.id);
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

type Trigger = 'submit-message' | 'regenerate-message';

/** Whether an error is of a request or its connection, and not of the agent. */
const isOfConnection = (error: Error | undefined): boolean =>
  error instanceof ResponseError || error instanceof DOMException || error instanceof TypeError;
