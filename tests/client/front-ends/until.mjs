import assert from 'node:assert/strict';
import { setTimeout as wait } from 'node:timers/promises';

const TIMEOUT_MS = 60_000;

/** Waits until `holds` returns something that is true, and returns it. `what` describes it. */
export async function until(holds, what) {
  const deadline = Date.now() + TIMEOUT_MS;
  for (;;) {
    const value = await holds();
    if (value) return value;
    if (Date.now() > deadline) assert.fail(`not within ${TIMEOUT_MS} ms: ${typeof what === 'function' ? what() : what}`);
    await wait(5);
  }
}
