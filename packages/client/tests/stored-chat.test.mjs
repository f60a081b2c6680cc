// What `StoredChat` does when requests fail, hang or overtake each other: with the AI SDK and a server over HTTP.
//
//   npm test

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chatRoute } from '../dist/next.js';
import { answer, assistant, gate, question, Server, shown, shows, soon, until, user } from './server.mjs';

const LATER = () => [503, 'Later.'];

/** Answers with 503 until the function that it returns is called. */
function away(server, ...routes) {
  for (const route of routes) server.routes[route] = LATER;
  return () => {
    for (const route of routes) delete server.routes[route];
  };
}

/** A page of a chat with these messages, once it shows them. */
async function opened(t, messages) {
  const server = await Server.start(t, messages);
  const page = server.open(t);
  await shows(page, server.texts);
  return { server, page };
}

/** A page of a chat that has no message yet. */
async function begun(t) {
  const server = await Server.start(t);
  return { server, page: server.open(t, { isNew: true }) };
}

/** A page that shows so many questions. */
async function asked(t, count) {
  const questions = Array.from({ length: count }, (_, at) => question(at + 1));
  const { server, page } = await opened(t, [user('u', 'pay'), assistant('a', ...questions)]);
  return { server, page };
}

/** The begin of an answer that asks. */
const ASKS = [
  { type: 'start', messageId: 'a' },
  { type: 'tool-input-available', toolCallId: 'call-1', toolName: 'pay', input: {} },
  { type: 'tool-approval-request', toolCallId: 'call-1', approvalId: 'approval-1' },
];

test('messages are sent in their order, if the first one fails', async t => {
  for (const [act, ...more] of [[page => page.retry()], [page => page.sendMessage({ text: 'three' }), 'three', 're three']]) {
    const { server, page } = await begun(t);
    const isBack = away(server, 'post');
    await Promise.all([page.sendMessage({ text: 'one' }), page.sendMessage({ text: 'two' })]);
    await shows(page, ['one', 'two']);
    assert.equal(page.error.message, 'Later.');
    assert.deepEqual(server.posted, ['one']);
    isBack();
    await act(page);
    await shows(page, ['one', 're one', 'two', 're two', ...more]);
    assert.equal(page.error, undefined);
  }
});

test('each request says the version of the page, also through a Route Handler', async t => {
  const server = await Server.start(t, [user('u', 'one')]);
  const page = server.open(t, { server: { version: '7.0.15' } });
  await shows(page, ['one']);
  await page.sendMessage({ text: 'two' });
  const { GET } = chatRoute({ server: server.url });
  // With a token: the handler asks for no cookie.
  const headers = { 'ai-sdk-version': '7.0.15', authorization: 'token', host: 'localhost' };
  const passedOn = await GET(new Request(`${server.url}/chat`, { headers }));
  assert.equal(passedOn.status, 200);
  await passedOn.body.cancel();
  assert(server.count('history') > 1 && server.count('post') === 1);
  for (const { route, version } of server.requests) assert.equal(version, '7.0.15', route);
});

test('a message that waits for another one is shown', async t => {
  const { server, page } = await begun(t);
  server.routes.post = () => {}; // it hangs
  void page.sendMessage({ text: 'one' });
  await until('it is posted', () => server.posts.length === 1);
  void page.sendMessage({ text: 'two' });
  await until('both are shown', () => shown(page).join() === 'one,two');
  assert.equal(page.status, 'submitted');
  delete server.routes.post;
  await page.stop();
  await until('the page says so', () => page.error?.message === 'Your last message has not arrived.');
  await page.retry();
  await shows(page, ['one', 're one', 'two', 're two']);
});

test('a message that the server refuses for good holds up no other one', async t => {
  const server = await Server.start(t);
  server.routes.post = ({ body }) => (body.message.parts[0].text === 'large' ? [413, 'Too large.'] : 'usual');
  const page = server.open(t, { isNew: true });
  await Promise.all([page.sendMessage({ text: 'large' }), page.sendMessage({ text: 'two' })]);
  await until('the other one is answered', () => server.texts.join() === 'two,re two');
  await until('the refused one is shown below', () => shown(page).join() === 'two,re two,large');
  await page.sendMessage({ text: 'small', messageId: page.messages.at(-1).id });
  await shows(page, ['two', 're two', 'small', 're small']);
});

