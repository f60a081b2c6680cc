// The values and edits of a recipe: JSON with placeholders, which fixtures/attacks/README.md
// describes.

/** A request body that a recipe edits. It can contain raw text that is not JSON. */
export class Body {
  /** Raw texts. The body holds a placeholder for each until it is written. */
  #raw = [];

  /** `named` returns the value for a name of the recipe: a body that was sent, or a chat. */
  constructor(value, named) {
    this.value = value;
    this.named = named;
  }

  edit(changes = []) {
    for (const change of changes) this.#apply(change);
    return this;
  }

  write() {
    return this.#raw.reduce(
      (text, raw, i) => text.replace(JSON.stringify(placeholder(i)), () => raw),
      JSON.stringify(this.value),
    );
  }

  /** Replaces the placeholders in a value of the recipe. */
  resolve(value) {
    if (value === null || typeof value !== 'object') return value;
    if (Array.isArray(value)) return value.map(item => this.resolve(item));
    if ('$at' in value) {
      const root = value.of === undefined ? this.value : this.named(value.of);
      return structuredClone(at(root, value.$at));
    }
    if ('$join' in value) return value.$join.map(item => this.resolve(item)).join('');
    if ('$repeat' in value) return value.$repeat.repeat(value.times);
    if ('$raw' in value) return placeholder(this.#raw.push(this.resolve(value.$raw)) - 1);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, this.resolve(item)]));
  }

  #apply({ set, add, remove, to, value, times = 1 }) {
    if (add !== undefined) {
      const array = at(this.value, add);
      for (let i = 0; i < times; i++) array.push(this.resolve(value));
      return;
    }
    const pointer = set ?? remove;
    const cut = pointer.lastIndexOf('/');
    const parent = at(this.value, pointer.slice(0, cut));
    const key = keyIn(parent, pointer.slice(cut + 1));
    if (set !== undefined) parent[key] = this.resolve(to);
    else if (Array.isArray(parent)) parent.splice(key, 1);
    else delete parent[key];
  }
}

const placeholder = index => `@raw ${index}@`;

/** Returns the value at a pointer. Throws if there is none. */
export function at(root, pointer) {
  return pointer
    .split('/')
    .slice(1)
    .reduce((value, segment) => {
      const found = value?.[keyIn(value, segment)];
      if (found === undefined) throw new Error(`there is no ${pointer} in ${JSON.stringify(root)}`);
      return found;
    }, root);
}

function keyIn(value, segment) {
  if (!Array.isArray(value)) return segment;
  if (/^\d+$/.test(segment)) return Number(segment);
  if (segment === '-1') return value.length - 1;
  return value.findLastIndex(item => item.type === segment);
}
