import { Chat } from '@ai-sdk/svelte';
import type { UIMessage } from 'ai';
import { onMount } from 'svelte';
import { createSubscriber } from 'svelte/reactivity';
import { separateOptions, StoredChat, type PageOptions, type State } from './stored-chat.js';

export * from './core.js';

export type StoredChatInit<M extends UIMessage = UIMessage> = PageOptions<ConstructorParameters<typeof Chat<M>>[0]>;

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
  const { options, init: others } = separateOptions(init);
  const chat = new SvelteStoredChat<M>(options, parts => new Chat<M>({ ...others, ...parts } as never));
  onMount(() => chat.connect());
  return chat;
}