test('a message that is changed before it has arrived is sent once, in its place', async t => {
  const { server, page } = await begun(t);
  const isBack = away(server, 'post');
  await Promise.all([page.sendMessage({ text: 'one' }), page.sendMessage({ text: 'two' })]);
  isBack();
  await page.sendMessage({ text: 'better', messageId: page.messages[0].id });
  await shows(page, ['better', 're better', 'two', 're two']);
  assert.deepEqual(server.posted, ['one', 'better', 'two']);
});

test('an edit that has not arrived is sent by Try again, and not with the next message', async t => {
  for (const isRetried of [true, false]) {
    const { server, page } = await opened(t, [user('u', 'old'), assistant('a', 're old')]);
    const isBack = away(server, 'post');
    await page.sendMessage({ text: 'new', messageId: 'u' });
    await shows(page, ['old', 're old']);
    assert.equal(page.error.message, 'Later.');
    isBack();
    if (isRetried) await page.retry();
    else await page.sendMessage({ text: 'next' });
    await shows(page, isRetried ? ['new', 're new'] : ['old', 're old', 'next', 're next']);
  }
});

test('an edit whose message another page has removed is sent as a message', async t => {
  const { server, page } = await opened(t, [user('u', 'old'), assistant('a', 're old')]);
  const isBack = away(server, 'post');
  await page.sendMessage({ text: 'new', messageId: 'u' });
  server.change([user('v', 'other'), assistant('b', 're other')]);
  await shows(page, ['other', 're other']);
  isBack();
  await page.retry();
  await shows(page, ['other', 're other', 'new', 're new']);
});

test('a regeneration that has not arrived is not missing once another answer is there', async t => {
  const { server, page } = await opened(t, [user('u', 'one'), assistant('a', 'first')]);
  server.routes.post = ({ response }) => void response.destroy(); // it arrives, and its response is lost
  await page.regenerate();
  assert.equal(page.error.constructor, TypeError);
  server.version += 1;
  server.tell();
  await shows(page, ['one', 'first']);
  assert(page.error); // the version says nothing
  server.change([user('u', 'one'), assistant('b', 'second')]);
  await shows(page, ['one', 'second']);
  assert.equal(page.error, undefined);
});

test('an approval is sent once, with the input of the first click', async t => {
  const { server, page } = await asked(t, 1);
  const [part] = page.messages[1].parts;
  void page.respond(part, { approved: true, input: { amount: 1 } });
  void page.respond(part, { approved: false });
  await until('it is posted', () => server.posts.length > 0 && !page.isBusy);
  assert.deepEqual(shown(page), ['pay', 'approval-responded']);
  assert.deepEqual(server.posts.map(({ approvalInputs }) => approvalInputs), [{ 'approval-1': { amount: 1 } }]);
  assert.equal(server.posts[0].message.parts[0].approval.approved, true);
});

test('two answers that are given at the same moment are both sent', async t => {
  const { server, page } = await asked(t, 2);
  const [one, two] = page.messages[1].parts;
  void page.respond(one, { approved: true, input: 6 });
  void page.respond(two, { approved: true, input: 7 });
  await until('both are posted', () => server.posted.at(-1) === 'approval-responded approval-responded' && !page.isBusy);
  assert.deepEqual(server.posts.at(-1).approvalInputs, { 'approval-1': 6, 'approval-2': 7 });
});

