import assert from 'node:assert/strict';
import test from 'node:test';
import { changedInput, inputFields } from '../dist/core.js';

const INPUT = { to: 'Bakery', amount: 4000, urgent: false, lines: ['one'], note: 'a\r\nb' };

const edits = (fields, changed) => fields.map(({ name, edit }) => changed[name ?? ''] ?? edit);

const changedBy = (input, editable, changed) => {
  const fields = inputFields(input, editable);
  return changedInput(input, fields, edits(fields, changed));
};

test('each value is edited as what it is, and the user gets only the fields that may be changed', () => {
  const kinds = editable => inputFields(INPUT, editable).map(({ name, kind }) => `${name} ${kind}`);
  assert.deepEqual(kinds(true), ['to text', 'amount number', 'urgent boolean', 'lines json', 'note text']);
  assert.deepEqual(kinds(['amount', 'currency']), ['amount number', 'currency json']);
  assert.deepEqual(kinds(undefined), []);
});

test('an input without fields is one field, if all of it may be changed', () => {
  for (const input of ['notes.txt', 7, ['a'], {}, null]) {
    assert.equal(inputFields(input, true).length, 1);
    assert.equal(inputFields(input, true)[0].name, undefined);
    assert.deepEqual(inputFields(input, ['path']), []);
  }
  assert.deepEqual(changedBy('notes.txt', true, { '': 'draft.md' }).input, 'draft.md');
  assert.deepEqual(changedBy(['a'], true, { '': '["b"]' }).input, ['b']);
  // An empty text is no input.
  assert.equal(changedBy(['a'], true, { '': ' ' }).unreadable.length, 1);
});

// A card may take the edits of a question whose approval, and with it the fields, arrives later.
test('a field without an edit has not changed', () => {
  const fields = inputFields(INPUT, true);
  assert.deepEqual(changedInput(INPUT, fields, []), { input: INPUT, changes: [], unreadable: [] });
  assert.deepEqual(changedInput(INPUT, fields, [undefined, '40']).changes.map(({ name, now }) => [name, now]), [['amount', 40]]);
});

test('a change keeps all other fields, and names what it was', () => {
  const { input, changes, unreadable } = changedBy(INPUT, ['amount', 'lines'], { amount: '40', lines: '' });
  assert.equal(JSON.stringify(input), '{"to":"Bakery","amount":40,"urgent":false,"note":"a\\r\\nb"}');
  assert.deepEqual(changes.map(({ name, value, now }) => [name, value, now]), [['amount', 4000, 40], ['lines', ['one'], undefined]]);
  assert.deepEqual(unreadable, []);
});

test('what was not changed is the input of the model, also behind a control with line ends of its own', () => {
  const { input, changes } = changedBy(INPUT, true, { note: 'a\nb' });
  assert.equal(input, INPUT);
  assert.deepEqual(changes, []);
});

test('what is no number or no JSON is named', () => {
  const { unreadable } = changedBy(INPUT, true, { amount: ' ', lines: '[', urgent: true });
  assert.deepEqual(unreadable.map(({ name }) => name), ['amount', 'lines']);
});
