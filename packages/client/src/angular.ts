import { afterNextRender, DestroyRef, inject, signal } from '@angular/core';
import { AbstractChat, type ChatInit, type ChatState, type ChatStatus, type UIMessage } from 'ai';
import { separateOptions, StoredChat, type PageOptions, type State } from './stored-chat.js';

export * from './core.js';

export type StoredChatInit<M extends UIMessage = UIMessage> = PageOptions<ChatInit<M>>;

/** What a `Chat` shows, in signals. */
class SignalState<M extends UIMessage> implements ChatState<M> {
  readonly #messages = signal<M[]>([]);
  readonly #status = signal<ChatStatus>('ready');
  readonly #error = signal<Error | undefined>(undefined);

  get messages(): M[] {
    return this.#messages();
  }
  set messages(messages) {
    this.#messages.set(messages);
  }
  get status(): ChatStatus {
    return this.#status();
  }
  set status(status) {
    this.#status.set(status);
  }
  get error(): Error | undefined {
    return this.#error();
  }
  set error(error) {
    this.#error.set(error);
  }

  pushMessage = (message: M): void => this.#messages.update(messages => [...messages, message]);
  popMessage = (): void => this.#messages.update(messages => messages.slice(0, -1));
  // The AI SDK changes the parts of the message that it passes. A component that has one as an input needs a new object.
  replaceMessage = (at: number, message: M): void =>
    this.#messages.update(messages => messages.with(at, this.snapshot(message)));
  snapshot = <T>(value: T): T => structuredClone(value);
}

/** The `Chat` of the AI SDK for Angular. */
class Chat<M extends UIMessage> extends AbstractChat<M> {}

/** A chat that the server stores. A template or a `computed` that reads its `messages`, `status` or `error` is updated. */
class AngularStoredChat<M extends UIMessage> extends StoredChat<M, Chat<M>> {
  readonly #changed = signal(super.state);

  constructor(...options: ConstructorParameters<typeof StoredChat<M, Chat<M>>>) {
    super(...options);
    this.subscribe(() => this.#changed.set(super.state));
  }

  override get state(): State {
    return this.#changed();
  }
}

/** Shows a chat that the server stores, in a component. It is called in an injection context. */
export function injectStoredChat<M extends UIMessage = UIMessage>(init: StoredChatInit<M>): StoredChat<M, Chat<M>> {
  const { options, init: others } = separateOptions(init);
  const chat = new AngularStoredChat<M>(options, parts => {
    return new Chat<M>({ ...others, ...parts, state: new SignalState<M>() } as never);
  });
  let disconnect = () => {};
  afterNextRender(() => (disconnect = chat.connect())); // not on a server
  inject(DestroyRef).onDestroy(() => disconnect());
  return chat;
}
