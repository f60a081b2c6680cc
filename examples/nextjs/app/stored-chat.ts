import { Chat } from '@ai-sdk/react';
import { type ChatInit, DefaultChatTransport } from 'ai';
import type { ChatMessage } from './messages';
import { askedAgain, changedInputs } from './changed-inputs';
import { reconnectingFetch } from './reconnecting-fetch.mjs';

type Options = ChatInit<ChatMessage> & {
  id: string;
  /** Called before the chat is read from the server, and after it. */
  onReading: (isReading: boolean) => void;
  /** Called with the reason why not all of the chat is shown, or with an empty text. */
  onNotice: (notice: string) => void;
  /** Called if this user has no chat with this id. */
  onUnknown: () => void;
};

/**
 * A chat that the server stores. Its `resumeStream` shows what the server holds of it: the history,
 * and the response that is being written.
 */
export function storedChat({
  onReading,
  onNotice,
  onUnknown,
  ...init
}: Options): Chat<ChatMessage> {
  /** Called with the stream open: a response that ended before is in the history. */
  async function showHistory(signal?: AbortSignal | null) {
    const response = await fetch(`/api/chat/${encodeURIComponent(init.id)}`, { signal });
    const last = chat.messages.at(-1);
    if (response.status === 404 && !last) return onUnknown();
    const page: Page = response.ok ? await response.json() : { messages: [] };
    if (last?.role === 'user' && page.messages.every(({ id }) => id !== last.id)) {
      throw unreachable('Your last message has not arrived.');
    }
    if (!response.ok) throw unreachable(await response.text());
    chat.messages = page.messages;
    onNotice(page.before === undefined ? '' : 'Older messages are not shown.');
  }

  const transport = new DefaultChatTransport<ChatMessage>({
    // A function: the inputs change after the transport is made.
    body: () => ({ approvalInputs: changedInputs }),
    async fetch(url, request) {
      if (request?.method === 'POST') {
        const response = await reconnectingFetch(url, request);
        if (response.status >= 500) throw unreachable(await response.text());
        // The server has stored nothing, so its questions are open again.
        if (response.status === 400) chat.messages = askedAgain(chat.messages);
        if (response.ok) otherPages().postMessage(init.id);
        return response;
      }
      onReading(true);
      try {
        const response = await reconnectingFetch(url, request);
        if (!response.ok) throw unreachable(await response.text());
        await showHistory(request?.signal);
        return response;
      } finally {
        onReading(false);
      }
    },
  });
  const chat = new Chat<ChatMessage>({ ...init, transport });
  return chat;
}

/**
 * The error of a request whose effect is not known, as of a broken connection: the server, or a proxy
 * before it, has failed. The chat is read again, or the same request is repeated.
 */
const unreachable = (text: string) =>
  new DOMException(text || 'The server cannot be reached.', 'NetworkError');

/** The newest messages of a chat. */
type Page = { messages: ChatMessage[]; before?: string };

let channel: BroadcastChannel | undefined;

/**
 * The other tabs. Each says the id of its chat when a response begins, so that the others with this
 * chat read it as well: a tab that reads no response does not learn this from the server. Only a
 * browser calls this.
 */
export function otherPages(): BroadcastChannel {
  return (channel ??= new BroadcastChannel('chats'));
}
