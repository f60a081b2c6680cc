import { Chat } from '@ai-sdk/svelte';
import type { UIMessage } from 'ai';
import { onMount } from 'svelte';
import { createSubscriber } from 'svelte/reactivity';
import { defaultServer, type ChatServer } from './server.js';
import { StoredChat, type State, type StoredChatOptions } from './stored-chat.js';

export * from './core.js';

/** The options of `Chat` that are not about the connection, and those of this package. */
export type StoredChatInit<M extends UIMessage = UIMessage> = Omit<
  ConstructorParameters<typeof Chat<M>>[0],
  'id' | 'messages' | 'transport' | 'sendAutomaticallyWhen' | 'experimental_queue'
> &
  Pick<StoredChatOptions, 'id' | 'isNew' | 'body'> & { server?: ChatServer };

/** A chat that the server stores. What reads its `messages`, `status` or `error` is updated. */
class SvelteStoredChat<M extends UIMessage> extends StoredChat<M, Chat<M>> {
  readonly #track = createSubscriber(update => this.subscribe(update));

  override get state(): State {
    this.#track();
    return super.state;
  }
}

/** Shows a chat that the server stores, in a component. */
export function storedChat<M extends UIMessage = UIMessage>(init: StoredChatInit<M>): StoredChat<M, Chat<M>> {
  const { server = defaultServer(), isNew, body, onFinish, ...others } = init;
  const options = { id: init.id, server, isNew, body, onFinish: onFinish as StoredChatOptions['onFinish'] };
  const chat = new SvelteStoredChat<M>(options, parts => new Chat<M>({ ...others, ...parts } as never));
  onMount(() => chat.connect());
  return chat;
}