test('an answer that is given while another one is sent follows it, and is shown at once', async t => {
  const { server, page } = await asked(t, 2);
  const [one, two] = page.messages[1].parts;
  let respond;
  server.routes.post = () => new Promise(wake => (respond = () => wake('usual')));
  void page.respond(one, { approved: true });
  await until('the first one is posted', () => server.posts.length === 1);
  void page.respond(two, { approved: true, input: 7 });
  assert.deepEqual(shown(page), ['pay', 'approval-responded approval-responded']);
  delete server.routes.post;
  respond();
  await until('the second one is posted', () => server.posts.length === 2);
  assert.deepEqual(server.posted, ['approval-responded approval-requested', 'approval-responded approval-responded']);
  assert.deepEqual(server.posts[1].approvalInputs, { 'approval-2': 7 });
});

test('an answer that has not arrived is sent before the next message', async t => {
  const { server, page } = await asked(t, 1);
  const isBack = away(server, 'post');
  await page.respond(page.messages[1].parts[0], { approved: true });
  await until('the page says so', () => page.error?.message === 'Later.');
  await shows(page, ['pay', 'approval-responded']); // the history was read again
  isBack();
  await page.sendMessage({ text: 'next' });
  assert.deepEqual(server.posted, ['approval-responded', 'approval-responded', 'next']);
});

test('the error of an answer stays until the server has the answer', async t => {
  const { server, page } = await asked(t, 1);
  const isBack = away(server, 'post');
  await page.respond(page.messages[1].parts[0], { approved: true });
  await until('the page says so', () => page.error?.message === 'Later.');
  const { open, passage } = gate();
  server.routes.stream = () => passage;
  server.change(server.messages, { isLive: true });
  await until('the stream is asked for', () => server.count('stream') === 1);
  open([204]);
  await shows(page, ['pay', 'approval-responded']);
  assert.equal(page.error?.message, 'Later.');
  isBack();
  server.change([server.messages[0], assistant('a', question(1, 'output-available'))]);
  await shows(page, ['pay', 'output-available']);
  await until('the page has no error', () => page.error === undefined);
});

test('the question of a refused answer is open again, and the other answer stays', async t => {
  const { server, page } = await asked(t, 2);
  server.routes.post = ({ body }) => ('approval-1' in body.approvalInputs ? [400, 'Not an amount.'] : 'usual');
  await page.respond(page.messages[1].parts[0], { approved: true, input: 'much' });
  await until('the page says so', () => page.error?.message === 'Not an amount.');
  await page.respond(page.messages[1].parts[1], { approved: true });
  await shows(page, ['pay', 'approval-requested approval-responded']);
  assert.deepEqual(server.posts.at(-1).approvalInputs, {});
});

test('the output of a tool is sent again without what was given beside it', async t => {
  const call = { type: 'tool-where', toolCallId: 'call', state: 'input-available', input: {} };
  const { server, page } = await opened(t, [user('u', 'where'), assistant('a', call)]);
  const isBack = away(server, 'post');
  await page.addToolOutput({ tool: 'where', toolCallId: 'call', output: 5, options: { headers: { secret: 'x' } } });
  await until('the history was read again', () => server.count('history') === 2 && !page.isBusy);
  isBack();
  await page.retry();
  const { message } = server.posts.at(-1);
  assert.deepEqual(message.parts[0], { ...call, state: 'output-available', output: 5 });
});

test('the output of a tool is sent beside a call that was denied on another page', async t => {
  const call = { type: 'tool-where', toolCallId: 'call', state: 'input-available', input: {} };
  const { server, page } = await opened(t, [user('u', 'where'), assistant('a', question(1), call)]);
  const denied = { ...question(1, 'output-denied'), approval: { id: 'approval-1', approved: false } };
  server.change([user('u', 'where'), assistant('a', denied, call)]);
  await shows(page, ['where', 'output-denied input-available']);
  await page.addToolOutput({ tool: 'where', toolCallId: 'call', output: 5 });
  await shows(page, ['where', 'output-denied output-available']);
  assert.deepEqual(server.posted, ['output-denied output-available']);
});

