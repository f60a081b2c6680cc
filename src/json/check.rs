//! [`check`]: whether a value keeps the rules of [`Json`](super::Json), in one pass over its text.

use std::borrow::Cow;

use super::string_token::{end_and_escapes, has_lone_surrogate, string_end, unescaped};

/// Why a text is not a [`Json`](super::Json).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// It is not JSON, or the value does not serialize.
    #[error("not JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// It nests deeper than [`Json::MAX_DEPTH`](super::Json::MAX_DEPTH). For a value in a request, `Limits` decide.
    #[error("nested deeper than {} levels", MAX_DEPTH)]
    TooDeep,
    /// A key is `__proto__`, or `constructor` holds `prototype` or `null`: the client's JSON reader
    /// refuses it and with it the whole stream.
    #[error("a key `__proto__` or `constructor.prototype`, which the client refuses")]
    PrototypeKey,
    /// An object has a key twice.
    #[error("an object repeats a key")]
    DuplicateKey,
    /// A string holds half a surrogate pair.
    #[error("a string with a lone surrogate")]
    LoneSurrogate,
    /// A number is too large for a double.
    #[error("a number larger than a double can hold")]
    NumberTooLarge,
}

/// How strict the check is, which depends on where the value comes from.
///
/// Each level accepts only values that the client's JSON reader accepts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strictness {
    /// A value of a peer: what the client accepts, and no key is repeated, so that every reader
    /// sees the same value.
    Unambiguous,
    /// Metadata of any server: the client's schema refuses an object with a key `constructor`.
    Metadata,
    /// A value that this process makes for the wire: all rules of keys, strings and numbers.
    Written,
}

/// Whether a newline stands between the tokens of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lines {
    One,
    Several,
}

/// One open `{` or `[`, or the place around the whole value.
#[derive(Clone, Copy, Default)]
struct Container {
    is_object: bool,
    /// It is the value of a key `constructor`.
    is_constructor_value: bool,
    /// A key of it has escapes.
    has_escaped_keys: bool,
    /// Two of its keys have the same bit in `seen`: they can be equal.
    may_repeat: bool,
    /// The index of its first key among all collected keys. A `u32` is enough: each key also takes
    /// several bytes of the text.
    keys_from: u32,
    /// One bit for each key without escapes, by its hash. Most objects need no other comparison.
    seen: u64,
}

