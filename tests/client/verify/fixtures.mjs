// Reads the fixtures. With `--update` it also records them.
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

/** A file of `streams/`: the message to continue, the chunks, and the path of the expected result. */
export function readStream(path) {
  const lines = readLines(path);
  return {
    message: lines[0]?.message,
    chunks: lines.flatMap(line => ('chunk' in line ? [line.chunk] : [])),
    expected: path.replace('streams/', 'expected/').replace('.jsonl', '.json'),
  };
}

/** The paths of the files in a fixture folder whose names end in `ending`, in a fixed order. */
export const filesIn = (folder, ending) =>
  readdirSync(FOLDER + folder)
    .filter(name => name.endsWith(ending))
    .sort()
    .map(name => `${folder}/${name}`);

// With `--update` these functions write the result of the real client. A check that reads the file
// after that passes.
export function recordJson(path, value, indent = 2) {
  if (UPDATING) writeFileSync(FOLDER + path, JSON.stringify(value, null, indent) + '\n');
}
export function recordLines(path, values) {
  if (UPDATING)
    writeFileSync(FOLDER + path, values.map(value => JSON.stringify(value) + '\n').join(''));
}
/** Returns the value in the file. With `--update`, `got` is written to the file first. */
export function recorded(path, got) {
  recordJson(path, got);
  return readJson(path);
}

/**
 * An error in the form of the fixtures. The texts of the schema library and of JSON.parse can change
 * with their versions and are replaced.
 */
export function stableError(error) {
  const { name, message, chunkType, chunkId } = error;
  const stableText = {
    AI_TypeValidationError: 'Type validation failed',
    AI_JSONParseError: 'JSON parsing failed',
  }[name];
  return { name, message: stableText ?? String(message), ...(chunkType && { chunkType, chunkId }) };
}
