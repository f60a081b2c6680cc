// What the user has sent, and whether the server has it.

import { convertFileListToFileUIParts, type FileUIPart } from 'ai';
import { ResponseError, type History, type Message } from './server.js';

/** A request of the user that the server may lack. */
export type Sending<M> = {
  /** What the page has given besides. */
  options?: unknown;
  /** Why it has not arrived. Then nothing is sent after it, unless the server has refused it for good. */
  error?: Error | undefined;
  /** The user does not want to read of it any more. */
  isHidden?: boolean;
} & (
  | { type: 'message'; message: M }
  /** Another text for a message, with the parts before it, as text. */
  | { type: 'edit'; message: M; replaced: string }
  /** With the id of the last message before it. */
  | { type: 'regeneration'; messageId: string | undefined; last: string | undefined }
);

/** Whether the server lacks it. */
export function isMissing<M extends Message>(sending: Sending<M>, page: History<M> | undefined): boolean {
  if (sending.type === 'regeneration') return page !== undefined && page.messages.at(-1)?.id === sending.last;
  const stored = page?.messages.find(({ id }) => id === sending.message.id);
  return !stored || (sending.type === 'edit' && JSON.stringify(stored.parts) === sending.replaced);
}

/** The next one to be sent. */
export function nextOf<M>(outbox: readonly Sending<M>[]): Sending<M> | undefined {
  const first = outbox.find(({ error }) => !isRefusal(error));
  return first?.error ? undefined : first;
}

/** A message as `sendMessage` of the AI SDK takes it. */
export type NewMessage = Partial<Message> & {
  text?: string;
  files?: FileList | FileUIPart[];
  /** The id of a message that is to be changed. */
  messageId?: string;
};

/** The message that the AI SDK would make, with an id. */
export async function messageOf(given: NewMessage, newId: () => string): Promise<Message> {
  const { text, files, messageId, role = 'user', metadata, ...others } = given;
  const id = messageId ?? others.id ?? newId();
  if (others.parts) return { ...others, id, role, metadata, parts: others.parts };
  const ofFiles = Array.isArray(files) ? files : await convertFileListToFileUIParts(files);
  const ofText = text === undefined ? [] : [{ type: 'text', text } as const];
  return { id, role, metadata, parts: [...ofFiles, ...ofText] };
}

/** Waits for what may never end, but not for long. */
export async function soon(promise: Promise<unknown>): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<void>(resolve => (timer = setTimeout(resolve, MAX_WAIT)));
  await Promise.race([promise.then(() => {}, () => {}), late]).finally(() => clearTimeout(timer));
}

/** Milliseconds that a request waits for the end of the one before. */
const MAX_WAIT = 10_000;

/** Whether an error is of a request or its connection, and not of the agent. */
export const isOfConnection = (error: Error | undefined): boolean =>
  error instanceof ResponseError || error instanceof DOMException || error instanceof TypeError;

/** Whether the server has refused a request for good. Others may be sent again. */
export const isRefusal = (error: unknown): boolean =>
  error instanceof ResponseError && error.status >= 400 && error.status < 500 && ![401, 408, 429].includes(error.status);
