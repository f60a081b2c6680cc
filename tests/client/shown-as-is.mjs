// This crate's rule for the tool inputs for which approval may be requested, implemented a second
// time and in another way: on the result of JSON.parse, and with exact integers.

/** Whether a browser shows all values of a JSON text unchanged, as a tool would read them. */
export function isShownAsIs(text) {
  const value = JSON.parse(text);
  const withoutStrings = text.replace(/"(?:[^"\\]|\\.)*"/g, '');
  const numbers = withoutStrings.match(/-?\d[\d.eE+-]*/g) ?? [];
  const keys = withoutStrings.match(/:/g) ?? [];
  return numbers.every(isExact) && keys.length === propertiesIn(value) && isSafe(value, 0);
}

function isExact(literal) {
  const number = Number(literal);
  const shown = String(number);
  if (/^-?\d+$/.test(shown) && !Number.isSafeInteger(number)) return false;
  if (number === 0) return !literal.startsWith('-') && fraction(literal).mantissa === 0n;
  if (!Number.isFinite(number)) return false;
  const [a, b] = [fraction(literal), fraction(shown)];
  const least = Math.min(a.exponent, b.exponent);
  const scaled = ({ mantissa, exponent }) => mantissa * 10n ** BigInt(exponent - least);
  return scaled(a) === scaled(b);
}

/** mantissa · 10^exponent */
function fraction(literal) {
  const [digits, exponent = '0'] = literal.toLowerCase().split('e');
  const [whole, decimals = ''] = digits.split('.');
  return { mantissa: BigInt(whole + decimals), exponent: Number(exponent) - decimals.length };
}

function propertiesIn(value) {
  if (value === null || typeof value !== 'object') return 0;
  const own = Array.isArray(value) ? 0 : Object.keys(value).length;
  return Object.values(value).reduce((sum, inner) => sum + propertiesIn(inner), own);
}

function isSafe(value, depth) {
  if (typeof value === 'string') return value.isWellFormed();
  if (value === null || typeof value !== 'object') return true;
  if (depth === MAX_DEPTH) return false;
  return Object.entries(value).every(
    ([key, inner]) =>
      key.isWellFormed() &&
      key !== '__proto__' &&
      !key.startsWith('$serde_json::private::') &&
      (Array.isArray(value) || key !== 'constructor' || !isPrototypeOf(inner)) &&
      isSafe(inner, depth + 1),
  );
}

const isPrototypeOf = value =>
  value === null || (typeof value === 'object' && Object.hasOwn(value, 'prototype'));

/** `Json::MAX_DEPTH` */
const MAX_DEPTH = 56;
