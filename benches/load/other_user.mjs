// Another user, as a process of its own: asks for a turn again and again, and for `/ready`. A line on the
// standard input ends a phase, and the waits in milliseconds of that phase are printed.
//   node other_user.mjs PORT
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { newUser, request, turn } from './http.mjs';

const port = Number(process.argv[2]);
const cookie = await newUser(port);
const name = `other-${process.pid}`;
let chat = 0;
let phase = { turns: [], ready: [], failed: 0 };
const under_way = new Map();

const measure = async (waits, ask) => {
  for (;;) {
    const [begin, of] = [performance.now(), phase];
    under_way.set(waits, begin);
    let status;
    try {
      ({ status } = await ask());
    } catch (error) {
      status = error.code;
    }
    of[waits].push(performance.now() - begin);
    if (status !== 200) of.failed += 1;
    await sleep(20);
  }
};
measure('turns', () => turn(port, cookie, `${name}-${++chat}`, 'hello'));
measure('ready', () => request(port, 'GET', '/ready'));

for await (const _ of createInterface({ input: process.stdin })) {
  // What began in this phase belongs to it, for up to a minute.
  const of = phase;
  phase = { turns: [], ready: [], failed: 0 };
  const ends = performance.now();
  const begun = ['turns', 'ready'].filter(waits => under_way.get(waits) < ends);
  while (performance.now() - ends < 60_000 && begun.some(waits => under_way.get(waits) < ends)) await sleep(5);
  for (const waits of begun) {
    if (under_way.get(waits) < ends) [of[waits].push(performance.now() - under_way.get(waits)), (of.bound = true)];
  }
  console.log(JSON.stringify(of));
}
process.exit();
