// A tab with one of the two pages: what its user does and sees. The pages have the same test ids.

import { until } from './chromium.mjs';

/** The messages as a user reads them: who writes, the text, and each tool call with its state. */
export const readMessages = messages =>
  messages.map(message => {
    const copy = message.cloneNode(true);
    const cards = [...copy.querySelectorAll('[data-testid^="tool-"]')];
    for (const card of cards) card.remove();
    return {
      by: message.dataset.testid.slice('message-'.length),
      text: copy.textContent.trim(),
      calls: cards.map(
        card => `${card.dataset.testid.slice('tool-'.length)}: ${card.dataset.state}`,
      ),
    };
  });

export class Tab {
  /** The errors and warnings of the page. */
  complaints = [];

  constructor(page) {
    this.page = page;
    page.on('pageerror', error => this.complaints.push(`uncaught: ${error.message}`));
    page.on('console', message => {
      if (
        ['error', 'warning'].includes(message.type()) &&
        !/Failed to load resource/.test(message.text())
      )
        this.complaints.push(`console: ${message.text()}`);
    });
  }

  static async open(context, url) {
    const tab = new Tab(await context.newPage());
    await tab.page.goto(url);
    await tab.page.getByTestId('input').waitFor();
    return tab;
  }

  /** Does this, and adds what the page shows to the error if it fails. */
  async does(act) {
    try {
      await act();
    } catch (error) {
      error.message += `\n${await this.page.innerText('body').catch(() => '')}`;
      throw error;
    }
  }

  /** The id of the chat in the address. */
  get chatId() {
    return new URL(this.page.url()).searchParams.get('chat');
  }

  async write(text) {
    await this.page.getByTestId('input').fill(text);
    await this.page.getByTestId('send').click();
  }

  /** Sends a message and waits for the end of the answer. */
  async say(text) {
    const { length } = await this.messages();
    await this.write(text);
    await this.isDone(length + 2);
  }

  /** Waits until the tab holds so many messages, and the last one is complete. */
  async isDone(length) {
    await until(`${length} complete messages are shown`, async () => {
      const messages = await this.messages();
      return messages.length === length && (await this.isIdle()) && messages.at(-1).text !== '';
    });
  }

  isIdle() {
    return this.page
      .getByTestId('stop')
      .evaluateAll(all => all.every(button => button.disabled || !button.checkVisibility()));
  }

  messages() {
    return this.page.locator('[data-testid^="message-"]').evaluateAll(readMessages);
  }

  /** The text of the last message. */
  async text() {
    return (await this.messages()).at(-1)?.text ?? '';
  }

  /** Waits for a call of the last message to have a state, and returns its card. */
  async sees(tool, state) {
    const card = this.page.locator(`[data-testid="tool-${tool}"][data-state="${state}"]`).last();
    await card.waitFor();
    return card;
  }

  /** Waits for an error with this text, with nothing under way. */
  async fails(text) {
    await until(`an error ${text} is shown`, async () => {
      const [error] = await this.page.getByTestId('error').allInnerTexts();
      return text.test(error ?? '') && (await this.isIdle());
    });
  }

  shows(testId) {
    return this.page.getByTestId(testId).isVisible();
  }
}