test('a page that is closed sends what the user has sent, and reads nothing more', async t => {
  const server = await Server.start(t, [user('u', 'hello'), assistant('a', 'yes')]);
  const [history, post] = [gate(), gate()];
  server.routes.history = async () => (await history.passage, 'usual');
  server.routes.post = async () => (await post.passage, 'usual');
  const page = server.open(t);
  void page.sendMessage({ text: 'one' }); // while the chat opens
  void page.sendMessage({ text: 'two' });
  await until('the chat is being read', () => server.count('history') === 1);
  page.close();
  history.open();
  post.open();
  await until('both are there', () => server.texts.join() === 'hello,yes,one,re one,two,re two');
  await soon();
  assert.equal(server.count('history'), 1);
});

test('a page that is closed while an answer is written sends the answer that was given', async t => {
  const server = await Server.start(t);
  let end;
  server.routes.post = async ({ response, body }) => {
    if (body.message.role === 'assistant') return 'usual';
    await server.write(response, ASKS, { isEnd: false });
    end = () => server.write(response, [{ type: 'finish' }], { first: 4 });
  };
  const page = server.open(t, { isNew: true });
  void page.sendMessage({ text: 'pay' });
  await until('it is asked', () => shown(page)[1] === 'approval-requested');
  void page.respond(page.messages[1].parts[0], { approved: true });
  await soon();
  assert.equal(server.posts.length, 1); // the answer is still being written
  page.close();
  await end();
  await until('the answer is posted', () => server.posted[1] === 'approval-responded');
});

test('a page that is closed and opened at once reads on', async t => {
  const server = await Server.start(t, [user('u', 'count')]);
  server.ended = undefined;
  const { passage, open } = gate();
  server.routes.stream = async ({ response }) => {
    await server.write(response, answer('a', 'one two').slice(0, 3), { isEnd: false });
    await passage;
    await server.write(response, answer('a', 'one two').slice(3), { first: 4 });
  };
  const page = server.open(t);
  await until('the answer is read', () => page.status === 'streaming');
  page.close();
  t.after(page.connect());
  open();
  Object.assign(server, { messages: [user('u', 'count'), assistant('a', 'one two')], ended: 'finished' });
  await shows(page, ['count', 'one two']);
  assert.equal(server.count('stream'), 1);
});

test('an answer of another page is shown as it is written, and a message follows it', async t => {
  const { server, page } = await opened(t, [user('u', 'hello'), assistant('a', 'yes')]);
  server.routes.stream = ({ response }) => server.write(response, answer('b', 'one'), { isEnd: false });
  server.change([...server.messages, user('v', 'count'), assistant('b', 'on')], { isLive: true });
  await until('the answer is read', () => shown(page).join() === 'hello,yes,count,one');
  assert.equal(page.status, 'streaming');
  server.ended = 'finished';
  await page.sendMessage({ text: 'next' });
  assert.deepEqual(server.posted, ['next']);
  assert.deepEqual(shown(page).slice(-2), ['next', 're next']);
});

test('an answer that ends before its stream is opened is shown whole', async t => {
  const server = await Server.start(t, [user('u', 'count'), assistant('a', 'one')]);
  server.ended = undefined;
  server.routes.stream = () => {
    server.change([user('u', 'count'), assistant('a', 'one two')]);
    return [204];
  };
  const page = server.open(t);
  await shows(page, ['count', 'one two']);
  assert.equal(server.count('stream'), 1);
});

test('an answer that ends before its stream is opened, and another that has begun, are both shown', async t => {
  const server = await Server.start(t, [user('u', 'count'), assistant('a', 'one')]);
  server.ended = undefined;
  server.routes.stream = () => {
    server.routes.stream = ({ response }) => server.write(response, answer('b', 'three'), { isEnd: false });
    // No other event follows.
    server.change([user('u', 'count'), assistant('a', 'one two'), user('v', 'on'), assistant('b', '')], { isLive: true });
    return [204];
  };
  const page = server.open(t);
  await until('the second answer is read', () => shown(page).join() === 'count,one two,on,three');
  assert.equal(page.status, 'streaming');
  assert.deepEqual([server.count('history'), server.count('stream')], [2, 2]);
});

