// The list of chats, as events change it.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ChatServer } from '../dist/core.js';
import { withEvent, withPage } from '../dist/events.js';
import { assistant, Server, until, user } from './server.mjs';

/** A chat with a number as its id, which was changed at this time. */
const chat = (number, updatedAt = number) => ({ id: `chat-${number}`, title: '', updatedAt, isLive: false, hasQuestions: false, version: 1 });
const page = (numbers, after) => ({ chats: numbers.map(number => chat(number)), ...(after && { after }) });
const newest = (chats, after) => ({ type: 'chats', chats, ...(after && { after }) });
const idsOf = ({ chats }) => chats.map(({ id }) => Number(id.slice(5)));

/** The two newest of six chats, and two more that `loadMore` has read. */
const READ = withPage(withEvent(undefined, { type: 'chats', ...page([6, 5], 'after 5') }), page([4, 3], 'after 3'));

test('the older chats stay in the list when the events begin again', () => {
  const again = withEvent(READ, newest([chat(6), chat(5)], 'after 5'));
  assert.deepEqual([idsOf(again), again.after], [[6, 5, 4, 3], 'after 3']);
});

test('the older chats of a list that has all stay too, and there are no more to read', () => {
  const all = withPage(READ, page([2, 1]));
  const again = withEvent(all, newest([chat(6), chat(5)], 'after 5'));
  assert.deepEqual([idsOf(again), again.after], [[6, 5, 4, 3, 2, 1], undefined]);
});

test('an older chat that has changed while no events came is in the list once, at its new place', () => {
  const again = withEvent(READ, newest([chat(3, 7), chat(6)], 'after 6'));
  assert.deepEqual([idsOf(again), again.after], [[3, 6, 5, 4], 'after 3']);
  assert.equal(again.chats[0].updatedAt, 7);
});

test('a chat that was deleted while no events came is not in the list, if the newest ones reach below its place', () => {
  const again = withEvent(READ, newest([chat(6), chat(4)], 'after 4'));
  assert.deepEqual([idsOf(again), again.after], [[6, 4, 3], 'after 3']);
});

test('if all of the newest chats have changed, or are of another user, the list begins again', () => {
  const changed = withEvent(READ, newest([chat(8), chat(5, 7)], 'after 7'));
  assert.deepEqual([idsOf(changed), changed.after], [[8, 5], 'after 7']);
  const all = withEvent(READ, newest([chat(6), chat(5)]));
  assert.deepEqual([idsOf(all), all.after], [[6, 5], undefined]);
});

test('a chat that the page deletes leaves the list, also if it is not among the newest', async t => {
  const server = await Server.start(t, [user('u', 'hello'), assistant('a', 'yes')]);
  const routes = new ChatServer({ api: server.url, headers: { authorization: 'token' } });
  let list;
  t.after(routes.events.subscribe(event => (list = withEvent(list, event))));
  await until('the events have begun', () => list);
  list = READ;
  await routes.remove('chat-3');
  assert.deepEqual(idsOf(list), [6, 5, 4]);
  await routes.removeAll();
  assert.deepEqual(idsOf(list), []);
});
