// Walks the path of a user through both pages, the demo's and the Next.js one, in a real browser:
//
//   npm ci
//   node paths.mjs --demo http://127.0.0.1:3000 --next http://127.0.0.1:3001 --gates DIR [--screenshots DIR]
//
// The Next.js app must pipe to the demo given, which answers from its script (no OPENAI_API_KEY).

import { onBothPages } from './both-pages.mjs';
import { barriersOf, launch, readArguments, SCREENS, until, worldOf } from './chromium.mjs';
import { Gate } from './gate.mjs';

const REASON = 'I still need it';

const args = readArguments();

// How often a path may post is part of it: `sendAutomaticallyWhen` has no guard against a loop.
const PATHS = [
  {
    name: 'text',
    mostPosts: 1,
    async walk(person) {
      await person.say('Hello there');
      await person.reads('an answer');
    },
  },
  {
    name: 'weather',
    mostPosts: 1,
    async walk(person) {
      await person.say('weather');
      await person.sees('get_weather', 'output-available');
      await person.reads('an answer', /weather|°|degrees/i);
    },
  },
  {
    name: 'delete approved',
    mostPosts: 2,
    async walk(person) {
      const file = await person.someFile();
      await person.say(`delete ${file}`);
      const card = await person.sees('delete_file', 'approval-requested');
      person.check((await card.innerText()).includes(file), `the card names ${file}`);
      person.check((await person.world()).files.includes(file), `${file} is there until approved`);
      await person.shoot('waiting');
      await card.getByTestId('approve').click();
      await person.sees('delete_file', 'output-available');
      await person.reads('what happened');
      person.check(!(await person.world()).files.includes(file), `${file} is gone`);
    },
  },
  {
    name: 'mixed',
    mostPosts: 3,
    async walk(person) {
      const file = await person.someFile();
      const before = (await person.world()).transfers.length;
      await person.say(`mixed ${file}`);
      await person.sees('get_weather', 'output-available');
      const deletion = await person.sees('delete_file', 'approval-requested');
      const transfer = await person.sees('transfer', 'approval-requested');
      await person.shoot('waiting');
      if (person.isOnDemo) {
        const [one, other] = [await cornerOf(deletion), await cornerOf(transfer)];
        person.check(one === other, `Approve is at one place in both cards, not ${one} and ${other}`);
      }
      await transfer.getByTestId('approve').click();
      await person.sees('transfer', 'output-available');
      await person.sees('delete_file', 'approval-requested');
      await person.deny(deletion);
      await person.sees('delete_file', 'output-denied');
      await person.reads('what happened', DENIED);
      const { files, transfers } = await person.world();
      person.check(files.includes(file), `${file} is still there`);
      person.check(transfers.length === before + 1, 'one transfer was made');
      person.check(transfers.at(-1)?.amount === 5000, 'the transfer is of 5000');
    },
  },
  {
    name: 'changed input',
    mostPosts: 4,
    async walk(person) {
      const file = await person.someFile();
      const before = (await person.world()).transfers.length;
      await person.say(`mixed ${file} 4000`);
      const deletion = await person.sees('delete_file', 'approval-requested');
      const transfer = await person.sees('transfer', 'approval-requested');
      person.mayBeRefused = true;
      await person.approvesChanged(transfer, -1);
      await person.readsError(/changed input for `transfer`.*amount/);
      person.check((await person.world()).transfers.length === before, 'no transfer was made');
      await person.sees('delete_file', 'approval-requested');
      await person.sees('transfer', 'approval-requested');
      await person.shoot('refused');
      await person.approvesChanged(transfer, 40);
      await person.sees('transfer', 'output-available');
      await person.deny(deletion);
      await person.sees('delete_file', 'output-denied');
      await person.reads('what happened', DENIED);
      const { transfers } = await person.world();
      person.check(transfers.length === before + 1, 'one transfer was made');
      person.check(transfers.at(-1)?.amount === 40, 'the transfer is of 40');
      const shown = await transfer.innerText();
      person.check(/amount\W+40\b/.test(shown), 'the card shows the changed input');
      person.check(/It was: .*4000/s.test(shown), 'the card shows the input of the model');
    },
  },
  {
    name: 'a new message beside an open question',
    mostPosts: 3,
    async walk(person) {
      const file = await person.someFile();
      const before = (await person.world()).transfers.length;
      await person.say(`mixed ${file}`);
      await person.sees('delete_file', 'approval-requested');
      const transfer = await person.sees('transfer', 'approval-requested');
      await transfer.getByTestId('approve').click();
      await person.sees('transfer', 'output-available');
      await person.sees('delete_file', 'approval-requested');
      const superseded = await person.staysAt('delete_file');
      await person.say('No wait, stop, keep it');
      await person.reads('an answer');
      await person.shoot('closed by a new message');
      await person.seesApproval(superseded, 'superseded', /message instead of an answer/i);
      person.check(!(await superseded.getByTestId('approve').count()), 'a closed question has no buttons');
      const { files, transfers } = await person.world();
      person.check(files.includes(file), `${file} is still there`);
      person.check(transfers.length === before + 1, 'the approved transfer was made');
    },
  },
  {
    name: 'a late denial of a call that another page approved',
    mostPosts: 2,
    async walk(person) {
      const file = await person.someFile();
      await person.say(`delete ${file}`);
      const card = await person.sees('delete_file', 'approval-requested');
      // The approval of the other page arrives first.
      await person.page.route('**/api/chat', async route => {
        await person.approvesElsewhere();
        await until(`${file} is gone`, async () => !(await person.world()).files.includes(file));
        await route.continue();
      });
      await person.deny(card);
      await person.sees('delete_file', 'output-available');
      await person.reads('what happened');
      await person.page.unroute('**/api/chat');
      await person.shoot('denied too late');
      await person.seesApproval(card, 'approved', /"deleted": true/);
      person.check(!/denied/i.test(await card.innerText()), 'the card does not say denied');
    },
  },
  {
    name: 'a question and the keyboard',
    mostPosts: 2,
    async walk(person) {
      await person.say(`delete ${await person.someFile()}`);
      await person.seesFocusIn(await person.sees('delete_file', 'approval-requested'));
      await person.page.keyboard.press('Enter');
      await person.isThrough();
      const card = await person.sees('delete_file', 'approval-requested');
      const presses = await person.pressUntil('Tab', card.getByTestId('approve'));
      person.check(presses <= 3, `three times Tab to Approve, not ${presses}`);
      await person.deny(card);
      await person.sees('delete_file', 'output-denied');
      await person.reads('that it was denied', DENIED);
    },
  },
  {
    name: 'a question while the person writes',
    mostPosts: 2,
    async walk(person) {
      // The question comes while the person writes, also on a slow machine.
      let letThrough;
      const passage = new Promise(resolve => (letThrough = resolve));
      await person.page.route('**/api/chat', route => passage.then(() => route.continue()));
      await person.say(`delete ${await person.someFile()}`);
      const input = person.page.getByTestId('input');
      await input.focus();
      await person.page.keyboard.type('No wait');
      letThrough();
      const card = await person.sees('delete_file', 'approval-requested');
      await person.page.keyboard.type(', stop');
      person.check((await input.inputValue()) === 'No wait, stop', 'the text stays whole');
      const status = (await person.page.getByRole('status').allInnerTexts()).join();
      person.check(/wait/.test(status), `a question is announced, not ${status}`);
      const presses = await person.pressUntil('Shift+Tab', card.getByTestId('approve'));
      person.check(presses <= 3, `three times Shift Tab to Approve, not ${presses}`);
      await input.fill('');
      await person.page.unroute('**/api/chat');
      await person.deny(card);
      await person.sees('delete_file', 'output-denied');
      await person.reads('that it was denied', DENIED);
    },
  },
  {
    name: 'deny with little room',
    mostPosts: 3,
    async walk(person) {
      await person.say(`mixed ${await person.someFile()}`);
      const deletion = await person.sees('delete_file', 'approval-requested');
      const transfer = await person.sees('transfer', 'approval-requested');
      const opened = await person.opensDenyForm(transfer);
      await person.shoot('deny form');
      await person.seesUncovered(opened, 'the button that denies');
      const screen = person.page.viewportSize();
      await person.page.setViewportSize({ ...screen, height: 480 });
      await person.seesUncovered(opened, 'the button that denies, above a keyboard,');
      await person.shoot('deny form above a keyboard');
      await person.page.setViewportSize(screen);
      await opened.click();
      await person.deny(deletion);
      await person.sees('transfer', 'output-denied');
      await person.sees('delete_file', 'output-denied');
      await person.reads('what happened', DENIED);
    },
  },
  {
    name: 'a tool that the page does not know',
    mostPosts: 2,
    async walk(person) {
      const bodies = [];
      await person.page.route('**/api/chat', async route => {
        bodies.push(route.request().postDataJSON());
        const body =
          bodies.length === 1
            ? UNKNOWN_TOOL
            : STREAM([
                { type: 'text-start', id: 't' },
                { type: 'text-delta', id: 't', delta: 'It ran.' },
                { type: 'text-end', id: 't' },
              ]);
        const headers = { 'x-vercel-ai-ui-message-stream': 'v1' };
        await route.fulfill({ contentType: 'text/event-stream', headers, body });
      });
      await person.say('use the unknown tool');
      const card = await person.sees('mcp_send', 'approval-requested');
      const text = await card.textContent();
      for (const shown of [
        'Send\\u{202e} mail',
        'Sends\\u{34f} a mail',
        'line 1"',
        'line 60"',
        '\\u{e0100}\\u{fe00}end',
      ])
        person.check(text.includes(shown), `the card shows ${shown}`);
      person.check(!INVISIBLE.test(text), 'the card holds no invisible characters');
      person.check(
        !(await person.page.locator('a[href^="javascript:" i]').count()),
        'no link runs a script',
      );
      const approve = card.getByTestId('approve');
      const input = card.locator('.input');
      const scroll = part =>
        input.evaluate((box, part) => box.scrollTo(0, box.scrollHeight * part), part);
      await person.shoot('unread');
      await person.seesUncovered(card.getByTestId('deny'), 'the button that denies');
      person.check(await approve.isDisabled(), 'Approve waits for the input to be read');
      await scroll(0.4);
      await person.isThrough();
      person.check(await approve.isDisabled(), 'Approve waits for the end of the input');
      await scroll(1);
      await until('Approve can be pressed', () => approve.isEnabled());
      await person.shoot('read');
      await person.changesEachField(card);
      await approve.click();
      await person.reads('what happened', /It ran/);
      const { message, messages } = bodies[1] ?? {};
      const posted = message ?? messages?.at(-1);
      const answered = posted?.parts.find(part => part.toolCallId === 'c1');
      person.check(answered?.approval?.approved === true, 'the approval was sent');
      const changed = { lines: ['one'], last: 'a\u{e0100}\ufe00end', copies: 3, urgent: true, subject: 'Hello' };
      const sent = JSON.stringify(bodies[1]?.approvalInputs?.a1);
      person.check(sent === JSON.stringify(changed), `the changed input was sent, not ${sent}`);
      await person.page.unroute('**/api/chat');
      // The server has none of these messages. The page may still be reading the world.
      person.mayAbort = 'GET';
      await person.page.goto(new URL('/', person.page.url()).href);
    },
  },
  {
    name: 'location shared',
    mostPosts: 2,
    async walk(person) {
      await person.say('location');
      const card = await person.sees('get_location', 'input-available');
      await person.shoot('waiting');
      await card.getByTestId('share').click();
      await person.sees('get_location', 'output-available');
      await person.reads('what happened');
    },
  },
  {
    name: 'location refused',
    mostPosts: 2,
    async walk(person) {
      await person.say('location');
      await (await person.sees('get_location', 'input-available')).getByTestId('refuse').click();
      await person.sees('get_location', 'output-error');
      await person.reads('what happened');
    },
  },
  {
    name: 'a question that is left for a new chat',
    mostPosts: 2,
    async walk(person) {
      const file = await person.someFile();
      await person.say(`delete ${file}`);
      await person.sees('delete_file', 'approval-requested');
      const { page } = person;
      person.mayAbort = 'GET';
      await page.getByTestId('new-chat').click();
      await until('the new chat is shown', async () => !(await page.getByTestId('message-user').count()));
      if (person.isOnDemo) {
        await until('the page says so', async () =>
          /waits in another chat/.test((await page.getByRole('status').allInnerTexts()).join()),
        );
        await page.getByTestId('chats').click();
      }
      const link = page.locator(`a[href="/?chat=${person.chatId}"]`);
      await until('the list says so', async () => /waits for you/i.test(await link.innerText()));
      await person.shoot('list of chats');
      await link.click();
      await (await person.sees('delete_file', 'approval-requested')).getByTestId('approve').click();
      await person.sees('delete_file', 'output-available');
      await person.reads('what happened');
      person.check(!(await person.world()).files.includes(file), `${file} is gone`);
    },
  },
  {
    name: 'fail',
    mostPosts: 2,
    async walk(person) {
      person.mayAbort = 'POST'; // useChat reads no further than an error
      await person.say('fail');
      await until('an error is shown', () => person.isShown('error'));
      person.check(
        (await person.page.getByTestId('error').innerText()).trim(),
        'the error says something',
      );
      if (person.isOnDemo) {
        const error = await person.page.getByTestId('error').innerText();
        person.check(/Try again, or write another message/.test(error), 'the error says what to do');
        const marks = await person.page.getByTestId('failed').count();
        person.check(!marks, 'the failure is said once');
      }
      await person.shoot('error');
      if (person.isOnDemo && person.lane.endsWith('desktop')) {
        await person.page.reload();
        const mark = await person.page.getByTestId('failed').innerText();
        person.check(/failed. Ask again, or write/.test(mark), 'the answer says what to do also after a reload');
      }
      await person.say('Hello again');
      await person.reads('an answer');
      person.check(!(await person.isShown('error')), 'the error goes away with the next answer');
    },
  },
  {
    name: 'stop',
    mostPosts: 1,
    async walk(person) {
      const gate = new Gate(args.gates, `stop-${person.lane}`);
      await person.say(`until ${gate.name}`);
      await until('text streams in', async () => (await person.prose()).length > 20);
      await person.shoot('streaming');
      person.mayAbort = 'POST';
      await person.page.getByTestId('stop').click();
      await until('the page is idle', () => person.isIdle());
      await until('the answer is marked as stopped', () => person.isShown('stopped'));
      const kept = await person.prose();
      person.check(kept, 'what was written stays');
      const { request } = person.page.context();
      const stream = new URL(`/api/chat/${person.chatId}/stream`, args.demo).href;
      await until('the server has stopped too', async () => (await request.get(stream)).status() === 204);
      gate.open();
      await person.isThrough();
      person.check((await person.prose()) === kept, 'nothing is written after the stop');
    },
  },
  {
    name: 'text after a stop',
    mostPosts: 1,
    async walk(person) {
      await person.say('Are you still there?');
      await person.reads('an answer');
      const marks = await person.page.getByTestId('stopped').count();
      person.check(marks === 1, `one answer is marked as stopped, not ${marks}`);
    },
  },
];

