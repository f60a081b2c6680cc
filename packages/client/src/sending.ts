// What a page has sent, and whether the server has it.

import { ResponseError, type History, type Message } from './server.js';

/** The body of a request to post, as far as it is read here. */
export type Posted<M> = { message?: M; trigger: string; messageId?: string };

/** A request of the user: a message, the regeneration of an answer, or answers once more. */
export type Sending<M> = {
  message?: M | undefined;
  regenerated?: { messageId: string | undefined };
  isOfAnswers?: true;
  /** For another text of a message: the parts that the message had, as text. */
  edited?: string | undefined;
  /** What the page has given besides. */
  options?: unknown;
  /** Why it has not arrived, and whether the server will never take it. */
  error?: Error;
  isRefused: boolean;
  /** The version of the chat at the request. */
  version?: number | undefined;
  /** Called when the request has its response. */
  arrive?: () => void;
};

/** A request that has begun: when it has its response, and when the response has ended. */
export type Begun = { arrived: Promise<void>; ended: Promise<void> };

/** Whether the server lacks what was sent. */
export function isMissing<M extends Message>({ message, edited, version }: Sending<M>, page: History<M> | undefined): boolean {
  if (!message) return page?.version === version;
  const stored = page?.messages.find(({ id }) => id === message.id);
  return !stored || (edited !== undefined && JSON.stringify(stored.parts) === edited);
}

/** Waits for what may never end, but not for long. */
export async function soon(promise: Promise<unknown>): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<void>(resolve => (timer = setTimeout(resolve, MAX_WAIT)));
  await Promise.race([promise.then(() => {}, () => {}), late]).finally(() => clearTimeout(timer));
}

/** Milliseconds that a request waits for the one before. */
const MAX_WAIT = 10_000;

/** Whether an error is of a request or its connection, and not of the agent. */
export const isOfConnection = (error: Error | undefined): boolean =>
  error instanceof ResponseError || error instanceof DOMException || error instanceof TypeError;

/** Whether the server has refused a request for good. Others may be sent again. */
export const isRefusal = (error: unknown): boolean =>
  error instanceof ResponseError && error.status >= 400 && error.status < 500 && ![401, 408, 429].includes(error.status);
