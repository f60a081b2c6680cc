import { Chat, useChat, type UIMessage, type UseChatHelpers } from '@ai-sdk/react';
import { useEffect, useRef, useState, useSyncExternalStore } from 'react';
import { withEvent, withPage, type ChatList } from './events.js';
import { type ChatServer, type ChatSummary, defaultServer } from './server.js';
import { separateOptions, StoredChat, withUndelivered, type PageOptions, type StoredChatOptions } from './stored-chat.js';

export * from './core.js';

/** The options of `Chat`, of the version of the AI SDK that the page has. */
type ChatInit<M extends UIMessage> = ConstructorParameters<typeof Chat<M>>[0];

/** The options of `useStoredChat`. */
export type UseStoredChatOptions<M extends UIMessage = UIMessage> = PageOptions<ChatInit<M>> & {
  /** Milliseconds between updates of the messages. */
  experimental_throttle?: number;
};

type Client<M extends UIMessage> = StoredChat<M, Chat<M>>;

/** What `useStoredChat` returns: as `useChat`, with the messages and the status of a chat that the server stores. */
export type StoredChatHelpers<M extends UIMessage = UIMessage> = Omit<
  UseChatHelpers<M>,
  'status' | 'resumeStream' | 'setMessages' | 'addToolApprovalResponse' | 'addToolResult'
> &
  Pick<Client<M>, 'status' | 'isBusy' | 'isUnknown' | 'ended' | 'respond' | 'retry' | 'loadOlder'>;

/**
 * `useChat` for a chat that the server stores. The page shows its history, goes on after a reload, a broken connection
 * and a lost server, and shows what other pages and devices do in the chat.
 */
export function useStoredChat<M extends UIMessage = UIMessage>(options: UseStoredChatOptions<M>): StoredChatHelpers<M> {
  const { id, server = defaultServer() } = options;
  // Callbacks and `body` are those of the last render.
  const latest = useRef(options);
  useEffect(() => {
    latest.current = options;
  });
  const create = () => newClient(options, server, () => latest.current);
  const [client, setClient] = useState(create);
  if (client.id !== id || client.server !== server) setClient(create);
  useEffect(() => client.connect(), [client]);
  useSyncExternalStore(client.subscribe, () => client.state, () => client.state);
  const { experimental_throttle } = options;
  const { resumeStream, setMessages, addToolApprovalResponse, addToolResult, ...helpers } = useChat<M>({
    chat: client.chat,
    ...(experimental_throttle !== undefined && { experimental_throttle }),
  });
  const { status, isBusy, error, isUnknown, ended, loadOlder } = client;
  const messages = withUndelivered(helpers.messages, client.state);
  const { sendMessage, regenerate, addToolOutput, respond, retry, stop, clearError } = client;
  const state = { messages, status, isBusy, error, isUnknown, ended, loadOlder };
  return { ...helpers, ...state, sendMessage, regenerate, addToolOutput, respond, retry, stop, clearError };
}

/** Makes a client with the options of a render, and the callbacks of the latest one. */
function newClient<M extends UIMessage>(
  options: UseStoredChatOptions<M>,
  server: ChatServer,
  latest: () => UseStoredChatOptions<M>,
): Client<M> {
  const { options: own, init } = separateOptions<ChatInit<M>>({ ...options, server });
  const stored: StoredChatOptions = {
    ...own,
    body: () => latest().body?.() ?? {},
    onFinish: finished => latest().onFinish?.(finished as never),
  };
  return new StoredChat<M, Chat<M>>(stored, parts => {
    const callbacks: Pick<ChatInit<M>, 'onData' | 'onError' | 'onToolCall'> = {
      onData: part => latest().onData?.(part),
      onError: error => latest().onError?.(error),
      onToolCall: call => latest().onToolCall?.(call),
    };
    return new Chat<M>({ ...init, ...callbacks, ...parts } as ChatInit<M>);
  });
}

/** The chats of the user, the last changed first, as they are now on any page and device. */
export function useChats({ server = defaultServer() }: { server?: ChatServer } = {}): {
  chats: ChatSummary[];
  /** Reads more chats. `undefined` if all are shown. */
  loadMore: (() => Promise<void>) | undefined;
} {
  const [list, setList] = useState<ChatList>();
  useEffect(() => {
    const unsubscribe = server.events.subscribe(event => setList(list => withEvent(list, event)));
    return () => {
      unsubscribe();
      setList(undefined);
    };
  }, [server]);
  const after = list?.after;
  async function loadMore() {
    const page = await server.chats({ after }).catch(() => undefined);
    if (page) setList(list => (list?.after === after ? withPage(list, page) : list));
  }
  return { chats: list?.chats ?? [], loadMore: after === undefined ? undefined : loadMore };
}