const DENIED = new RegExp(`${REASON}|den(y|ied)|declin|refus|not delet`, 'i');

/** Characters that a reader cannot see, or that change the appearance of others. */
const INVISIBLE = /[\p{Cf}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}]/u;

/** A response of one step. */
const STREAM = chunks =>
  [
    { type: 'start', messageId: 'm1' },
    { type: 'start-step' },
    ...chunks,
    { type: 'finish-step' },
    { type: 'finish' },
  ]
    .map(chunk => `data: ${JSON.stringify(chunk)}\n\n`)
    .join('') + 'data: [DONE]\n\n';

/** A call of a tool whose server hides characters, and a source that the crate would not send. */
const UNKNOWN_TOOL = STREAM([
  { type: 'source-url', sourceId: 's', url: 'javascript:alert(1)', title: 'Source' },
  {
    type: 'tool-input-available',
    toolCallId: 'c1',
    toolName: 'mcp_send',
    dynamic: true,
    title: 'Send\u202e mail',
    input: {
      lines: Array.from({ length: 60 }, (_, line) => `line ${line + 1}`),
      last: 'a\u{e0100}\ufe00end',
      copies: 2,
      urgent: false,
      subject: 'Hello',
    },
  },
  {
    type: 'data-approval',
    id: 'c1',
    data: {
      state: 'pending',
      description: 'Sends\u034f a mail',
      requestedAt: 1,
      expiresAt: 4102444800000,
      hidesCharacters: true,
      editable: ['lines', 'copies', 'urgent', 'subject', 'note'],
    },
  },
  { type: 'tool-approval-request', toolCallId: 'c1', approvalId: 'a1' },
]);