test('text that was lost with its server is replaced by what the server has stored', async t => {
  const server = await Server.start(t);
  server.routes.post = async ({ response, body }) => {
    Object.assign(server, { messages: [body.message, assistant('a', 'one')], ended: 'interrupted', version: 1 });
    await server.write(response, answer('a', 'one two').slice(0, 3), { isEnd: false });
    response.destroy();
  };
  const page = server.open(t);
  await page.sendMessage({ text: 'count' });
  await shows(page, ['count', 'one']);
  assert.equal(page.state.ended, 'interrupted');
  assert.equal(server.count('stream'), 1); // 204
});

test('a stream that the server has not, though it says that an answer is written, is not asked for again and again', async t => {
  const server = await Server.start(t, [user('u', 'count'), assistant('a', 'one')]);
  server.ended = undefined;
  const page = server.open(t);
  await shows(page, ['count', 'one']);
  await soon();
  assert.equal(server.count('stream'), 1);
});

test('a message that is sent while the chat opens stays, if there is no such chat', async t => {
  const server = await Server.start(t);
  const { passage, open } = gate();
  server.routes.history = async () => (await passage, [404]);
  const page = server.open(t);
  void page.sendMessage({ text: 'one' });
  open();
  await until('it is answered', () => server.texts.join() === 'one,re one');
  delete server.routes.history;
  await shows(page, ['one', 're one']);
  assert.equal(page.isUnknown, false);
});

test('a chat that is deleted while it is read, or while an answer is written, is unknown', async t => {
  for (const isWritten of [false, true]) {
    const { server, page } = await opened(t, [user('u', 'hello'), assistant('a', 'yes')]);
    const drop = () => {
      server.messages = [];
      server.tell('deleted');
    };
    if (isWritten) {
      server.routes.post = async ({ response }) => {
        await server.write(response, answer('b', 'part').slice(0, 3), { isEnd: false });
        drop();
        await server.write(response, [{ type: 'abort' }], { first: 4 });
      };
      void page.sendMessage({ text: 'more' });
    } else {
      const stale = JSON.stringify({ messages: server.messages, version: 9, ended: 'finished' });
      server.routes.history = ({ response }) => {
        delete server.routes.history;
        drop();
        void soon().then(() => response.end(stale));
      };
      server.change(server.messages);
    }
    await until('the chat is unknown', () => page.isUnknown && !page.isBusy);
    assert.deepEqual(page.messages, []);
  }
});

test('Stop that was pressed twice is sent once, and a message follows it', async t => {
  const server = await Server.start(t);
  const order = [];
  server.routes.post = async ({ body }) => (order.push(body.message.parts[0].text), 'usual');
  const { passage, open } = gate();
  server.routes.stop = async () => (await passage, order.push('stop'), [204]);
  const page = server.open(t, { isNew: true });
  await page.sendMessage({ text: 'one' });
  void page.stop();
  void page.stop();
  assert.equal(page.status, 'stopping');
  const sent = page.sendMessage({ text: 'two' });
  await soon();
  open();
  await sent;
  await until('it is sent', () => order.length === 3);
  assert.deepEqual(order, ['one', 'stop', 'two']);
});

test('Try again that was pressed twice sends once', async t => {
  const { server, page } = await begun(t);
  const isBack = away(server, 'post');
  await page.sendMessage({ text: 'one' });
  isBack();
  await Promise.all([page.retry(), page.retry()]);
  await shows(page, ['one', 're one']);
  assert.deepEqual(server.posted, ['one', 'one']);
});

test('a chat that cannot be opened says so, and is opened by Try again', async t => {
  const server = await Server.start(t, [user('u', 'hello'), assistant('a', 'yes')]);
  const isBack = away(server, 'history');
  const page = server.open(t);
  await until('the page says so', () => page.error?.message === 'Later.' && !page.isBusy);
  isBack();
  server.ended = 'interrupted'; // it is not written again: it was not shown
  await page.retry();
  await shows(page, ['hello', 'yes']);
  assert.deepEqual([page.error, page.ended, server.posts.length], [undefined, 'interrupted', 0]);
});

