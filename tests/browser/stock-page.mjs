// Approvals on a page with `useChat` of v6 and of v7, stock and with `packages/client`, and on its pages for Vue,
// Svelte and Angular: a changed input, a second user who decides, the progress of an approved tool, a tool of the page, and an
// agent inside a call. Each case compares what the page shows with what the tools have done.
//
//   npm ci
//   [ONLY=TEXT] node stock-page.mjs URL [--screenshots DIR]
//
// `crates/chat/tests/client/stock_page.rs` has the server.

import assert from 'node:assert/strict';
import { barriersOf, until, WCAG } from './chromium.mjs';
import { Tab } from './tab.mjs';
import { browserOf, NUMBERS, report, restart, runCases } from './visit.mjs';

const inputOf = async call => JSON.parse(await call.getByTestId('call-input').innerText());
const stateOf = call => call.getAttribute('data-state');

/** The inputs of the calls that this page has executed since it was loaded. */
const executed = ({ page }) => page.evaluate(() => window.executed);

/** The page executes a tool of its own. `interrupt` happens between question and answer. */
const locate = interrupt => async visit => {
  const { page, shoot } = visit;
  await visit.asks('Where am I?');
  await interrupt(visit);
  await visit.isAsked(1);
  const call = visit.call('locate');
  assert.equal(await stateOf(call), 'approval-requested');
  assert.deepEqual(await inputOf(call), { precise: true });
  assert.deepEqual(await executed(visit), []);
  await shoot('asked');
  await visit.approve('locate');
  const isShown = async () => {
    await visit.isAnswered(/I read: Bern$/);
    assert.equal(await stateOf(call), 'output-available');
    assert.equal((await visit.tab.messages()).length, 2);
    assert.equal(await page.getByTestId('approve').count(), 0);
    assert.equal(visit.posts, 3, 'a question, an answer, an output');
  };
  await isShown();
  assert.deepEqual(await executed(visit), [{ precise: true }]);
  await shoot('answered');
  await visit.reload();
  await isShown();
  assert.deepEqual(await executed(visit), []);
};

/** A janitor inside the call asks for two deletions. `interrupt` happens between question and answer. */
const tidyUp = interrupt => async visit => {
  const { page, tab, shoot } = visit;
  await visit.asks('Tidy up', 2);
  await shoot('asked');
  const isAsked = async () => {
    assert.equal(await stateOf(visit.call('janitor')), 'input-available');
    for (const [place, path] of ['a.log', 'b.log'].entries()) {
      const call = visit.call('janitor__delete', place);
      assert.equal(await stateOf(call), 'approval-requested');
      assert.deepEqual(await inputOf(call), { path });
      assert.match(await call.innerText(), /asked by janitor/);
    }
    assert.deepEqual(await visit.effects(), []);
  };
  await isAsked();
  await interrupt(visit);
  await visit.isAsked(2);
  await isAsked();

  await visit.approve('janitor__delete', 0);
  // A stock page sends both answers together.
  assert.equal(visit.posts, 1 + visit.isStored);
  const second = visit.call('janitor__delete', 1);
  await second.getByTestId('deny-reason').fill('keep b');
  await second.getByTestId('deny').click();
  // The chat's model repeats the answer of the janitor.
  const answer = /I read: I read: deleted a\.log, This tool call was denied\..* Reason: keep b$/;
  const isShown = async () => {
    await visit.isAnswered(answer);
    assert.equal(await stateOf(visit.call('janitor')), 'output-available');
    assert.equal(await stateOf(visit.call('janitor__delete', 0)), 'output-available');
    assert.equal(await stateOf(second), 'output-denied');
    assert.match(await second.innerText(), /keep b/);
    assert.equal((await tab.messages()).length, 2);
    assert.equal(await page.getByTestId('approve').count(), 0);
    assert.equal(visit.posts, 2 + visit.isStored);
    assert.deepEqual(await visit.effects(), ['deleted a.log']);
  };
  await isShown();
  await shoot('answered');
  await visit.reload();
  await isShown();
};

