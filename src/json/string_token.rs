//! String tokens of a JSON text, quotes and escapes included: their end and their value.

use std::borrow::Cow;
use std::fmt;

use memchr::{memchr, memchr2};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Returns the offset behind the closing quote of the string that opens at `from`.
pub(crate) fn string_end(bytes: &[u8], from: usize) -> usize {
    end_and_escapes(bytes, from).0
}

/// Returns the offset behind the closing quote of the string that opens at `from`, and whether the string has escapes.
pub(super) fn end_and_escapes(bytes: &[u8], from: usize) -> (usize, bool) {
    let mut at = from + 1;
    let mut has_escapes = false;
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
    serde_json::from_str::<String>(&with_replaced_halves(token)).unwrap_or_default().into()
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
    lone_surrogates(token).next().is_some()
}

/// Returns a JSON text with `\ufffd` in place of each `\ud800` … `\udfff` without its other half, which `serde_json`
/// does not accept in a string.
pub fn with_replaced_halves(json: &str) -> Cow<'_, str> {
    let mut replaced = Cow::Borrowed(json);
    for at in lone_surrogates(json) {
        replaced.to_mut().replace_range(at..at + 6, r"\ufffd");
    }
    replaced
}

/// Returns the offset of each `\ud800` … `\udfff` without its other half. A JSON text has escapes only in its strings.
fn lone_surrogates(json: &str) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at += memchr(b'\\', json.as_bytes().get(at..)?)?;
            let found = at;
            let unit = |at| escaped_unit(json, at);
            match unit(at) {
                Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => at += 12,
                Some(0xD800..=0xDFFF) => {
                    at += 6;
                    return Some(found);
                }
                Some(_) => at += 6,
                None => at += 2,
            }
        }
    })
}

/// A text that arrives in pieces, which another program may have split between the two halves of a character.
///
/// Texts in JavaScript and Java are UTF-16, where a character such as 😀 has two halves, `\ud83d` and `\ude00`. No Rust
/// string can hold one of them. If a piece ends with the first half, the half is kept, and the whole character stands
/// before the next piece. U+FFFD stands for a half without the other one.
#[derive(Debug, Default, Clone)]
pub struct SplitText {
    /// The half with which the last piece ended.
    first: Option<u16>,
}

impl SplitText {
    /// Reads the next piece. Returns `None` if it is not a string.
    pub fn push<'t>(&mut self, piece: &'t RawValue) -> Option<Cow<'t, str>> {
        let token = piece.get();
        if !token.starts_with('"') {
            return None;
        }
        let read = unescaped(token);
        let (second, first) = split_halves(token);
        if read.is_empty() || self.first.is_none() && first.is_none() {
            return Some(read);
        }
        let mut text = String::with_capacity(read.len() + REPLACED.len_utf8());
        let mut rest = &*read;
        if let Some(begun) = std::mem::replace(&mut self.first, first) {
            let whole = second.and_then(|second| joined(begun, second));
            text.push(whole.unwrap_or(REPLACED));
            if whole.is_some() {
                rest = rest.strip_prefix(REPLACED).unwrap_or(rest);
            }
        }
        if first.is_some() {
            rest = rest.strip_suffix(REPLACED).unwrap_or(rest);
        }
        text.push_str(rest);
        Some(text.into())
    }

    /// Whether the last piece ended with the first half of a character.
    pub fn is_pending(&self) -> bool {
        self.first.is_some()
    }

    /// Ends the text. Returns U+FFFD if the second half of its last character is missing.
    pub fn end(&mut self) -> Option<char> {
        self.first.take().map(|_| REPLACED)
    }
}

fn joined(first: u16, second: u16) -> Option<char> {
    char::decode_utf16([first, second]).next()?.ok()
}

const REPLACED: char = char::REPLACEMENT_CHARACTER;

/// Returns the second half of a surrogate pair with which a string token begins, and the first half with which it ends.
fn split_halves(token: &str) -> (Option<u16>, Option<u16>) {
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

    #[test]
    fn an_unpaired_surrogate_in_a_json_text_is_replaced() {
        for (json, expected) in [
            (
                r#"{"a":"\ud800","b":["x\uDC00\ud83d\ude00"]}"#,
                r#"{"a":"\ufffd","b":["x\ufffd\ud83d\ude00"]}"#,
            ),
            (r#""\\ud800\ud800\ud83d\ude00""#, r#""\\ud800\ufffd\ud83d\ude00""#),
            (r#""\ud83d"#, r#""\ufffd"#),
        ] {
            assert_eq!(with_replaced_halves(json), expected);
        }
        assert!(matches!(with_replaced_halves(r#""\ud83d\ude00""#), Cow::Borrowed(_)));
    }

    #[test]
    fn a_text_that_ends_with_half_a_character_ends_with_a_replacement_character() {
        let mut text = SplitText::default();
        let mut push = |piece: &str| {
            let piece = RawValue::from_string(piece.to_owned()).unwrap();
            text.push(&piece).map(Cow::into_owned)
        };
        assert_eq!(push(r#""a\ud83d""#).as_deref(), Some("a"));
        assert_eq!(push("12"), None);
        assert_eq!(push(r#""\ude00\ud83d""#).as_deref(), Some("😀"));
        assert_eq!((text.end(), text.end()), (Some('\u{FFFD}'), None));
    }
}