/// Checks a text that is known to be valid JSON, in one pass, without recursion. It may nest up to `max_depth` levels.
///
/// Each key takes eight bytes of memory until its object ends, and each open object or array 16.
/// Returns whether the text has several lines.
pub(super) fn check(
    text: &str,
    strictness: Strictness,
    max_depth: usize,
) -> Result<Lines, JsonError> {
    let is_written = strictness == Strictness::Written;
    let mut lines = Lines::One;
    let bytes = text.as_bytes();
    let mut current = Container::default();
    let mut outer: Vec<Container> = Vec::new();
    let mut keys: Vec<(u32, u32)> = Vec::new();
    let mut at_key = false;
    let mut after_constructor = false;
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let mut end = i + 1;
        match byte {
            b'"' if at_key => {
                at_key = false;
                let hash;
                (end, hash) = key_end_and_hash(bytes, i);
                let key = match hash {
                    Some(hash) => {
                        let bit = 1 << (hash % 64);
                        current.may_repeat |= current.seen & bit != 0;
                        current.seen |= bit;
                        Cow::Borrowed(&text[i + 1..end - 1])
                    }
                    None if is_written && has_lone_surrogate(&text[i..end]) => {
                        return Err(JsonError::LoneSurrogate);
                    }
                    None => {
                        current.has_escaped_keys = true;
                        unescaped(&text[i..end])
                    }
                };
                after_constructor = key == "constructor";
                if key == "__proto__"
                    || (current.is_constructor_value && key == "prototype")
                    || (after_constructor && strictness == Strictness::Metadata)
                {
                    return Err(JsonError::PrototypeKey);
                }
                // Beyond 4 GiB a text is not checked for repeated keys.
                if let (Ok(from), Ok(to)) = (u32::try_from(i), u32::try_from(end)) {
                    keys.push((from, to));
                }
            }
            b'"' => {
                let has_escapes;
                (end, has_escapes) = end_and_escapes(bytes, i);
                if has_escapes && is_written && has_lone_surrogate(&text[i..end]) {
                    return Err(JsonError::LoneSurrogate);
                }
            }
            b'{' | b'[' => {
                if outer.len() >= max_depth {
                    return Err(JsonError::TooDeep);
                }
                at_key = byte == b'{';
                outer.push(current);
                current = Container {
                    is_object: at_key,
                    is_constructor_value: std::mem::take(&mut after_constructor),
                    keys_from: u32::try_from(keys.len()).unwrap_or(u32::MAX),
                    ..Container::default()
                };
            }
            b'}' | b']' => {
                let keys_from = current.keys_from as usize;
                if current.may_repeat || current.has_escaped_keys {
                    let own = keys.get_mut(keys_from..).unwrap_or_default();
                    if repeats(text, own, current.has_escaped_keys) {
                        return Err(JsonError::DuplicateKey);
                    }
                }
                keys.truncate(keys_from);
                current = outer.pop().unwrap_or_default();
            }
            b',' => {
                at_key = current.is_object;
                after_constructor = false;
            }
            b'\n' | b'\r' => lines = Lines::Several,
            b':' | b' ' | b'\t' => {}
            // A number, `true`, `false` or `null`.
            _ => {
                end += bytes[end..].iter().take_while(|byte| !ends_word(**byte)).count();
                // The first clients of ai@6 read own properties of this `null` and throw.
                if byte == b'n' && after_constructor && is_written {
                    return Err(JsonError::PrototypeKey);
                }
                let is_number = !byte.is_ascii_alphabetic();
                if is_number && strictness >= Strictness::Metadata && overflows(&text[i..end]) {
                    return Err(JsonError::NumberTooLarge);
                }
            }
        }
        i = end;
    }
    Ok(lines)
}

/// Returns the offset behind the key that opens at `from`, and its hash if it has no escapes. Keys
/// are short: they are read byte by byte.
fn key_end_and_hash(bytes: &[u8], from: usize) -> (usize, Option<u64>) {
    let mut hash = 0_u64;
    let mut at = from + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return (at + 1, Some(hash)),
            b'\\' => return (string_end(bytes, from), None),
            _ => hash = hash.wrapping_mul(5).wrapping_add(byte.into()),
        }
        at += 1;
    }
    (bytes.len(), None)
}

fn ends_word(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, b',' | b'}' | b']')
}

