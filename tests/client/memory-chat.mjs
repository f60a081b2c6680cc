// The real `AbstractChat` of a version, without a framework around it.

/**
 * Stores the state of a chat as React's hook does: a replaced message is copied, an added message
 * is not.
 */
class MemoryState {
  status = 'ready';
  error = undefined;

  constructor(messages) {
    this.messages = messages;
  }
  pushMessage = message => {
    this.messages = [...this.messages, message];
  };
  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };
  replaceMessage = (index, message) => {
    this.messages = this.messages.with(index, this.snapshot(message));
  };
  snapshot = value => structuredClone(value);
}

/** The `Chat` class of `client`. It takes the options of `useChat`. */
export const memoryChat = client =>
  class MemoryChat extends client.AbstractChat {
    constructor({ messages = [], ...options }) {
      super({ ...options, state: new MemoryState(messages) });
    }
  };