/** The distance of Approve to the lower right corner of its card. */
const cornerOf = card =>
  card.evaluate(card => {
    const [outer, inner] = [card, card.querySelector('[data-testid="approve"]')].map(node => node.getBoundingClientRect());
    return [outer.right - inner.right, outer.bottom - inner.bottom].map(Math.round).join();
  });

/** What is too small for a finger. */
const smallTargets = page =>
  page.locator('button, a, summary, input, textarea').evaluateAll(targets =>
    targets.flatMap(control => {
      const target = control.type === 'checkbox' ? control.labels[0] : control;
      const { width, height } = target.getBoundingClientRect();
      if (!target.checkVisibility() || Math.min(width, height) >= 44) return [];
      return [`less than 44 pixels: ${width} × ${height}: ${target.outerHTML}`];
    }),
  );

/** A user of one page. Records everything that must not happen. */
class Person {
  found = [];
  posts = 0;
  /** The method of the requests that the page may end early. */
  mayAbort = null;
  /** Whether the server may answer with status 400. */
  mayBeRefused = false;
  #assistantMessages = 0;
  #proseBefore = '';

  constructor(page, lane, shoot) {
    this.page = page;
    this.lane = lane;
    this.shoot = shoot;
    page.on('console', message => {
      const isRefusal = this.mayBeRefused && /status of 400/.test(message.text());
      if (['error', 'warning'].includes(message.type()) && !isRefusal)
        this.found.push(`console: ${message.text()}`);
    });
    page.on('pageerror', error => this.found.push(`uncaught: ${error.message}`));
    page.on('request', request => {
      if (request.method() !== 'POST') return;
      this.posts += 1;
      this.chatId = request.postDataJSON().id;
    });
    page.on('requestfailed', request => {
      const why = request.failure().errorText;
      // Another address ends the request that reads events, Stop one that posts, and an act of the user one that reads the chat.
      const isOfPage = request.method() === 'GET' && /\/api\/chat(\?events|\/[^/]+)$/.test(request.url());
      const isEnded = isOfPage || request.method() === this.mayAbort;
      if (!isEnded || why !== 'net::ERR_ABORTED') this.found.push(`request failed: ${request.method()} ${request.url()}: ${why}`);
    });
    page.on('response', response => {
      const isRefused = this.mayBeRefused && response.status() === 400;
      if (response.status() >= 400 && !isRefused)
        this.found.push(`status ${response.status()}: ${response.url()}`);
    });
  }

