// Where the fixtures lie, and the one difference between checking and re-recording them.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const FOLDER = fileURLToPath(new URL('../../../fixtures/upstream/', import.meta.url));
const UPDATING = process.argv.includes('--update');

export const readText = path => readFileSync(FOLDER + path, 'utf8');
export const readJson = path => JSON.parse(readText(path));
export const readLines = path =>
  readText(path)
    .split('\n')
    .filter(Boolean)
    .map(line => JSON.parse(line));

/** A file of `streams/`: the message to continue, the chunks, the path of what is expected. */
export function readStream(path) {
  const lines = readLines(path);
  return {
    message: lines[0]?.message,
    chunks: lines.flatMap(line => ('chunk' in line ? [line.chunk] : [])),
    expected: path.replace('streams/', 'expected/').replace('.jsonl', '.json'),
  };
}

/** Paths of the files of a fixture folder that end in `ending`, in a fixed order. */
export const filesIn = (folder, ending) =>
  readdirSync(FOLDER + folder)
    .filter(name => name.endsWith(ending))
    .sort()
    .map(name => `${folder}/${name}`);

// With `--update` these write what the real client just did; a check that reads it back then
// passes.
export function recordJson(path, value, indent = 2) {
  if (UPDATING) writeFileSync(FOLDER + path, JSON.stringify(value, null, indent) + '\n');
}
export function recordLines(path, values) {
  if (UPDATING)
    writeFileSync(FOLDER + path, values.map(value => JSON.stringify(value) + '\n').join(''));
}
/** The file's recorded value; with `--update`, `got` becomes it first. */
export function recorded(path, got) {
  recordJson(path, got);
  return readJson(path);
}

/**
 * An error as the fixtures keep it. The texts of the schema library and of JSON.parse are no
 * contract: only the fact stays.
 */
export function stableError(error) {
  const { name, message, chunkType, chunkId } = error;
  const fact = {
    AI_TypeValidationError: 'Type validation failed',
    AI_JSONParseError: 'JSON parsing failed',
  }[name];
  return { name, message: fact ?? String(message), ...(chunkType && { chunkType, chunkId }) };
}
