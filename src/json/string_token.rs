//! String tokens of a JSON text, quotes and escapes included: their end and their value.

use std::borrow::Cow;
use std::fmt;

use memchr::{memchr, memchr2};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

/// Returns the offset behind the closing quote of the string that opens at `from`.
pub(crate) fn string_end(bytes: &[u8], from: usize) -> usize {
    end_and_escapes(bytes, from).0
}

/// Returns the offset behind the closing quote of the string that opens at `from`, and whether the string has escapes.
pub(super) fn end_and_escapes(bytes: &[u8], from: usize) -> (usize, bool) {
    let (mut at, mut has_escapes) = (from + 1, false);
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return (at + 1, has_escapes);
        }
        has_escapes = true;
        at += 2;
    }
    (bytes.len(), has_escapes)
}

/// Returns the value of a string token, which includes its quotes. Half surrogates become U+FFFD.
pub(crate) fn unescaped(token: &str) -> Cow<'_, str> {
    let inner = token.get(1..token.len().saturating_sub(1)).unwrap_or_default();
    if memchr(b'\\', inner.as_bytes()).is_none() {
        return inner.into();
    }
    match serde_json::from_str::<String>(token) {
        Ok(text) => text.into(),
        Err(_) => lossy(token).into(),
    }
}

/// Reads a string token that holds half a surrogate pair, as a browser's string may.
fn lossy(token: &str) -> String {
    let mut deserializer = serde_json::Deserializer::from_str(token);
    deserializer.deserialize_bytes(TextVisitor).unwrap_or_default()
}

/// Decodes the bytes of a JSON string as `serde_json` passes them to a visitor: UTF-8, except for
/// half surrogate pairs. Each half becomes one U+FFFD, as in a browser's display.
pub(crate) fn with_replacements(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        // Half a pair is encoded as ED and two more bytes, which are invalid UTF-8 by themselves.
        if chunk.invalid() == [0xED] {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

/// Deserializes a text from a browser, for `#[serde(deserialize_with)]`. Half surrogates become
/// U+FFFD.
pub fn optional_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(text)| text))
}

struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As bytes: half a surrogate pair is then not an error.
        deserializer.deserialize_bytes(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = String;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
        Ok(with_replacements(bytes))
    }
}

/// Whether a string token holds a `\ud800` … `\udfff` without its other half.
pub(super) fn has_lone_surrogate(token: &str) -> bool {
    let bytes = token.as_bytes();
    let unit = |at| escaped_unit(token, at);
    let mut i = 0;
    while let Some(offset) = bytes.get(i..).and_then(|rest| memchr(b'\\', rest)) {
        i += offset;
        match unit(i) {
            Some(0xD800..=0xDBFF) => match unit(i + 6) {
                Some(0xDC00..=0xDFFF) => i += 12,
                _ => return true,
            },
            Some(0xDC00..=0xDFFF) => return true,
            Some(_) => i += 6,
            None => i += 2,
        }
    }
    false
}

/// Returns the second half of a surrogate pair with which a string token begins, and the first half with which it ends.
pub(crate) fn split_halves(token: &str) -> (Option<u16>, Option<u16>) {
    let second = escaped_unit(token, 1).filter(|unit| (0xDC00..0xE000).contains(unit));
    let at = token.len().saturating_sub(r#"\ud83d""#.len());
    let backslashes = token.bytes().take(at).rev().take_while(|byte| *byte == b'\\').count();
    let first = escaped_unit(token, at).filter(|_| backslashes % 2 == 0);
    (second, first.filter(|unit| (0xD800..0xDC00).contains(unit)))
}

/// Returns the UTF-16 unit of the escape `\uXXXX` at this offset.
fn escaped_unit(token: &str, at: usize) -> Option<u16> {
    let hex = token.get(at..at + 6)?.strip_prefix("\\u")?;
    u16::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpaired_surrogate_reads_as_a_replacement_character() {
        assert_eq!(unescaped(r#""a\ud800b""#), "a\u{FFFD}b");
        assert_eq!(unescaped(r#""\udc00\ud800é""#), "\u{FFFD}\u{FFFD}é");
        assert_eq!(unescaped(r#""\ud83d\ude00\n""#), "😀\n");
    }
}
