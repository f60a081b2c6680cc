import { Chat } from '@ai-sdk/vue';
import type { UIMessage } from 'ai';
import { onMounted, onScopeDispose, shallowRef } from 'vue';
import { separateOptions, StoredChat, type PageOptions, type State } from './stored-chat.js';

export * from './core.js';

export type StoredChatInit<M extends UIMessage = UIMessage> = PageOptions<ConstructorParameters<typeof Chat<M>>[0]>;

/** A chat that the server stores. A template that reads its `messages`, `status` or `error` is updated. */
class VueStoredChat<M extends UIMessage> extends StoredChat<M, Chat<M>> {
  readonly #changed = shallowRef(super.state);

  constructor(...options: ConstructorParameters<typeof StoredChat<M, Chat<M>>>) {
    super(...options);
    this.subscribe(() => (this.#changed.value = super.state));
  }

  override get state(): State {
    return this.#changed.value;
  }
}

/** Shows a chat that the server stores, in a component. */
export function useStoredChat<M extends UIMessage = UIMessage>(init: StoredChatInit<M>): StoredChat<M, Chat<M>> {
  const { options, init: others } = separateOptions(init);
  const chat = new VueStoredChat<M>(options, parts => new Chat<M>({ ...others, ...parts } as never));
  let disconnect = () => {};
  onMounted(() => (disconnect = chat.connect()));
  onScopeDispose(() => disconnect());
  return chat;
}
