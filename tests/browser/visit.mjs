// A user of one of the pages that `crates/chat/tests/client/stock_page.rs` serves, and the server behind it.

import assert from 'node:assert/strict';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { barriersOf, launch, SCREENS, until, WCAG } from './chromium.mjs';
import { Tab } from './tab.mjs';

const { positionals, values: args } = parseArgs({
  allowPositionals: true,
  options: { screenshots: { type: 'string' } },
});
export const [url] = positionals;
if (!url) throw new Error(`which server? node ${process.argv[1]} URL [--screenshots DIR]`);

const post = async path => assert((await fetch(new URL(path, url), { method: 'POST' })).ok, path);
export const restart = () => post('/restart');

const browser = await launch();

/** Scripts that run one after the other have chats of their own. */
const script = basename(process.argv[1], '.mjs');

/** A browser of a user: `<tenant>.<user>`. */
export async function browserOf(user, baseURL = url) {
  const context = await browser.newContext({ ...SCREENS.phone, baseURL });
  await context.addCookies([{ name: 'user', value: user, url: baseURL }]);
  return context;
}

/** What a model counts, and the numbers before it waits. */
export const NUMBERS = Array.from({ length: 20 }, (_, at) => at + 1).join(' ');
const BEGIN = NUMBERS.slice(0, NUMBERS.indexOf(' 11'));

export const showsBegin = tab => until('10 numbers are shown', async () => (await tab.text()) === BEGIN);

/** A chat, and the page of its user. */
export class Visit {
  /** How many requests the page has posted. */
  posts = 0;
  /** The open requests for what changes in the chats of the user. */
  #eventStreams = new Set();

  /** How many pages read what changes in the chats of the user. */
  get eventReaders() {
    return [...this.#eventStreams].filter(request => !request.frame().page().isClosed()).length;
  }

  static async open(page, id, network) {
    const visit = new Visit();
    const baseURL = network?.url ?? url;
    const user = `alice-${page}`; // several pages are open at the same time
    const context = await browserOf(`acme.${user}`, baseURL);
    Object.assign(visit, { id, pageName: page, user, baseURL, network, context });
    visit.context.on('request', request => {
      visit.posts += request.method() === 'POST';
      if (request.url().endsWith('?events')) visit.#eventStreams.add(request);
    });
    for (const end of ['requestfinished', 'requestfailed']) {
      visit.context.on(end, request => visit.#eventStreams.delete(request));
    }
    visit.tab = await visit.openTab();
    visit.page = visit.tab.page;
    return visit;
  }

  /** Whether the page is one of `packages/client`. */
  get isStored() {
    return this.pageName.startsWith('stored-');
  }

  openTab = () => Tab.open(this.context, `${this.baseURL}/page/${this.pageName}?chat=${this.id}`);

  shoot = async moment => {
    assert.deepEqual(await barriersOf(this.page, WCAG), [], moment);
    if (!args.screenshots) return;
    const path = join(args.screenshots, `${this.id} ${moment}.png`.replaceAll(' ', '-'));
    await this.page.screenshot({ path, fullPage: true });
  };

  /** Lets a tool or an answer of this chat that waits go on. */
  openGate = (chat = this.id) => post(`/gate/${chat}`);

  /** Asks for an answer that waits after 10 numbers, until `openGate` lets it go on to 20. */
  get counting() {
    return `Count in ${this.id}`;
  }

  /** Sends this message, and waits until the answer waits. */
  async counts() {
    await this.tab.write(this.counting);
    await showsBegin(this.tab);
  }

  /** What the tools have done in this chat. */
  effects = async () => (await fetch(`${url}/effects/${this.id}`)).json();

  /** Sends a message, and waits until the page asks so many questions. */
  async asks(text, questions = 1) {
    await this.tab.write(text);
    await this.isAsked(questions);
  }

  isAsked = questions =>
    until(`${questions} questions are shown`, async () => {
      return (await this.tab.isIdle()) && (await this.page.getByTestId('deny').count()) === questions;
    });

  /** The call of a tool on the page. */
  call = (tool, place = 0) => this.page.getByTestId(`tool-${tool}`).nth(place);

  approve = (tool, place) => this.call(tool, place).getByTestId('approve').click();

  /** Waits until the page shows the whole answer. */
  isAnswered = text =>
    until(`the answer ${text} is shown`, async () => text.test(await this.tab.text()) && this.tab.isIdle());

  async reload() {
    await this.page.reload();
    await this.page.getByTestId('input').waitFor();
  }

  async close() {
    const errors = await this.page.getByTestId('error').allInnerTexts();
    await this.context.close();
    assert.deepEqual([...errors, ...this.tab.complaints], []);
  }
}

/**
 * Runs cases, each with a chat of its own, on several pages at the same time. A page may have a network of its own.
 * Returns how many ran, and how many failed.
 */
export async function runCases(pages, cases, isFor, networkOf = async () => undefined) {
  let [ran, failed] = [0, 0];
  const runOn = async page => {
    const network = await networkOf(page);
    for (const [place, [name, act]] of Object.entries(cases).entries()) {
      if (!isFor(page, name) || !`${page}: ${name}`.includes(process.env.ONLY ?? '')) continue;
      ran += 1;
      const visit = await Visit.open(page, `${script}-${page}-${place}`, network);
      try {
        await act(visit);
        await visit.close();
      } catch (error) {
        failed += 1;
        console.log(`FAILED ${page}: ${name}: ${error.message}\n${await visit.page.innerText('body').catch(() => '')}`);
        await visit.context.close();
      }
    }
    network?.close();
  };
  await Promise.all(pages.map(runOn));
  return { ran, failed };
}

export async function report(what, { ran, failed }) {
  await browser.close();
  console.log(`${what}: ${ran} ran, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
