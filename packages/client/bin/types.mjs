#!/usr/bin/env node
// Reads the schemas of an agent (`Agent::schemas()` as JSON) from standard input, and writes TypeScript types:
// `Tools`, `DataParts` and `Metadata`, as `UIMessage<Metadata, DataParts, Tools>` takes them.
//   my-server schemas | npx ui-message-stream-types > app/tools.d.ts
import { text } from 'node:stream/consumers';
import { compile } from 'json-schema-to-typescript';

const { tools = {}, data = {}, metadata } = JSON.parse(await text(process.stdin));

/** The definitions of all schemas. Each schema has its own, and two may use the same name. */
const definitions = {};
/** The same, as they were before their references were renamed. */
const originals = {};

/** The names of the types below. A type of the host gets another one. */
const TAKEN = ['Types', 'Tools', 'DataParts', 'Metadata'];

/** A schema with its fields in the order of their names: that of the host depends on how it was built. */
function sorted(schema) {
  const inOrder = fields => Object.fromEntries(Object.entries(fields).sort(([one], [other]) => (one < other ? -1 : 1)));
  return JSON.parse(JSON.stringify(schema, (key, value) => (key === 'properties' ? inOrder(value) : value)));
}

/** A schema without definitions of its own: they are in `definitions`. */
function hoisted(name, { $schema: _, $defs = {}, ...schema }) {
  const renamed = {};
  const isTaken = (of, definition) => TAKEN.includes(of) || (of in definitions && originals[of] !== JSON.stringify(sorted(definition)));
  for (const [of, definition] of Object.entries($defs)) {
    let own = isTaken(of, definition) ? `${name}_${of}` : of;
    while (own !== of && (own in definitions || own in $defs)) own += '_';
    renamed[of] = own;
  }
  // It would be the name of the type.
  if (TAKEN.includes(schema.title)) delete schema.title;
  const rename = (key, value) =>
    key === '$ref' && typeof value === 'string' ? value.replace(/^#\/\$defs\/(.*)$/, (_, of) => `#/$defs/${renamed[of]}`) : value;
  for (const [of, definition] of Object.entries($defs)) {
    originals[renamed[of]] = JSON.stringify(sorted(definition));
    definitions[renamed[of]] = JSON.parse(JSON.stringify(sorted(definition), rename));
  }
  return JSON.parse(JSON.stringify(sorted(schema), rename));
}

const object = properties => ({
  type: 'object',
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
});
const map = (entries, schemaOf) =>
  object(Object.fromEntries(Object.entries(entries).map(([name, entry]) => [name, schemaOf(name, entry)])));

const root = object({
  tools: map(tools, (name, { input, output = {} }) =>
    object({ input: hoisted(`${name}_input`, input), output: hoisted(`${name}_output`, output) }),
  ),
  data: map(data, (name, schema) => hoisted(`${name}_data`, schema)),
  metadata: hoisted('metadata', metadata ?? {}),
});
const types = await compile({ ...root, $defs: definitions }, 'Types', {
  additionalProperties: false,
  bannerComment: '// Made by `ui-message-stream-types`. Do not edit.',
  unreachableDefinitions: false,
});
process.stdout.write(`${types.trimEnd()}

export type Tools = Types['tools'];
export type DataParts = Types['data'];
export type Metadata = Types['metadata'];
`);