  /** Whether the page is that of the demo, and not the Next.js one. */
  get isOnDemo() {
    return new URL(this.page.url()).origin === new URL(args.demo).origin;
  }

  world() {
    return worldOf(this.page.context(), args.demo);
  }

  async someFile() {
    return (await this.world()).files[0];
  }

  /** Waits until the page has nothing left to do: what has happened is shown, and what follows from it is requested. */
  async isThrough() {
    for (let times = 0; times < 3; times += 1) {
      await this.page.evaluate(
        () => new Promise(done => requestAnimationFrame(() => requestIdleCallback(() => setTimeout(done)))),
      );
    }
  }

  check(holds, what) {
    if (!holds) this.found.push(`expected: ${what}`);
  }

  async say(text) {
    const assistant = this.page.getByTestId('message-assistant');
    const user = this.page.getByTestId('message-user');
    this.#assistantMessages = await assistant.count();
    this.#proseBefore = '';
    const said = await user.count();
    await this.page.getByTestId('input').fill(text);
    await this.page.getByTestId('send').click();
    await until('the message is shown', async () => (await user.count()) === said + 1);
  }

  /** Waits for text that was not there when the person last acted, in this turn's one message. */
  async reads(what, pattern = /\S/) {
    await until(`the page is idle and tells ${what}`, async () => {
      const prose = await this.prose();
      return (await this.isIdle()) && prose !== this.#proseBefore && pattern.test(prose);
    });
    const answers =
      (await this.page.getByTestId('message-assistant').count()) - this.#assistantMessages;
    this.check(answers === 1, `one assistant message, not ${answers}`);
  }

