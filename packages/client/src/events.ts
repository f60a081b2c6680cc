import { sleep, wholeFrames } from './reconnecting-fetch.js';
import type { ChatServer, ChatSummary } from './server.js';

/** What changes in the chats of the user, on any page and device. */
export type ChatEvent =
  | { type: 'chats'; chats: ChatSummary[]; after?: string }
  | { type: 'chat'; chat: ChatSummary }
  | { type: 'deleted'; id: string };

export type ChatEvents = {
  /** Calls a function with the newest chats, and then with each change. Returns what ends this. */
  subscribe(listener: (event: ChatEvent) => void): () => void;
};

type ChatList = Extract<ChatEvent, { type: 'chats' }>;

/** Milliseconds before the server is asked again: the first time, and at most. */
const [FIRST_PAUSE, MAX_PAUSE] = [1_000, 30_000];

/**
 * Follows the chats of a user over one connection for all pages of the browser: a browser has only six connections
 * to a host over HTTP/1.1. The page that holds a lock reads the events, and passes them on.
 */
export function followChats(server: ChatServer, user: string): ChatEvents {
  const listeners = new Set<(event: ChatEvent) => void>();
  let list: ChatList | undefined;
  let following: AbortController | undefined;

  function tell(event: ChatEvent) {
    list = withEvent(list, event);
    for (const listener of listeners) listener(event);
  }

  function follow(): AbortController {
    const end = new AbortController();
    const { signal } = end;
    const name = `ui-message-stream ${server.api} ${user}`;
    const channel = new BroadcastChannel(name);
    let isReading = false;
    channel.onmessage = ({ data }: MessageEvent<ChatEvent | 'hello'>) => {
      if (data !== 'hello') tell(data);
      else if (isReading && list) channel.postMessage(list);
    };
    channel.postMessage('hello');
    const read = async () => {
      isReading = true;
      for await (const event of eventsOf(server, signal)) {
        channel.postMessage(event);
        tell(event);
      }
    };
    signal.addEventListener('abort', () => channel.close());
    // A page over plain HTTP has no locks: then each one reads.
    const reading = navigator.locks ? navigator.locks.request(name, { signal }, read) : read();
    reading.catch(() => {}); // it was aborted
    return end;
  }

  return {
    subscribe(listener) {
      listeners.add(listener);
      if (list) listener(list);
      following ??= follow();
      return () => {
        listeners.delete(listener);
        if (listeners.size > 0) return;
        following?.abort();
        following = list = undefined;
      };
    },
  };
}

/** A list after an event: a chat that has changed stands first. */
export function withEvent(list: ChatList | undefined, event: ChatEvent): ChatList | undefined {
  if (event.type === 'chats') return event;
  if (!list) return undefined;
  const id = event.type === 'chat' ? event.chat.id : event.id;
  const others = list.chats.filter(chat => chat.id !== id);
  if (event.type === 'deleted') return { ...list, chats: others };
  const at = others.findIndex(({ updatedAt }) => updatedAt <= event.chat.updatedAt);
  return { ...list, chats: others.toSpliced(at < 0 ? others.length : at, 0, event.chat) };
}

/** The events of a server, over as many connections as it takes. */
async function* eventsOf(server: ChatServer, signal: AbortSignal): AsyncGenerator<ChatEvent> {
  for (let pause = 0; ; pause = Math.min(pause * 2 || FIRST_PAUSE, MAX_PAUSE)) {
    if (pause) await sleep(pause, signal);
    const response = await server.fetch(`${server.api}?events`, { signal }).catch(() => undefined);
    signal.throwIfAborted();
    if (!response?.ok) continue;
    for await (const frame of wholeFrames(response)) {
      const event = eventOf(frame);
      if (event) yield event;
      pause = 0; // the server ends the response after a while
    }
  }
}

function eventOf(frame: string): ChatEvent | undefined {
  const type = /^event: ?(.*)$/m.exec(frame)?.[1];
  const data = JSON.parse(/^data: ?(.*)$/m.exec(frame)?.[1] ?? 'null');
  switch (type) {
    case 'chats':
      return { type, ...data };
    case 'chat':
      return { type, chat: data };
    case 'deleted':
      return { type, id: data.id };
    default:
      return undefined;
  }
}