test('a tool of the page that never ends holds up no message for long', async t => {
  const server = await Server.start(t);
  server.routes.post = ({ response, body }) => {
    if (body.message.parts[0].text !== 'one') return 'usual';
    const call = { type: 'tool-input-available', toolCallId: 'call', toolName: 'hang', input: {} };
    return server.write(response, [{ type: 'start', messageId: 'a' }, call, { type: 'finish' }]);
  };
  const page = server.open(t, { isNew: true, init: { onToolCall: () => new Promise(() => {}) } });
  void page.sendMessage({ text: 'one' });
  await until('the tool is called', () => shown(page)[1] === 'input-available');
  void page.sendMessage({ text: 'two' });
  await until('the next one is posted', () => server.posts.length === 2);
});

test('a first request that hangs holds up the second one, and no other', async t => {
  const server = await Server.start(t, [user('u', 'hello')]);
  server.routes.events = () => {}; // the first request of the page
  const page = server.open(t);
  await until('the chat is open', () => shown(page).join() === 'hello');
  const texts = ['one', 'two', 'three', 'four'];
  for (const text of texts) void page.sendMessage({ text });
  // Within 10 s: if each waited for the first one, it would take 20 s.
  await until('all are posted', () => server.posts.length === 4);
  assert.deepEqual(server.posted, texts);
});

test('events that end at once are asked for again, with pauses', async t => {
  const server = await Server.start(t);
  server.routes.events = ({ response }) => void response.end('event: chats\ndata: {"chats":[]}\n\n');
  server.open(t, { isNew: true });
  await until('they have ended', () => server.count('events') === 1);
  await soon();
  assert.equal(server.count('events'), 1);
});

test('an answer that the page cannot read is not read again and again', async t => {
  const server = await Server.start(t, [user('u', 'count')]);
  server.ended = undefined;
  server.routes.stream = ({ response }) => server.write(response, [{ type: 'start', messageId: 'a' }, { type: 'of-another-version' }]);
  const page = server.open(t);
  await until('the page says so', () => page.status === 'error');
  await soon();
  assert.equal(server.count('stream'), 1);
});

test('a message that waits for an answer that fails is sent by Try again', async t => {
  const { server, page } = await asked(t, 1);
  const isBack = away(server, 'post');
  void page.respond(page.messages[1].parts[0], { approved: true, input: { amount: 70 } });
  void page.sendMessage({ text: 'next' });
  await until('the page says so', () => page.error?.message === 'Later.' && !page.isBusy);
  assert.deepEqual(server.posted, ['approval-responded']);
  isBack();
  await page.retry();
  assert.deepEqual(server.posted, ['approval-responded', 'approval-responded', 'next']);
  // The input that the human has approved, and not that of the model.
  for (const { approvalInputs } of server.posts.slice(0, 2)) assert.deepEqual(approvalInputs, { 'approval-1': { amount: 70 } });
});

test('the refusal of an answer is shown, also if a message follows', async t => {
  const { server, page } = await asked(t, 1);
  server.routes.post = ({ body }) => (body.message.role === 'assistant' ? [400, 'Not an amount.'] : 'usual');
  void page.respond(page.messages[1].parts[0], { approved: true, input: 'much' });
  void page.sendMessage({ text: 'next' });
  await shows(page, ['pay', 'approval-requested', 'next', 're next']);
  assert.equal(page.error.message, 'Not an amount.');
});

test('Stop drops an answer that was given and not sent: the server has closed the question', async t => {
  const server = await Server.start(t);
  server.routes.post = async ({ response, body }) => {
    await server.write(response, ASKS, { isEnd: false });
    server.messages = [body.message, assistant('a', question(1, 'output-error'))];
  };
  const page = server.open(t, { isNew: true });
  void page.sendMessage({ text: 'pay' });
  await until('it is asked', () => shown(page)[1] === 'approval-requested');
  void page.respond(page.messages[1].parts[0], { approved: true });
  await page.stop();
  await shows(page, ['pay', 'output-error']);
  assert.equal(server.posts.length, 1);
});