  /** Waits until a tool card of this turn has a state, and if it asks, until the page is idle. */
  async sees(tool, state) {
    const card = this.#answer().getByTestId(`tool-${tool}`);
    await until(`${tool} is ${state}`, async () => {
      return (await card.count()) === 1 && (await card.getAttribute('data-state')) === state;
    });
    if (!state.startsWith('output-')) {
      await until('the page is idle', () => this.isIdle());
      this.#proseBefore = await this.prose();
    }
    return card;
  }

  /** The card of a tool in the last message, also after newer messages. */
  async staysAt(tool) {
    const all = this.page.getByTestId('message-assistant');
    return all.nth((await all.count()) - 1).getByTestId(`tool-${tool}`);
  }

  /** A card shows the state of its approval that the server sent. */
  async seesApproval(card, state, text) {
    await until(`the approval is ${state}`, async () => {
      return (await card.getAttribute('data-approval')) === state;
    });
    this.check(text.test(await card.innerText()), `the card says ${text}`);
  }

  /** Another page of the same user approves all calls that wait in this chat. */
  async approvesElsewhere() {
    const cookies = await this.page.context().cookies(this.page.url());
    const headers = {
      'content-type': 'application/json',
      cookie: cookies.map(({ name, value }) => `${name}=${value}`).join('; '),
    };
    const url = new URL('/api/approvals', args.demo);
    const { approvals } = await (await fetch(url, { headers })).json();
    const own = approvals.filter(({ chatId }) => chatId === this.chatId);
    const decisions = own.map(({ approvalId }) => ({ approvalId, approved: true }));
    const body = JSON.stringify({ decisions });
    const { status } = await fetch(url, { method: 'POST', headers, body });
    this.check(own.length === 1 && status === 200, `one approval elsewhere, status ${status}`);
  }

