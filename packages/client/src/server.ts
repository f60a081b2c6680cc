import { followChats, type ChatEvents } from './events.js';
import { textsOf, type Texts } from './texts.js';

/** How the pages reach a chat server. */
export type ServerOptions = {
  /** Where `chat_routes` is mounted. Default: `/api/chat`. */
  api?: string;
  /** Where `approval_routes` is mounted. Default: `/api/approvals`, beside `api`. */
  approvals?: string;
  /** Headers of each request, for example a token. A function is called for each request. */
  headers?: HeadersInit | (() => HeadersInit | Promise<HeadersInit>);
  /**
   * The version of the npm package `ai` that the page has: `import { version } from 'ai/package.json'`. A server with
   * `with_version_from(AI_SDK_VERSION)` then sends all that this version knows.
   */
  version?: string;
  /** `include` sends cookies to another origin. Default: `same-origin`. */
  credentials?: RequestCredentials;
  /**
   * Signs the same user in again, after a response with status 401. When the promise is fulfilled, the request is
   * sent again. When it is rejected, the request has failed with status 401. If another user signs in, reload the
   * page: it shows the chats of the one before, and would send what that one has written.
   */
  signIn?: () => Promise<void>;
  /**
   * The name of the user. The tabs of one user share one connection for what changes in the chats. Without a name,
   * all tabs without `headers` share one, and its user is that of the newest tab.
   */
  user?: string;
  /** Texts for the user, in place of the English ones. */
  texts?: Partial<Texts>;
};

/** A message of a chat, as far as this package reads it. */
export type Message = {
  id: string;
  role: 'system' | 'user' | 'assistant';
  metadata?: unknown;
  parts: readonly { type: string }[];
};

/** How an answer has ended. */
export type AnswerEnd = 'finished' | 'stopped' | 'failed' | 'interrupted' | 'limit';

/** The newest messages of a chat, or a page of older ones. */
export type History<M> = {
  messages: M[];
  /** The place of older messages, if there are any. */
  before?: string;
  /** Grows with each change of the messages. */
  version: number;
  /** How the last answer has ended. Absent while one is written. */
  ended?: AnswerEnd;
};

/** A chat in the list of its user. */
export type ChatSummary = {
  id: string;
  title: string;
  /** Milliseconds since 1970. */
  updatedAt: number;
  /** Whether an answer is written. */
  isLive: boolean;
  /** Whether an answer of the user is waited for. */
  hasQuestions: boolean;
  /** Grows with each change of the messages. */
  version: number;
};

/** The answer to an approval request. */
export type ApprovalAnswer = {
  approved: boolean;
  reason?: string | undefined;
  /** The whole input, changed by the user. Only for a tool that is `editable`. */
  input?: unknown;
};

/** A response with another status than 2xx. */
export class ResponseError extends Error {
  override name = 'ResponseError';
  /** The status, for example 401. */
  readonly status: number;

  constructor(status: number, text: string) {
    super(text);
    this.status = status;
  }
}

/** The routes of a chat server. Pages of one user share an object of this class. */
export class ChatServer {
  readonly api: string;
  readonly texts: Texts;
  /** What changes in the chats of the user, on any page and device. */
  readonly events: ChatEvents;
  readonly #options: ServerOptions;
  readonly #approvals: string;
  #firstResponse: Promise<void> | undefined;
  #hasResponse = false;
  #signingIn: Promise<void> | undefined;

  constructor(options: ServerOptions = {}) {
    this.#options = options;
    this.api = (options.api ?? '/api/chat').replace(/\/$/, '');
    this.#approvals = options.approvals ?? this.api.replace(/[^/]*$/, 'approvals');
    this.texts = textsOf(options.texts);
    // A token may be of another user than that of another tab.
    const isShared = options.user !== undefined || options.headers === undefined;
    this.events = followChats(this, isShared ? `${this.api} ${options.user ?? ''}` : undefined);
  }

