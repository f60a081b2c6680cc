// The fields with which a page lets its user change the input of a call before it is approved.

/**
 * A field of an input, or the whole input.
 *
 * @typedef {object} InputField
 * @property {string | undefined} name Its name. The whole input has none.
 * @property {'text' | 'number' | 'boolean' | 'json'} kind How it is edited: in a line of text, as a checkbox, or as JSON.
 * @property {boolean} isLong Whether it needs several lines.
 * @property {unknown} value What it is in the input of the model.
 * @property {string | boolean} edit What its control shows at first.
 */

/**
 * The fields of an input that the user may change, as `editable` of its approval says. None if the user may change nothing.
 *
 * @param {unknown} input
 * @param {true | readonly string[] | undefined} editable
 * @returns {InputField[]}
 */
export function inputFields(input, editable) {
  const values = new Map(typeof input === 'object' && !Array.isArray(input) ? Object.entries(input ?? {}) : []);
  if (editable === true && values.size === 0) return [fieldOf(undefined, input)];
  if (!editable || values.size === 0) return [];
  return (editable === true ? [...values.keys()] : editable).map(name => fieldOf(name, values.get(name)));
}

/**
 * Reads the fields of `input`. `edits` is what their controls hold now. A field without one has not changed.
 *
 * @param {unknown} input
 * @param {readonly InputField[]} fields
 * @param {readonly (string | boolean | undefined)[]} edits
 * @returns {{ input: unknown, changes: (InputField & { now: unknown })[], unreadable: InputField[] }} The whole input with the
 *   changes, what has changed, and the fields that are no number or no JSON.
 */
export function changedInput(input, fields, edits) {
  /** @type {InputField[]} */
  const unreadable = [];
  const changes = fields.flatMap((field, at) => {
    try {
      const now = valueOf(field, edits[at] ?? field.edit);
      return now === field.value ? [] : [{ ...field, now }];
    } catch {
      unreadable.push(field);
      return [];
    }
  });
  if (changes[0]) {
    const isWhole = changes[0].name === undefined;
    input = isWhole ? changes[0].now : { .../** @type {object} */ (input), ...Object.fromEntries(changes.map(({ name, now }) => [name, now])) };
  }
  return { input, changes, unreadable };
}

/**
 * @param {string | undefined} name
 * @param {unknown} value
 * @returns {InputField}
 */
function fieldOf(name, value) {
  if (typeof value === 'boolean') return { name, value, kind: 'boolean', isLong: false, edit: value };
  if (typeof value === 'number') return { name, value, kind: 'number', isLong: false, edit: `${value}` };
  if (typeof value === 'string') return { name, value, kind: 'text', isLong: /[\r\n]|.{60}/.test(value), edit: value };
  return { name, value, kind: 'json', isLong: true, edit: JSON.stringify(value, null, 2) ?? '' };
}

/**
 * Reads a field. Throws if it cannot be read.
 *
 * @param {InputField} field
 * @param {string | boolean} edit
 * @returns {unknown}
 */
function valueOf({ name, kind, value, edit: before }, edit) {
  if (typeof edit === 'boolean' || typeof before === 'boolean') return edit;
  if (edit === before || edit === before.replace(/\r\n?/g, '\n')) return value; // a textarea has line ends of its own
  if (kind === 'text') return edit;
  if (kind === 'json') return edit.trim() || name === undefined ? JSON.parse(edit) : undefined; // without text it is left out
  if (!edit.trim() || !Number.isFinite(Number(edit))) throw new Error('not a number');
  return Number(edit);
}