  /** The focus moves to a new question, without a button that a key could press by mistake. */
  async seesFocusIn(card) {
    await until('the question has the focus', () =>
      card.evaluate(card => card.contains(document.activeElement)),
    );
    const tag = await this.page.evaluate(() => document.activeElement.tagName);
    this.check(tag !== 'BUTTON', 'no button has the focus');
  }

  /** How often a key is pressed until this has the focus. */
  async pressUntil(key, target) {
    for (let presses = 1; presses <= 20; presses++) {
      await this.page.keyboard.press(key);
      if (await target.evaluate(target => target === document.activeElement)) return presses;
    }
    throw new Error(`${key} does not lead there`);
  }

  async seesUncovered(target, what) {
    // A page scrolls after it has shown a card.
    const isOnTop = target => {
      const { left, right, top, bottom } = target.getBoundingClientRect();
      const x = (left + right) / 2;
      return [top + 2, bottom - 2].every(y => target.contains(document.elementFromPoint(x, y)));
    };
    await until(`${what} is in sight`, () => target.evaluate(isOnTop));
  }

  /** Opens the form, and returns the button that denies. */
  async opensDenyForm(card) {
    if (!(await card.getByTestId('deny-reason').isVisible()))
      await card.getByTestId('deny').click();
    const reason = card.getByTestId('deny-reason');
    await reason.focus();
    const confirm = card.getByTestId('deny-confirm');
    return (await confirm.isVisible()) ? confirm : card.getByTestId('deny');
  }

  /** Approves a transfer of another amount, which is the part of the input that the page offers for a change. */
  async approvesChanged(card, amount) {
    const field = card.getByLabel('amount', { exact: true });
    const toggle = card.getByTestId('change');
    const before = 4000;
    // On the demo, after a refusal the field is open, with the refused amount.
    if (!(await field.isVisible())) {
      await toggle.click();
      await field.fill('1');
      await toggle.click();
      this.check((await card.innerText()).includes(`Send ${before} to`), 'Back shows the input of the model');
      await toggle.click();
      this.check((await field.inputValue()) === `${before}`, 'Back drops the change');
    }
    this.check(!(await card.getByLabel('to', { exact: true }).count()), 'the receiver cannot be changed');
    await field.fill(`${amount}`);
    const text = await card.innerText();
    this.check(text.includes(`amount ${amount} instead of ${before}?`), 'the question is about the new amount');
    // As a name with its value, or as JSON.
    this.check(new RegExp(`amount(\\s+|": )${amount}\n`).test(text), 'the card shows the changed input');
    this.check(!text.includes('Send'), 'the card does not say what the model has asked');
    await this.seesFormUncovered(card, field, toggle);
    await this.shoot(`changed to ${amount}`);
    await card.getByTestId('approve').click();
  }

  /** Changes fields of several kinds, some of them to what cannot be read at first. */
  async changesEachField(card) {
    const problem = async () => (await card.getByRole('alert').allInnerTexts()).join();
    await card.getByTestId('change').click();
    for (const [name, wrong, right] of [
      ['copies', 'many', '3'],
      ['lines (JSON)', '[', '["one"]'],
    ]) {
      await card.getByLabel(name, { exact: true }).fill(wrong);
      const text = await problem();
      this.check(text.startsWith(name.split(' ')[0]), `the card says that ${name} is wrong, not ${text}`);
      await card.getByTestId('approve').click();
      await card.getByLabel(name, { exact: true }).fill(right);
    }
    await card.getByLabel('urgent', { exact: true }).check();
    this.check((await problem()) === '', 'nothing is wrong any more');
    const asked = await card.locator('.ask p, .question p').first().innerText();
    const changes = 'with lines changed and copies 3 instead of 2 and urgent true instead of false?';
    this.check(asked.includes(changes), `the question is about each change: ${asked}`);
    this.check(!(await card.getByLabel('last', { exact: true }).count()), 'what is not editable has no field');
    await this.shoot('fields');
  }