  /** `fetch` with the headers and the credentials of this server. Signs in after a response with status 401. */
  readonly fetch = async (input: string | URL | Request, init: RequestInit = {}): Promise<Response> => {
    const response = await this.fetchUnsigned(input, init);
    const { signIn } = this.#options;
    if (response.status !== 401 || !signIn) return response;
    this.#signingIn ??= signIn()
      .then(() => this.events.restart())
      .finally(() => (this.#signingIn = undefined));
    const isSignedIn = await orAborted(this.#signingIn, init.signal).then(
      () => true,
      () => false,
    );
    init.signal?.throwIfAborted();
    return isSignedIn ? this.#send(input, init) : response;
  };

  /** As `fetch`, for what the user does not wait for: it never signs in. */
  async fetchUnsigned(input: string | URL | Request, init: RequestInit = {}): Promise<Response> {
    // The first response may set the cookie of an anonymous user, which the other requests need.
    if (!this.#hasResponse && this.#firstResponse) {
      // One that hangs does not hold up the others for ever.
      const late = new Promise(resolve => setTimeout(resolve, MAX_WAIT));
      await orAborted(Promise.race([this.#firstResponse, late]), init.signal);
    }
    const response = this.#send(input, init);
    // A request that has failed sets nothing: then the next one is the first.
    const arrived = response.then(
      () => void (this.#hasResponse = true),
      () => (this.#firstResponse = undefined),
    );
    this.#firstResponse ??= arrived;
    return response;
  }

  async #send(input: string | URL | Request, init: RequestInit): Promise<Response> {
    const { headers, version, credentials } = this.#options;
    const all = new Headers(init.headers);
    if (version !== undefined) all.set('ai-sdk-version', version);
    const own = new Headers(typeof headers === 'function' ? await headers() : headers);
    own.forEach((value, name) => all.set(name, value));
    return fetch(input, { ...init, headers: all, ...(credentials && { credentials }) });
  }

  /** Sends a request to a route, and returns the response. Throws a `ResponseError` for a status other than 2xx. */
  async #request(url: string, method: string, body?: unknown, signal?: AbortSignal | null): Promise<Response> {
    const json = body !== undefined && {
      body: JSON.stringify(body),
      headers: { 'content-type': 'application/json' },
    };
    const response = await this.fetch(url, { method, ...json, signal: signal ?? null });
    if (!response.ok) throw await this.refusal(response);
    return response;
  }

  /** The error of a response with another status than 2xx. Its message is the text of the response. */
  async refusal(response: Response): Promise<ResponseError> {
    const text = await response.text().catch(() => '');
    return new ResponseError(response.status, text.slice(0, 1_000) || this.texts.unreachable);
  }

  /** The URL of a chat. */
  url(id: string): string {
    return `${this.api}/${encodeURIComponent(id)}`;
  }

  /**
   * The newest 100 messages of a chat, or those before a place. `undefined` if the user has no such chat. One that
   * the user has not asked for signs nobody in.
   */
  async history<M extends Message>(
    id: string,
    options: { before?: string; signal?: AbortSignal | null | undefined; isUnasked?: boolean } = {},
  ): Promise<History<M> | undefined> {
    const query = options.before === undefined ? '' : `?before=${options.before}`;
    const init = { signal: options.signal ?? null };
    const url = this.url(id) + query;
    const response = await (options.isUnasked ? this.fetchUnsigned(url, init) : this.fetch(url, init));
    if (response.status === 404) return undefined;
    if (!response.ok) throw await this.refusal(response);
    return response.json();
  }

  /** A page of the chats of the user, the last changed first. */
  async chats(
    options: { after?: string | undefined; search?: string | undefined } = {},
  ): Promise<{ chats: ChatSummary[]; after?: string }> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(options)) if (value !== undefined) query.set(name, value);
    return (await this.#request(`${this.api}?${query}`, 'GET')).json();
  }

  /** Gives a chat another title. */
  async rename(id: string, title: string): Promise<void> {
    await this.#request(this.url(id), 'PATCH', { title });
  }

  /** Deletes a chat. */
  async remove(id: string): Promise<void> {
    await this.#request(this.url(id), 'DELETE');
    this.events.tell({ type: 'deleted', id });
  }

  /** Deletes all chats of the user. */
  async removeAll(): Promise<void> {
    await this.#request(this.api, 'DELETE');
    this.events.tell({ type: 'chats', chats: [] });
  }

  /** Stops the answer that is written in a chat. */
  async stop(id: string): Promise<void> {
    // A server that hangs does not block the page.
    await this.#request(`${this.url(id)}/stream`, 'DELETE', undefined, AbortSignal.timeout(10_000));
  }

  /**
   * Answers an approval request, by its id, outside of its chat. Returns whether the answer was accepted: a
   * question may have been closed.
   */
  async decide(approvalId: string, answer: ApprovalAnswer): Promise<boolean> {
    const response = await this.#request(this.#approvals, 'POST', { decisions: [{ approvalId, ...answer }] });
    const { decisions } = (await response.json()) as { decisions: { accepted: boolean }[] };
    return decisions.every(({ accepted }) => accepted);
  }
}

/** A promise, which fails once the signal is aborted. */
function orAborted<T>(promise: Promise<T>, signal: AbortSignal | null | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((fulfil, reject) => {
    const abort = () => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener('abort', abort, { once: true });
    promise.then(fulfil, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}

/** Milliseconds that a request waits for the first one. */
const MAX_WAIT = 5_000;

let ownServer: ChatServer | undefined;

/** The server at `/api/chat` of the page's origin. */
export const defaultServer = (): ChatServer => (ownServer ??= new ChatServer());