fn overflows(word: &str) -> bool {
    // Without an exponent it takes more than 300 digits.
    (word.len() > 300 || word.bytes().any(|byte| matches!(byte, b'e' | b'E')))
        && word.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Whether two of these keys are equal once their escapes are resolved.
fn repeats(text: &str, keys: &mut [(u32, u32)], have_escapes: bool) -> bool {
    if !have_escapes {
        return repeats_exactly(text, keys);
    }
    let token = |&(from, to): &(u32, u32)| &text[from as usize..to as usize];
    // Each key is unescaped once, not at every comparison. Unescaped text is never longer, so the
    // offsets still fit.
    let mut read = String::with_capacity(keys.iter().map(|key| token(key).len()).sum());
    for key in keys.iter_mut() {
        let from = read.len();
        read.push_str(&unescaped(token(key)));
        *key = (from as u32, read.len() as u32);
    }
    repeats_exactly(&read, keys)
}

fn repeats_exactly(text: &str, spans: &mut [(u32, u32)]) -> bool {
    let bytes = |&(from, to): &(u32, u32)| &text.as_bytes()[from as usize..to as usize];
    if spans.len() <= 8 {
        let is_repeated = |(n, a)| spans[..n].iter().any(|b| bytes(a) == bytes(b));
        return spans.iter().enumerate().any(is_repeated);
    }
    spans.sort_unstable_by(|a, b| bytes(a).cmp(bytes(b)));
    spans.windows(2).any(|pair| bytes(&pair[0]) == bytes(&pair[1]))
}

/// The depth to which a value may nest that this process makes, in levels.
pub(super) const MAX_DEPTH: usize = 56;

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::json::Json;

    fn written(text: &str) -> Result<Json, JsonError> {
        Json::parse(text)
    }

    fn received(text: &str) -> Result<Json, JsonError> {
        Json::received(&RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn a_key_on_which_the_client_fails_is_rejected_in_every_spelling() {
        for text in [
            r#"{"__proto__":1}"#,
            r#"[{"a":{"__proto__":{}}}]"#,
            r#"{"\u005f_proto__":1}"#,
            r#"{"constructor":{"prototype":1}}"#,
            r#"{"constructor" : { "a" : 1 , "prototype":1}}"#,
        ] {
            assert!(matches!(written(text), Err(JsonError::PrototypeKey)), "{text}");
            assert!(matches!(received(text), Err(JsonError::PrototypeKey)), "{text}");
        }
    }

    #[test]
    fn reserved_keys_are_accepted_as_values_and_in_longer_keys() {
        for text in [
            r#""__proto__""#,
            r#"{"a":"__proto__"}"#,
            r#"{"constructor":"prototype"}"#,
            r#"{"constructor":[null]}"#,
            r#"{"prototype":{"constructor":1},"a":null}"#,
            r#"{"constructor":1,"a":{"prototype":1}}"#,
            r#"{"x":"\"__proto__\":1"}"#,
        ] {
            assert!(written(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn json_that_readers_parse_differently_is_rejected_for_writing_only() {
        for text in [r#"{"constructor":null}"#, r#""\ud800""#, r#""\udc00x""#, "1e400", "[-1e999]"]
        {
            assert!(written(text).is_err(), "{text}");
            assert_eq!(received(text).unwrap().as_str(), text);
        }
        assert!(written(r#""\ud83d\ude00 \\ud800""#).is_ok());
    }

    #[test]
    fn of_a_repeated_key_a_received_value_keeps_the_last_one() {
        let text = r#"{"a":{"__proto__":1},"\u0061":[{"b":1,"b":2}]}"#;
        assert!(matches!(written(text), Err(JsonError::PrototypeKey)));
        assert_eq!(received(text).unwrap().as_str(), r#"{"\u0061":[{"b":2}]}"#);
        let replaces = r#"{"a":1,"a":{"__proto__":1}}"#;
        assert!(matches!(received(replaces), Err(JsonError::PrototypeKey)));
        let raw = RawValue::from_string(r#"{"a":1,"a":1}"#.to_owned()).unwrap();
        assert!(matches!(Json::received_unambiguous(&raw), Err(JsonError::DuplicateKey)));
    }

    #[test]
    fn a_repeated_key_is_found_among_many_keys() {
        let many = |last: &str| {
            let keys: Vec<String> = (0..50).map(|n| format!(r#""k{n}":{{"a":1}}"#)).collect();
            format!("{{{},\"{last}\":1}}", keys.join(","))
        };
        assert!(written(&many("k50")).is_ok());
        assert!(matches!(written(&many("k7")), Err(JsonError::DuplicateKey)));
    }

    #[test]
    fn depth_is_limited_for_written_json_and_received_json_needs_no_recursion() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(written(&nested(Json::MAX_DEPTH)).is_ok());
        assert!(matches!(written(&nested(Json::MAX_DEPTH + 1)), Err(JsonError::TooDeep)));
        assert!(received(&nested(100_000)).is_ok());
    }
}
