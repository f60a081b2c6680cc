// The canonical form of RFC 8785, as JavaScript writes it: what JSON.parse reads, with sorted keys.
import { isShownAsIs } from './shown-as-is.mjs';

/** The canonical form of a tool input; null if a browser does not show the input unchanged. */
export const canonicalInput = text => (isShownAsIs(text) ? written(JSON.parse(text)) : null);

function written(value) {
  if (Array.isArray(value)) return `[${value.map(written)}]`;
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  const keys = Object.keys(value).sort();
  return `{${keys.map(key => `${JSON.stringify(key)}:${written(value[key])}`)}}`;
}
