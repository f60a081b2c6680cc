// The runtime of assistant-ui over `useChat`, without its components and without a browser.
import { useChat } from '@ai-sdk/react';
import { AssistantChatTransport, useAISDKRuntime } from '@assistant-ui/react-ai-sdk';
import { createElement } from 'react';
import { create } from 'react-test-renderer';
import { until } from '../../support/until.mjs';

/** The runtime with its defaults, and what its components do with it. */
export class AssistantUi {
  static async open(api, fetch) {
    const page = new AssistantUi();
    const transport = new AssistantChatTransport({ api, fetch });
    const Page = () => {
      page.runtime = useAISDKRuntime(useChat({ transport }));
      return null;
    };
    page.root = create(createElement(Page));
    await until('the runtime is rendered', () => page.runtime?.thread.getState().isDisabled === false);
    return page;
  }

  get thread() {
    return this.runtime.thread;
  }

  get messages() {
    const { messages } = this.thread.getState();
    return messages.map(({ id, role, content }) => ({ id, role, text: textOf(content) }));
  }

  get isIdle() {
    return !this.thread.getState().isRunning;
  }

  get error() {
    const { status } = this.thread.getState().messages.at(-1) ?? {};
    return status?.reason === 'error' ? status.error : undefined;
  }

  send(text) {
    this.thread.append(text);
  }

  stop() {
    this.thread.cancelRun();
  }

  /** The reload button of an answer. */
  async reload(place) {
    this.thread.getMessageByIndex(place).reload();
  }

  /** The edit button of a message. */
  async edit(place, text) {
    const { composer } = this.thread.getMessageByIndex(place);
    composer.beginEdit();
    composer.setText(text);
    composer.send();
  }

  close() {
    this.root.unmount();
  }
}

const textOf = content => content.map(part => (part.type === 'text' ? part.text : '')).join('');
