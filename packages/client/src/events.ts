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
  /** Begins again, at once: for a user who has signed in. */
  restart(): void;
  /** Passes on a change that this page has made: the server sends no event for a chat that is not among the newest. */
  tell(event: ChatEvent): void;
};

/** Chats, the last changed first. */
export type ChatList = Extract<ChatEvent, { type: 'chats' }>;

/** Milliseconds before the server is asked again: the first time, and at most. */
const [FIRST_PAUSE, MAX_PAUSE] = [1_000, 30_000];
/** A connection that was open for so many milliseconds has not failed: the server ends each one after a while. */
const LONG = 10_000;

/**
 * Follows the chats of a user over one connection for all pages of the browser with this name: a browser has only six
 * connections to a host over HTTP/1.1. The page that holds a lock reads the events, and passes them on. Without a name,
 * and over plain HTTP, which has no locks, each page reads for itself.
 */
export function followChats(server: ChatServer, sharedName: string | undefined): ChatEvents {
  const listeners = new Set<(event: ChatEvent) => void>();
  let list: ChatList | undefined;
  let following: AbortController | undefined;
  /** Its event `again` begins another connection. */
  const target = new EventTarget();
  /** Sends to the other pages with this name. */
  let post = (_message: ChatEvent | 'again') => {};

  function pass(event: ChatEvent) {
    post(event);
    tell(event);
  }

  function tell(event: ChatEvent) {
    list = withEvent(list, event);
    for (const listener of listeners) {
      try {
        listener(event);
      } catch (error) {
        reportError(error);
      }
    }
  }

  function followAlone(signal: AbortSignal) {
    return read(server, signal, target, pass);
  }

  function followShared(signal: AbortSignal, name: string) {
    const channel = new BroadcastChannel(name);
    // A page that has just opened may be of a user who has just signed in: the events begin again with its cookies.
    channel.onmessage = ({ data }: MessageEvent<ChatEvent | 'again'>) => {
      if (data === 'again') target.dispatchEvent(new Event('again'));
      else tell(data);
    };
    post = message => channel.postMessage(message);
    post('again');
    signal.addEventListener('abort', () => {
      channel.close();
      post = () => {};
    });
    return navigator.locks.request(name, { signal }, () => read(server, signal, target, pass));
  }

  function follow(): AbortController {
    const end = new AbortController();
    const { signal } = end;
    const name = sharedName !== undefined && 'locks' in navigator && `ui-message-stream ${sharedName}`;
    const followed = name ? followShared(signal, name) : followAlone(signal);
    followed.catch(error => {
      if (!signal.aborted) reportError(error);
    });
    return end;
  }

  return {
    restart() {
      target.dispatchEvent(new Event('again'));
      post('again');
    },
    tell(event) {
      if (following) pass(event);
    },
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

/** A list after an event: a chat that has changed moves to the place of its time. */
export function withEvent(list: ChatList | undefined, event: ChatEvent): ChatList | undefined {
  if (event.type === 'chats') return withNewest(list, event);
  if (!list) return undefined;
  const id = event.type === 'chat' ? event.chat.id : event.id;
  const others = list.chats.filter(chat => chat.id !== id);
  if (event.type === 'deleted') return { ...list, chats: others };
  const at = others.findIndex(({ updatedAt }) => updatedAt <= event.chat.updatedAt);
  return { ...list, chats: others.toSpliced(at < 0 ? others.length : at, 0, event.chat) };
}

/**
 * The newest chats, and the older ones of a list. If the oldest of the newest chats is in the list, and has not changed,
 * the list has all chats that follow it. Otherwise some of them may be missing in the list, or they are of another user.
 */
function withNewest(list: ChatList | undefined, newest: ChatList): ChatList {
  const last = newest.chats.at(-1);
  const isLast = ({ id, updatedAt }: ChatSummary) => id === last?.id && updatedAt === last.updatedAt;
  if (!list || !last || newest.after === undefined || !list.chats.some(isLast)) return newest;
  const older = list.chats.filter(({ updatedAt }) => updatedAt <= last.updatedAt);
  return withPage(newest, { ...list, chats: older });
}

/** A list with the chats that follow it. */
export function withPage(list: ChatList | undefined, page: Omit<ChatList, 'type'>): ChatList {
  const chats = list?.chats ?? [];
  const known = new Set(chats.map(({ id }) => id));
  return { type: 'chats', ...page, chats: [...chats, ...page.chats.filter(({ id }) => !known.has(id))] };
}

/** Reads the events of a server, over as many connections as it takes. Another one begins at each event `again`. */
async function read(server: ChatServer, signal: AbortSignal, target: EventTarget, tell: (event: ChatEvent) => void) {
  for (let failures = 0; ; ) {
    let begun = Infinity;
    const connection = new AbortController();
    const again = () => connection.abort();
    target.addEventListener('again', again);
    const either = AbortSignal.any([signal, connection.signal]);
    try {
      if (failures > 0) await sleep(Math.min(FIRST_PAUSE * 2 ** (failures - 1), MAX_PAUSE), either);
      failures += 1;
      begun = Date.now();
      const response = await server.fetchUnsigned(`${server.api}?events`, { signal: either });
      if (response.ok) {
        for await (const frame of wholeFrames(response)) {
          const event = eventOf(frame);
          if (event) tell(event);
        }
      }
    } catch {
      // It is tried again.
    }
    target.removeEventListener('again', again);
    signal.throwIfAborted();
    if (connection.signal.aborted || Date.now() - begun > LONG) failures = 0;
  }
}

/** The event of a frame. `undefined` for one that this version does not know. */
function eventOf(frame: string): ChatEvent | undefined {
  const type = /^event: ?(.*)$/m.exec(frame)?.[1];
  try {
    const data = JSON.parse(/^data: ?(.*)$/m.exec(frame)?.[1] ?? 'null');
    if (type === 'chats') return { type, ...data };
    if (type === 'chat') return { type, chat: data };
    if (type === 'deleted') return { type, id: data.id };
  } catch {
    // A proxy may answer with something else.
  }
  return undefined;
}