const CASES = {
  async 'a tab of the other version reads an answer while it is written'(visit) {
    const other = visit.pageName === 'v6' ? 'v7' : 'v6';
    await visit.tab.write(`Compact and count in ${visit.id}`);
    const shown = async tab => (await tab.text()).replace('scripted.compaction', '');
    await until('some numbers are shown', async () => /^1 2 3/.test(await shown(visit.tab)));
    const there = await Tab.open(visit.context, `${visit.baseURL}/page/${other}?chat=${visit.id}`);
    await there.page.getByTestId('resume').click();
    await until('the answer goes on', async () => /^1 2 3/.test(await shown(there)) && !(await there.isIdle()));
    await visit.openGate();
    for (const tab of [visit.tab, there]) {
      await until('the answer is shown', async () => (await shown(tab)) === NUMBERS && tab.isIdle());
      assert.equal((await tab.messages()).length, 2);
      assert.equal(await tab.page.getByTestId('error').count(), 0);
    }
    // Only `ai@7` reads this part of the stream.
    const kinds = tab => tab.page.getByTestId('custom').allInnerTexts();
    const [v6, v7] = other === 'v7' ? [visit.tab, there] : [there, visit.tab];
    assert.deepEqual(await kinds(v7), ['scripted.compaction']);
    if (v6 === visit.tab) assert.deepEqual(await kinds(v6), []);
    assert.deepEqual(there.complaints, []);
    await visit.shoot('read by both versions');
  },

  async 'a changed amount is the one that is sent and shown'(visit) {
    const { shoot } = visit;
    await visit.asks('Pay the bakery');
    const call = visit.call('transfer');
    await call.getByTestId('amount').fill('100');
    await shoot('changed');
    assert.deepEqual(await visit.effects(), []);
    await visit.approve('transfer');
    const isShown = async () => {
      await visit.isAnswered(/I read: .*sent 100 to bakery$/s);
      assert.deepEqual(await inputOf(call), { to: 'bakery', amount: 100 });
      const [, before] = (await call.innerText()).match(/It was: ({.*})/);
      assert.deepEqual(JSON.parse(before), { to: 'bakery', amount: 900 });
      assert.deepEqual(await visit.effects(), ['sent 100 to bakery']);
    };
    await isShown();
    await shoot('sent');
    await visit.reload();
    await isShown();
  },

  async 'a second user finds the request, approves it, and the first page shows the result'(visit) {
    const { page, shoot } = visit;
    await visit.asks('Order a desk');
    const call = visit.call('order');
    assert(await call.getByTestId('approve').isDisabled(), 'somebody else has to approve');

    const list = async request => {
      const { approvals } = await (await request.get('/api/approvals?tool=order')).json();
      return approvals.filter(({ chatId }) => chatId === visit.id);
    };
    const [buyer, stranger] = [await browserOf('acme.buyer'), await browserOf('other.buyer')];
    assert.deepEqual(await list(stranger.request), [], 'a buyer of another tenant');
    const [asked] = await list(buyer.request);
    assert.deepEqual([asked.toolName, asked.requestedBy, asked.input], ['order', `acme/${visit.user}`, { item: 'desk' }]);
    const data = { decisions: [{ approvalId: asked.approvalId, approved: true }] };
    const decide = async user => {
      const response = await user.request.post('/api/approvals', { data });
      return (await response.json()).decisions[0].accepted;
    };
    assert.equal(await decide(visit.context), false);
    assert.equal(await decide(stranger), false);
    assert.equal(await decide(buyer), true);
    assert.deepEqual(await list(buyer.request), []);
    for (const context of [buyer, stranger]) await context.close();

    // The tool runs now, and the page reads its response.
    assert.equal(await stateOf(call), 'approval-requested');
    if (!visit.isStored) await page.getByTestId('resume').click();
    await page.locator('[data-testid="tool-order"][data-approval="approved"]').waitFor();
    assert.equal(await call.getByTestId('deny').count(), 0, 'the question is closed');
    assert.deepEqual(await visit.effects(), []);
    await shoot('approved by another user');
    await visit.openGate();
    const isShown = async () => {
      await visit.isAnswered(/I read: ordered a desk$/);
      assert.equal(await stateOf(call), 'output-available');
      assert.match(await call.innerText(), /decided by acme\/buyer/);
      assert.equal((await visit.tab.messages()).length, 2);
      assert.deepEqual(await visit.effects(), ['ordered a desk']);
    };
    await isShown();
    await shoot('ordered');
    await visit.reload();
    await isShown();
  },

  async 'a question that a newer message has closed has no buttons, and one that stays open has'(visit) {
    await visit.asks('Pay the bakery');
    await visit.tab.write('Order a desk');
    await visit.isAsked(1);
    const [transfer, order] = [visit.call('transfer'), visit.call('order')];
    assert.equal(await transfer.getByTestId('deny').count(), 0);
    await visit.tab.write('Pay the bakery');
    await visit.isAsked(2);
    await order.getByTestId('deny-reason').fill('too dear');
    await order.getByTestId('deny').click();
    await visit.page.locator('[data-testid="tool-order"][data-approval="denied"]').waitFor();
    assert.equal(await stateOf(order), 'output-denied');
    assert.match(await order.innerText(), /too dear/);
    await visit.shoot('an earlier question');
    assert.equal(await transfer.getByTestId('deny').count(), 0);
    assert.equal(await visit.call('transfer', 1).getByTestId('deny').count(), 1);
    assert.deepEqual(await visit.effects(), []);
  },

  async 'an approved tool shows its progress while it runs'(visit) {
    const { page, shoot } = visit;
    await visit.asks('Build');
    assert.deepEqual(await visit.effects(), []);
    await visit.approve('build');
    const isRunning = async page => {
      await page.getByTestId('output').getByText('compiling').waitFor();
      assert.deepEqual(await page.getByTestId('progress').allInnerTexts(), ['1 of 2 files']);
      assert.deepEqual(await visit.effects(), ['began site']);
    };
    await page.getByTestId('progress').waitFor();
    await isRunning(page);
    await shoot('running');
    // A page that is opened meanwhile shows the data, and its stream the preliminary output as well.
    const { page: second, complaints } = await visit.openTab();
    await second.getByTestId('progress').getByText('1 of 2 files').waitFor();
    if (!visit.isStored) await second.getByTestId('resume').click();
    await isRunning(second);
    await second.close();
    assert.deepEqual(complaints, []);
    await visit.openGate();
    const isShown = async () => {
      await visit.isAnswered(/I read: built site$/);
      assert.deepEqual(await page.getByTestId('progress').allInnerTexts(), ['2 of 2 files']);
      assert.equal(await page.getByTestId('output').innerText(), '"built site"');
      assert.deepEqual(await visit.effects(), ['began site', 'built site']);
    };
    await isShown();
    await shoot('built');
    await visit.reload();
    await isShown();
  },

  'a tool of the page runs once it is approved': locate(async () => {}),
  'a tool of the page runs once it is approved after a reload': locate(visit => visit.reload()),
  'a tool of the page runs once it is approved with another server': locate(restart),

  async 'a tool of the page that is approved while the page is closed runs when the person says so'(visit) {
    await visit.asks('Where am I?');
    await visit.page.goto('about:blank');
    const { request } = visit.context;
    const { approvals } = await (await request.get('/api/approvals?tool=locate')).json();
    const [{ approvalId }] = approvals.filter(({ chatId }) => chatId === visit.id);
    const data = { decisions: [{ approvalId, approved: true }] };
    const { decisions } = await (await request.post('/api/approvals', { data })).json();
    assert.equal(decisions[0].accepted, true);
    // A page that comes back earlier reads the stream of the approved call, and executes it at once.
    await until('the approved call waits for the page', async () => {
      const { messages, ended } = await (await request.get(`/api/chat/${visit.id}`)).json();
      return ended && messages.at(-1).parts.some(({ state }) => state === 'input-available');
    });
    await visit.page.goBack();
    const run = visit.page.getByTestId('run');
    await run.waitFor();
    assert.equal(await stateOf(visit.call('locate')), 'input-available');
    assert.deepEqual(await executed(visit), []);
    await run.click();
    await visit.isAnswered(/I read: Bern$/);
    assert.deepEqual(await executed(visit), [{ precise: true }]);
  },

  async 'a tool of the page runs beside a call that the server has refused'(visit) {
    await visit.asks('Where is the gold?');
    // A denial would keep the page from sending the output.
    assert.equal(await stateOf(visit.call('vault')), 'output-error');
    await visit.shoot('refused');
    await visit.approve('locate');
    await visit.isAnswered(/I read: .*not permitted.*, Bern$/s);
    assert.deepEqual(await executed(visit), [{ precise: true }]);
    assert.equal(visit.posts, 3, 'a question, an answer, an output');
  },

  async 'a tool of the page runs beside a call that was denied elsewhere'(visit) {
    await visit.asks('Pay where I am', 2);
    const { request } = visit.context;
    const { approvals } = await (await request.get('/api/approvals?tool=transfer')).json();
    const [{ approvalId }] = approvals.filter(({ chatId }) => chatId === visit.id);
    const data = { decisions: [{ approvalId, approved: false }] };
    const { decisions } = await (await request.post('/api/approvals', { data })).json();
    assert.equal(decisions[0].accepted, true);
    await visit.reload();
    await visit.isAsked(1);
    assert.equal(await stateOf(visit.call('transfer')), 'output-denied');
    await visit.shoot('denied elsewhere');
    await visit.approve('locate');
    await visit.isAnswered(/I read: This tool call was denied.*, Bern$/s);
    assert.deepEqual(await executed(visit), [{ precise: true }]);
    assert.deepEqual(await visit.effects(), []);
    assert.equal(visit.posts, 3, 'a question, an answer, an output');
  },

  async 'a tool of the page that is denied does not run'(visit) {
    await visit.asks('Where am I?');
    const call = visit.call('locate');
    await call.getByTestId('deny-reason').fill('it is private');
    await call.getByTestId('deny').click();
    const isShown = async () => {
      await visit.isAnswered(/I read: This tool call was denied\..* Reason: it is private$/);
      assert.equal(await stateOf(call), 'output-denied');
      assert.deepEqual(await executed(visit), []);
    };
    await isShown();
    await visit.reload();
    await isShown();
  },

  'an agent inside a call asks, and goes on with the answers': tidyUp(async () => {}),
  'an agent inside a call goes on after a reload': tidyUp(visit => visit.reload()),
  'an agent inside a call goes on with another server': tidyUp(restart),
  'an agent inside a call goes on with another server, after a reload': tidyUp(async visit => {
    await restart();
    await visit.reload();
  }),
};

