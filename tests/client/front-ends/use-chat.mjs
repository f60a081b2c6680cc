// `useChat` of a version of `@ai-sdk/react`, rendered without a browser.
import { createElement } from 'react';
import { create } from 'react-test-renderer';
import { until } from '../../support/until.mjs';

/** The hook with its defaults, and what a page does with it. */
export class UseChat {
  /** `module` is `@ai-sdk/react` of one version, `transportOf` makes the transport of a page. */
  static open = (module, transportOf) => async (api, fetch) => {
    const page = new UseChat();
    const transport = transportOf(api, fetch);
    const Page = () => {
      page.helpers = module.useChat({ transport });
      return null;
    };
    page.root = create(createElement(Page));
    await until('the hook is rendered', () => page.helpers);
    return page;
  };

  get messages() {
    return this.helpers.messages.map(({ id, role, parts }) => ({ id, role, text: textOf(parts) }));
  }

  get isIdle() {
    return ['ready', 'error'].includes(this.helpers.status);
  }

  get error() {
    return this.helpers.error;
  }

  send(text) {
    void this.helpers.sendMessage({ text });
  }

  stop() {
    void this.helpers.stop();
  }

  /** Reads the live answer from its beginning. */
  resume() {
    void this.helpers.resumeStream();
  }

  /** Requests the answer at this place again. The page removes it and what follows, and names no message. */
  async reload(place) {
    this.helpers.setMessages(messages => messages.slice(0, place));
    await until('the list is cut', () => this.helpers.messages.length === place);
    void this.helpers.regenerate();
  }

  /** Sends another text for the message at this place, as a new message behind a cut list. */
  async edit(place, text) {
    this.helpers.setMessages(messages => messages.slice(0, place));
    await until('the list is cut', () => this.helpers.messages.length === place);
    this.send(text);
  }

  /** Sends another text for the message at this place, by its id. */
  editById(place, text) {
    void this.helpers.sendMessage({ text, messageId: this.helpers.messages[place].id });
  }

  /** Requests the answer at this place again, by its id. */
  reloadById(place) {
    void this.helpers.regenerate({ messageId: this.helpers.messages[place].id });
  }

  close() {
    this.root.unmount();
  }
}

const textOf = parts => parts.map(part => (part.type === 'text' ? part.text : '')).join('');