test('Stop while an answer is sent is no error', async t => {
  const { server, page } = await asked(t, 1);
  server.routes.post = () => {};
  const isBack = away(server, 'history');
  void page.respond(page.messages[1].parts[0], { approved: true });
  await until('it is posted', () => server.posts.length === 1);
  await page.stop();
  await shows(page, ['pay', 'approval-requested']);
  assert.equal(page.error, undefined);
  isBack();
});

test('the output of a tool belongs to the last message, not to an earlier one with an approval', async t => {
  const earlier = assistant('a', 'first', question(1, 'approval-responded'));
  const call = { type: 'tool-where', toolCallId: 'call', state: 'input-available', input: {} };
  const server = await Server.start(t, [user('u', 'pay'), earlier, user('v', 'where'), assistant('b', 'second', call)]);
  const page = server.open(t);
  const before = ['pay', 'first approval-responded', 'where', 'second input-available'];
  await shows(page, before);
  await page.addToolOutput({ tool: 'where', toolCallId: 'call', output: 5 });
  await until('it is posted', () => server.posts.length === 1);
  assert.deepEqual([server.posts[0].messageId, server.posts[0].message.id], ['b', 'b']);
  await shows(page, [...before.slice(0, 3), 'second output-available']);
});

test('edits that fail while the history is away leave all messages, and the last one is sent', async t => {
  const server = await Server.start(t, [user('u', 'old'), assistant('a', 're old'), user('v', 'more'), assistant('b', 're more')]);
  const page = server.open(t);
  const before = ['old', 're old', 'more', 're more'];
  await shows(page, before);
  const isBack = away(server, 'post', 'history');
  await page.sendMessage({ text: 'new', messageId: 'u' });
  await shows(page, before);
  page.clearError();
  await page.sendMessage({ text: 'newer', messageId: 'u' });
  assert.equal(page.error.message, 'Later.');
  isBack();
  await page.retry();
  await shows(page, ['newer', 're newer']);
});

test('regenerate sends a message that has not arrived, and a second click does nothing', async t => {
  const { server, page } = await begun(t);
  const isBack = away(server, 'post');
  await page.sendMessage({ text: 'one' });
  isBack();
  await page.regenerate();
  await shows(page, ['one', 're one']);
  await Promise.all([page.regenerate(), page.regenerate()]);
  assert.deepEqual(server.posts.map(({ trigger }) => trigger), ['submit-message', 'submit-message', 'regenerate-message']);
});

test('a message is sent at once, if the page waits for an answer of another page', async t => {
  const { server, page } = await opened(t, [user('u', 'hello'), assistant('a', 'yes')]);
  server.routes.stream = () => {}; // it hangs
  server.change([...server.messages, user('v', 'count')], { isLive: true });
  await until('it is asked for', () => server.count('stream') === 1);
  void page.sendMessage({ text: 'next' });
  await until('the message is posted', () => server.posts.length === 1);
});

test('Stop ends an opening that hangs', async t => {
  const server = await Server.start(t, [user('u', 'hello'), assistant('a', 'yes')]);
  server.routes.history = () => {};
  const page = server.open(t);
  await until('it is asked for', () => server.count('history') === 1);
  delete server.routes.history;
  await page.stop();
  await shows(page, ['hello', 'yes']);
  assert.equal(page.error, undefined);
});

test('a listener that throws stops nothing', async t => {
  const reported = [];
  globalThis.reportError = error => reported.push(error.message);
  const { server, page } = await begun(t);
  const unsubscribe = page.subscribe(() => {
    unsubscribe();
    throw new Error('of the page');
  });
  await page.sendMessage({ text: 'one' });
  await shows(page, ['one', 're one']);
  assert.deepEqual(reported, ['of the page']);
});