/** The page that `docs/front-end.md` begins with: its buttons have no test ids. */
async function documented(version) {
  const context = await browserOf(`acme.documented-${version}`);
  const complaints = [];
  const open = async () => {
    const page = await context.newPage();
    page.on('pageerror', error => complaints.push(error.message));
    page.on('console', message => {
      const isComplaint = ['error', 'warning'].includes(message.type());
      // There is no chat yet.
      if (isComplaint && !/status of 404/.test(message.text())) complaints.push(message.text());
    });
    await page.goto(`/page/documented-${version}`);
    return page;
  };
  const write = async (page, text) => {
    await page.locator('input').fill(text);
    await page.keyboard.press('Enter');
  };
  const first = await open();
  await write(first, 'Pay the bakery');
  const approve = page => page.getByText('Approve');
  await approve(first).waitFor();
  await first.reload();
  await approve(first).waitFor();
  const second = await open();
  await approve(second).waitFor();
  assert.deepEqual(await barriersOf(second, WCAG), []);
  await approve(second).click();
  await second.getByText('sent 900 to bakery').waitFor();
  assert.equal(await approve(second).count(), 0);
  await first.reload();
  await first.getByText('sent 900 to bakery').waitFor();
  assert.equal(await first.getByText('sent 900 to bakery').count(), 1);

  // A newer message closes a question, and the page shows no buttons for it.
  await write(first, 'Pay the bakery');
  await approve(first).waitFor();
  await write(first, 'Order a desk');
  await first.getByText('order {').waitFor();
  assert.equal(await approve(first).count(), 1);
  // Nothing of the chat is lost, and an error is shown.
  await first.reload();
  await first.getByText('order {').waitFor();
  assert.equal(await first.getByText('sent 900 to bakery').count(), 1);
  assert.equal(await first.getByText('Pay the bakery').count(), 2);
  await context.route('**/api/chat', route => route.fulfill({ status: 503, body: 'The chat is away.' }));
  await write(first, 'Build');
  await first.getByRole('alert').getByText('The chat is away.').waitFor();
  await context.close();
  assert.deepEqual(complaints.filter(text => !/status of 503/.test(text)), []);
}