  /** The editor and its buttons are in sight, also above a keyboard. */
  async seesFormUncovered(card, ...parts) {
    const screen = this.page.viewportSize();
    for (const height of [480, screen.height]) {
      await this.page.setViewportSize({ ...screen, height });
      for (const part of [...parts, card.getByTestId('deny'), card.getByTestId('approve')])
        await this.seesUncovered(part, 'each part of the editor');
    }
  }

  async readsError(pattern) {
    await until(`an error ${pattern} is shown`, async () => {
      const [error] = await this.page.getByTestId('error').allInnerTexts();
      return pattern.test(error ?? '') && (await this.isIdle());
    });
  }

  /** A page asks for the reason beside the Deny button, or after it, with a button to confirm. */
  async deny(card) {
    const reason = card.getByTestId('deny-reason');
    const confirm = card.getByTestId('deny-confirm');
    if (await reason.isVisible()) await reason.fill(REASON);
    await card.getByTestId('deny').click();
    await until('the denial is taken', async () => {
      return (
        (await confirm.isVisible()) ||
        (await card.getAttribute('data-state')) !== 'approval-requested'
      );
    });
    if (await confirm.isVisible()) {
      await reason.fill(REASON);
      await confirm.click();
    }
  }

  isShown(testId) {
    return this.page.getByTestId(testId).isVisible();
  }

  isIdle() {
    return this.page
      .getByTestId('stop')
      .evaluateAll(buttons =>
        buttons.every(button => button.disabled || !button.checkVisibility()),
      );
  }

  /** The text that the assistant wrote in this turn, without the texts of its tool cards. */
  async prose() {
    if ((await this.page.getByTestId('message-assistant').count()) <= this.#assistantMessages)
      return '';
    return this.#answer().evaluate(message => {
      const copy = message.cloneNode(true);
      for (const card of copy.querySelectorAll('[data-testid^="tool-"]')) card.remove();
      return copy.textContent.trim();
    });
  }

  #answer() {
    return this.page.getByTestId('message-assistant').nth(this.#assistantMessages);
  }
}

/** Walks one path. Fails with everything that was wrong on it. */
async function walk(person, path) {
  person.found = [];
  person.posts = 0;
  person.mayAbort = null;
  person.mayBeRefused = false;
  try {
    await path.walk(person);
    await person.shoot('end');
    await person.isThrough(); // with a request that should not be
    const tooWide = () =>
      document.documentElement.scrollWidth > document.documentElement.clientWidth;
    person.check(!(await person.page.evaluate(tooWide)), 'nothing is wider than the screen');
  } catch (error) {
    // The first line is the error. The others list the attempts.
    person.found.push(error.message.split('\n', 1)[0]);
  }
  person.check(
    person.posts <= path.mostPosts,
    `at most ${path.mostPosts} posts, not ${person.posts}`,
  );
  if (person.found.length > 0) throw new Error(person.found.join('\n'));
}

const browser = await launch();
// A path goes on in the chat of the one before it, so all are walked.
await onBothPages('paths', { ...args, only: '' }, async ({ url, screen, runCase, shoot }) => {
  const context = await browser.newContext({
    ...SCREENS[screen],
    permissions: ['geolocation'],
    geolocation: { latitude: 48.8566, longitude: 2.3522 },
  });
  const page = await context.newPage();
  let name;
  const person = new Person(page, `${new URL(url).port}-${screen}`, async moment => {
    person.found.push(...(await barriersOf(page)).map(barrier => `${moment}: ${barrier}`));
    if (screen === 'phone') person.found.push(...(await smallTargets(page)));
    await shoot(page, `${name} ${moment}`);
  });
  await page.goto(url);
  for (const path of PATHS) {
    name = path.name;
    // A new chat, so that one failure does not make the next.
    if (!(await runCase(name, () => walk(person, path)))) await page.goto(url);
  }
  await context.close();
});
await browser.close();
