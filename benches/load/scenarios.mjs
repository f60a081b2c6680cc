// What the first user does. Each scenario has sizes and a load, which returns a note for the table.
import { head, message, newUser, request, turn, unread } from './http.mjs';
import { setTimeout as sleep } from 'node:timers/promises';

const count = values => {
  const counts = {};
  for (const value of values) counts[value] = (counts[value] ?? 0) + 1;
  return Object.entries(counts).map(([value, times]) => `${times} × ${value}`).join(', ');
};

const inTurn = (chats, text) => async ({ port, cookie, size, signal }) => {
  const ask = (_, chat) => turn(port, cookie, `chat-${chat}`, `${text} ${size}`, { signal });
  const answers = await Promise.allSettled(Array.from({ length: chats }, ask));
  const questions = ({ value }) => value?.text.match(/"tool-approval-request"/g)?.length ?? 0;
  const requested = answers.reduce((sum, answer) => sum + questions(answer), 0);
  return `status ${count(answers.map(({ value, reason }) => value?.status ?? reason.code))}; ${requested} questions`;
};

/** Opens connections in groups, so that the queue of the listener is not what is measured. */
const openAll = async (size, open) => {
  const opened = [];
  while (opened.length < size) {
    const group = Array.from({ length: Math.min(100, size - opened.length) }, open);
    opened.push(...group);
    await Promise.race([Promise.all(group.map(({ status }) => status)), sleep(300)]);
  }
  return opened;
};

const hold = async (opened, seconds, signal) => {
  await Promise.race([sleep(seconds * 1_000), new Promise(stop => signal.addEventListener('abort', stop))]);
  const open = opened.filter(({ socket }) => !socket.destroyed).length;
  const statuses = await Promise.all(opened.map(({ status }) => Promise.race([status, sleep(10, 'no answer')])));
  opened.forEach(({ socket }) => socket.destroy());
  return `${count(statuses)}; ${open} still open`;
};

export const scenarios = {
  'approvals-8': { sizes: [100, 300], load: inTurn(8, 'calls'), title: '8 answers of N calls that need approval' },
  'approvals-1': { sizes: [2_000, 20_000], load: inTurn(1, 'calls'), title: 'an answer of N calls that need approval' },
  copies: {
    sizes: [100, 200],
    title: 'N unread repeats of a POST with a 12 MB answer',
    async load({ port, cookie, size, signal }) {
      await turn(port, cookie, 'large', `text ${12_000_000}`, { signal });
      const body = JSON.stringify({ id: 'large', message: message('large-m', `text ${12_000_000}`) });
      const text = head(port, cookie, 'POST', '/api/chat', Buffer.byteLength(body)) + body;
      return hold(await openAll(size, () => unread(port, text)), 10, signal);
    },
  },
  readers: {
    sizes: [300, 2_000, 4_095],
    title: 'N readers of one live answer',
    async load({ port, cookie, size, signal }) {
      const live = turn(port, cookie, 'live', 'slow 300', { signal }).catch(() => {});
      await sleep(1_000);
      const text = head(port, cookie, 'GET', '/api/chat/live/stream');
      const note = await hold(await openAll(size, () => unread(port, text)), 5, signal);
      await request(port, 'DELETE', '/api/chat/live/stream', { cookie, signal }).catch(() => {});
      await live;
      return note;
    },
  },
  bodies: {
    sizes: [100, 300, 1_500],
    title: 'N bodies of 2 MiB of which the last byte is missing',
    async load({ port, cookie, size, signal }) {
      const length = 2 * 1024 * 1024;
      const body = Buffer.alloc(length - 1, '{"id":"half","message":{"text":"'.padEnd(1_000, 'x'));
      const text = head(port, cookie, 'POST', '/api/chat', length);
      return hold(await openAll(size, () => unread(port, text, body)), 10, signal);
    },
  },
  turns: {
    sizes: [1, 2, 16],
    title: 'N users, each asks for one turn after another',
    isAlone: true,
    async load({ port, size }) {
      const users = await Promise.all(Array.from({ length: size }, () => newUser(port)));
      const [begin, waits] = [performance.now(), []];
      await Promise.all(
        users.map(async (cookie, user) => {
          for (let chat = 0; performance.now() - begin < 5_000; chat++) {
            const asked = performance.now();
            await turn(port, cookie, `chat-${user}-${chat}`, 'hello');
            waits.push(performance.now() - asked);
          }
        }),
      );
      const seconds = (performance.now() - begin) / 1_000;
      return `${(waits.length / seconds).toFixed(0)} turns/s, ${median(waits).toFixed(1)} ms a turn`;
    },
  },
  edit: {
    sizes: [100, 1_000],
    title: 'edit and regenerate the last of N messages',
    isAlone: true,
    async load({ port, cookie, size, signal }) {
      let last;
      for (let number = 0; number < size / 2; number++) {
        last = await turn(port, cookie, 'long', 'hello', { id: `m${number}`, signal });
      }
      const [id, answer] = [`m${Math.ceil(size / 2) - 1}`, text => /answer-\d+/.exec(text)?.[0]];
      const timed = async (name, fields, text) => {
        const begin = performance.now();
        const body = { id: 'long', ...fields, ...text };
        const response = await request(port, 'POST', '/api/chat', { cookie, signal, body });
        const isOld = answer(response.text) === answer(last.text);
        const what = response.status !== 200 ? '' : isOld ? ', old answer' : ', new answer';
        if (response.status === 200) last = response;
        return `${name} ${(performance.now() - begin).toFixed(1)} ms: ${response.status}${what}`;
      };
      const edited = { message: message(id, 'hello again') };
      return [
        await timed('edit', { messageId: id, trigger: 'submit-message' }, edited),
        await timed('regenerate', { messageId: id, trigger: 'regenerate-message' }, {}),
      ].join('; ');
    },
  },
};

export const median = values => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN;
