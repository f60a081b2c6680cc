#!/usr/bin/env node
// Reads the schemas of an agent (`Agent::schemas()` as JSON) from standard input, and writes TypeScript types:
// `Tools`, `DataParts` and `Metadata`, as `UIMessage<Metadata, DataParts, Tools>` takes them.
//   my-server schemas | npx ui-message-stream-types > app/tools.d.ts
import { text } from 'node:stream/consumers';
import { compile } from 'json-schema-to-typescript';

const { tools = {}, data = {}, metadata } = JSON.parse(await text(process.stdin));

/** The definitions of all schemas. Each schema has its own, and two may use the same name. */
const definitions = {};

/** A schema without definitions of its own: they are named in `definitions`. */
function hoisted(name, { $schema: _, $defs = {}, ...schema }) {
  const renamed = {};
  for (const [of, definition] of Object.entries($defs)) {
    const isTaken = of in definitions && JSON.stringify(definitions[of]) !== JSON.stringify(definition);
    renamed[of] = isTaken ? `${name}_${of}` : of;
    definitions[renamed[of]] = definition;
  }
  // The order of fields depends on how the host was built.
  const sorted = fields => Object.fromEntries(Object.entries(fields).sort(([one], [other]) => (one < other ? -1 : 1)));
  const rename = (key, value) =>
    key === 'properties' ? sorted(value) : key === '$ref' && typeof value === 'string' ? value.replace(/^#\/\$defs\/(.*)$/, (_, of) => `#/$defs/${renamed[of]}`) : value;
  for (const of of Object.values(renamed)) definitions[of] = JSON.parse(JSON.stringify(definitions[of], rename));
  return JSON.parse(JSON.stringify(schema, rename));
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