/** A server that gives a call to the page once it is approved, and takes no output before. And a page with its question. */
async function askedForPage(t) {
  const server = await Server.start(t, [user('u', 'pay'), assistant('a', question(1))]);
  server.routes.post = async ({ response, body }) => {
    if (body.message.role === 'user') return 'usual';
    const { approval: _, ...call } = question(1);
    const [{ state, approval, output }] = body.message.parts;
    let part = { ...call, state, output };
    let chunk = { type: 'tool-output-available', toolCallId: call.toolCallId, output };
    if (server.texts[1] === 'approval-requested') {
      if (state !== 'approval-responded') return [409, 'There is no such call.'];
      part = { ...call, state: approval.approved ? 'input-available' : 'output-denied' };
      chunk = { type: `tool-${part.state}`, toolCallId: call.toolCallId, toolName: 'pay', input: {} };
    }
    server.messages = [server.messages[0], assistant('a', part)];
    server.version += 1;
    await server.write(response, [{ type: 'start', messageId: 'a' }, chunk, { type: 'finish' }]);
    server.tell();
  };
  const page = server.open(t);
  await shows(page, ['pay', 'approval-requested']);
  return { server, page };
}

test('an output that a tool of the page gives before its approval has arrived is sent after it', async t => {
  const output = { tool: 'pay', toolCallId: 'call-1', output: 5 };
  const approve = page => void page.respond(page.messages[1].parts[0], { approved: true });
  const ACTS = {
    async 'before the user has answered'(page) {
      await page.addToolOutput(output);
      page.server.events.restart();
      await soon();
      assert.deepEqual(shown(page), ['pay', 'approval-requested']);
      approve(page);
    },
    'at the same moment'(page) {
      approve(page);
      void page.addToolOutput(output);
    },
    async 'while the approval is sent'(page, server) {
      approve(page);
      await until('it is posted', () => server.posts.length === 1);
      void page.addToolOutput(output);
    },
    async 'before the approval is sent again'(page, server) {
      const isBack = away(server, 'history');
      const { post } = server.routes;
      server.routes.post = LATER;
      approve(page);
      await until('the page says so', () => page.error?.message === 'Later.');
      isBack();
      await page.addToolOutput(output);
      server.requests = [];
      server.routes.post = post;
      await page.retry();
    },
    async 'and the server has the approval, though it says that it is away'(page, server) {
      const { post } = server.routes;
      server.routes.post = () => {
        server.routes.post = post;
        server.change([server.messages[0], assistant('a', question(1, 'approval-responded'))]);
        return LATER();
      };
      approve(page);
      await page.addToolOutput(output);
      await until('the page has no error any more', () => server.posts.length === 1 && !page.isBusy && !page.error);
      const { approval: _, ...call } = question(1, 'input-available');
      server.change([server.messages[0], assistant('a', call)]);
    },
  };
  for (const [when, act] of Object.entries(ACTS)) {
    const { server, page } = await askedForPage(t);
    await act(page, server);
    await until(`the output is stored: ${when}`, () => server.texts[1] === 'output-available');
    await shows(page, ['pay', 'output-available']);
    assert.deepEqual(server.posted, ['approval-responded', 'output-available'], when);
    assert.equal(server.messages[1].parts[0].output, 5);
  }
});

test('an output of a call that is denied is not sent', async t => {
  const { server, page } = await askedForPage(t);
  await page.addToolOutput({ tool: 'pay', toolCallId: 'call-1', output: 5 });
  await page.respond(page.messages[1].parts[0], { approved: false });
  await shows(page, ['pay', 'output-denied']);
  await page.sendMessage({ text: 'next' });
  assert.deepEqual(server.posted, ['approval-responded', 'next']);
});

test('an output that waits for an approval is not sent if the changed input is refused', async t => {
  const { server, page } = await askedForPage(t);
  const { post } = server.routes;
  server.routes.post = () => [400, 'Not an amount.'];
  await page.addToolOutput({ tool: 'pay', toolCallId: 'call-1', output: 5 });
  await page.respond(page.messages[1].parts[0], { approved: true, input: 'much' });
  await shows(page, ['pay', 'approval-requested']);
  server.routes.post = post;
  await page.respond(page.messages[1].parts[0], { approved: true, input: 7 });
  await shows(page, ['pay', 'input-available']);
  assert.deepEqual(server.posted, ['approval-responded', 'approval-responded']);
});
