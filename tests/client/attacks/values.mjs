// The values and edits of a recipe: JSON in which some objects stand for something else. What they
// mean stands in fixtures/attacks/README.md.

/** A body that was edited, as bytes would carry it: JSON with texts in it that need not be JSON. */
export class Body {
  /** Texts that stand in the body under a name until it is written. */
  #raw = [];

  /** `named` gives what a name of the recipe means: a body sent before, or a chat. */
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

  /** What a value of the recipe is, here and now. */
  meant(value) {
    if (value === null || typeof value !== 'object') return value;
    if (Array.isArray(value)) return value.map(item => this.meant(item));
    if ('$at' in value) {
      const root = value.of === undefined ? this.value : this.named(value.of);
      return structuredClone(at(root, value.$at));
    }
    if ('$join' in value) return value.$join.map(item => this.meant(item)).join('');
    if ('$repeat' in value) return value.$repeat.repeat(value.times);
    if ('$raw' in value) return placeholder(this.#raw.push(this.meant(value.$raw)) - 1);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, this.meant(item)]));
  }

  #apply({ set, add, remove, to, value, times = 1 }) {
    if (add !== undefined) {
      const array = at(this.value, add);
      for (let i = 0; i < times; i++) array.push(this.meant(value));
      return;
    }
    const pointer = set ?? remove;
    const cut = pointer.lastIndexOf('/');
    const parent = at(this.value, pointer.slice(0, cut));
    const key = keyIn(parent, pointer.slice(cut + 1));
    if (set !== undefined) parent[key] = this.meant(to);
    else if (Array.isArray(parent)) parent.splice(key, 1);
    else delete parent[key];
  }
}

const placeholder = index => `@raw ${index}@`;

/** What a pointer leads to, which must be there. */
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