/** The page of `docs/front-end.md` for an adapter: it keeps its messages in the browser, and posts all of them. */
async function adapter(version) {
  const context = await browserOf(`acme.adapter-${version}`);
  const page = await context.newPage();
  const errors = [];
  page.on('pageerror', error => errors.push(error.message));
  await page.goto(`/page/adapter-${version}`);
  await page.locator('input').fill('Pay the bakery');
  await page.keyboard.press('Enter');
  await page.getByText('Approve').waitFor();
  await page.reload();
  await page.getByText('Approve').click();
  await page.getByText('sent 900 to bakery').waitFor();
  await page.reload();
  await page.getByText('sent 900 to bakery').waitFor();
  assert.equal(await page.getByText('Approve').count(), 0);
  await context.close();
  assert.deepEqual(errors, []);
}

const STOCK = ['v6', 'v7'];
const STORED = ['stored-react-v6', 'stored-react-v7', 'stored-vue', 'stored-svelte', 'stored-angular'];
// The pages for Vue, Svelte and Angular have no tools, and only the stock pages say their version.
const isFor = (page, name) =>
  (!/vue|svelte|angular/.test(page) || !name.startsWith('a tool of the page')) &&
  (STOCK.includes(page) || !name.startsWith('a tab of the other version'));
const result = await runCases([...STOCK, ...STORED], CASES, isFor);
for (const [play, version] of [documented, adapter].flatMap(play => STOCK.map(version => [play, version]))) {
  result.ran += 1;
  await play(version).catch(error => {
    result.failed += 1;
    console.log(`FAILED ${version}: the ${play.name} page of docs/front-end.md: ${error.message}`);
  });
}
await report('stock page', result);
