// What the scripts of this folder and its neighbours share: waits.

import { setTimeout as sleep } from 'node:timers/promises';

/** For how many milliseconds a test waits for a state before it fails: `TEST_PATIENCE` in seconds, or 120 seconds. */
export const PATIENCE = 1_000 * Number(process.env.TEST_PATIENCE ?? 120);

/** Waits until `holds` returns something that is true, and returns it. `what` says what is waited for, or returns it. */
export async function until(what, holds) {
  const deadline = Date.now() + PATIENCE;
  for (let pause = 2; ; pause = Math.min(1.2 * pause, 50)) {
    const value = await holds();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`waited in vain until ${typeof what === 'function' ? what() : what}`);
    await sleep(pause);
  }
}
