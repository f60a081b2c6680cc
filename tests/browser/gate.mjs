import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { until } from './chromium.mjs';

/** A gate of the demo: an answer to `until NAME`, or a deletion of the file `NAME`, waits at it. */
export class Gate {
  #file;

  /** Closes the gate with this name. */
  constructor(folder, name) {
    this.name = name;
    this.#file = join(folder, name);
    writeFileSync(this.#file, '');
  }

  /** Waits until something waits at the gate. */
  reached() {
    return until('something waits at the gate', () => readFileSync(this.#file, 'utf8') !== '');
  }

  /** Lets everything through that waits. */
  open() {
    rmSync(this.#file, { force: true });
  }
}

/** The numbers from one to another. */
export const numbers = (end, first = 1) =>
  Array.from({ length: end - first + 1 }, (_, at) => first + at).join(' ');

/** What an answer to `until NAME` is if it ends as this text does: each number once, without a gap. */
export const counted = text => {
  const words = text.split(' ');
  return words.at(-1) === 'done' ? `${numbers(words.length - 1)} done` : numbers(words.length);
};
