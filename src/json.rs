//! [`Json`]: one JSON value as checked, one-line text that is never made a tree.
//!
//! Tool inputs and outputs, data and metadata pass through this crate; nobody here looks inside
//! them. So they travel as text. The check happens once, when the value is made, and what it
//! promises is what the wire needs:
//!
//! - it is one JSON value on one line (a newline would split an SSE frame);
//! - it holds no key that makes the client refuse the whole stream (`__proto__`, or `constructor`
//!   holding `prototype`);
//! - made by [`Json::parse`] or [`Json::of`], it is also no deeper than [`Json::MAX_DEPTH`], repeats
//!   no key, holds no `constructor` of `null` (the first clients die of it), no number beyond a
//!   double and no half of a surrogate pair. (An integer beyond 2^53 still arrives rounded: send it
//!   as a string.)
//!
//! Values that arrive from a peer are held to the first two rules only: what an honest client
//! sends back must never be refused for the looks of a value that nobody here opens.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// One JSON value as checked, one-line text. Cheap to clone, never parsed into a tree.
///
/// Equality compares the text: `{"a":1}` and `{ "a": 1 }` are different `Json`s.
///
/// ```
/// use ui_message_stream::Json;
///
/// let input = Json::parse(r#"{"path":"notes.txt"}"#)?;
/// assert_eq!(input.as_str(), r#"{"path":"notes.txt"}"#);
/// assert!(Json::parse(r#"{"__proto__":1}"#).is_err());
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Clone)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// How deep a value made here may nest.
    ///
    /// A value comes back in the next request inside a part of a message of a list: five or six
    /// levels that count against [`Limits::max_depth`](crate::request::Limits), 64 by default.
    pub const MAX_DEPTH: usize = 56;

    /// Checks a text and keeps it. Newlines between tokens become spaces.
    ///
    /// # Errors
    /// [`JsonError`] names the rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        let raw: &RawValue = serde_json::from_str(text).map_err(JsonError::Syntax)?;
        Self::checked(raw, Strictness::Written)
    }

    /// Serializes a value and checks the text.
    ///
    /// # Errors
    /// [`JsonError::Syntax`] if the value does not serialize, else the rule that its text breaks.
    ///
    /// ```
    /// # use ui_message_stream::Json;
    /// let output = Json::of(&vec![1, 2])?;
    /// assert_eq!(output.as_str(), "[1,2]");
    /// # Ok::<(), ui_message_stream::json::JsonError>(())
    /// ```
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, JsonError> {
        let raw = serde_json::value::to_raw_value(value).map_err(JsonError::Syntax)?;
        Self::checked(&raw, Strictness::Written)
    }

    /// The JSON `null`.
    pub fn null() -> Self {
        Json(Arc::from(RawValue::NULL.to_owned()))
    }

    /// A JSON string holding `text`.
    pub fn string(text: &str) -> Self {
        match serde_json::value::to_raw_value(text) {
            Ok(raw) => Json(Arc::from(raw)),
            // A `str` always serializes; `null` keeps this total without a panic.
            Err(_) => Json::null(),
        }
    }

    /// The text: valid JSON on one line.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        self.as_str().trim() == "null"
    }

    /// Whether this is an object.
    pub fn is_object(&self) -> bool {
        self.as_str().trim_start().starts_with('{')
    }

    /// Reads the value as `T`.
    ///
    /// # Errors
    /// What `serde_json` says of a text that is not a `T`.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }

    /// Keeps a value that a peer sent, refusing only what no client could be sent again.
    pub(crate) fn received(raw: &RawValue) -> Result<Self, JsonError> {
        Self::checked(raw, Strictness::Received)
    }

    /// Like [`Json::received`], and refuses a repeated key: two readers could disagree about it.
    pub(crate) fn received_unambiguous(raw: &RawValue) -> Result<Self, JsonError> {
        Self::checked(raw, Strictness::Unambiguous)
    }

    /// Reads back a value that a peer sent and that was stored since.
    pub(crate) fn deserialize_received<'de, D>(deserializer: D) -> Result<Self, D::Error>
    where
        D: Deserializer<'de>,
    {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Json::checked(&raw, Strictness::Received).map_err(serde::de::Error::custom)
    }

    /// Keeps what is made of values that were checked, and adds nothing that they were checked for.
    pub(crate) fn of_checked(raw: Box<RawValue>) -> Self {
        Json(Arc::from(raw))
    }

    /// Whether the client's schema takes this for metadata, whose every object and number it sees.
    pub(crate) fn check_as_metadata(&self) -> Result<(), JsonError> {
        check(self.as_str(), Strictness::Metadata).map(|_| ())
    }

    fn checked(raw: &RawValue, strictness: Strictness) -> Result<Self, JsonError> {
        let text = raw.get();
        if check(text, strictness)? == Lines::One {
            return Ok(Json(Arc::from(raw.to_owned())));
        }
        // In valid JSON a raw newline stands between tokens only.
        let one_line = text.replace(['\n', '\r'], " ");
        RawValue::from_string(one_line).map(|raw| Json(Arc::from(raw))).map_err(JsonError::Syntax)
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Json {}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Json::checked(&raw, Strictness::Written).map_err(serde::de::Error::custom)
    }
}

/// Why a text is not a [`Json`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// It is not JSON, or the value does not serialize.
    #[error("not JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// It nests deeper than [`Json::MAX_DEPTH`].
    #[error("nested deeper than {} levels", Json::MAX_DEPTH)]
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

/// Whose value it is decides how much is asked of it, beyond being one value that the client's JSON
/// reader takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strictness {
    /// A chunk of any server: what the client accepts.
    Received,
    /// Metadata of any server: the schema takes an object with a key `constructor` for none.
    Metadata,
    /// A request: every reader sees the same value.
    Unambiguous,
    /// Made by this process, for the wire.
    Written,
}

/// Whether a newline stands between the tokens of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    One,
    Several,
}

/// One open `{` or `[`.
struct Container {
    is_object: bool,
    /// It is the value of a key `constructor`.
    of_constructor: bool,
    /// Where its keys begin among all collected ones. Four bytes do: a key takes some, too.
    keys_from: u32,
}

/// Walks a text that is known to be valid JSON, once, without recursion.
///
/// Keys are kept as offsets, eight bytes each, so that a hostile value costs less than itself.
fn check(text: &str, strictness: Strictness) -> Result<Lines, JsonError> {
    let mut lines = Lines::One;
    let bytes = text.as_bytes();
    let mut open: Vec<Container> = Vec::new();
    let mut keys: Vec<(u32, u32)> = Vec::new();
    let mut at_key = false;
    let mut after_constructor = false;
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'{' | b'[' => {
                if strictness == Strictness::Written && open.len() == Json::MAX_DEPTH {
                    return Err(JsonError::TooDeep);
                }
                at_key = byte == b'{';
                open.push(Container {
                    is_object: at_key,
                    of_constructor: std::mem::take(&mut after_constructor),
                    keys_from: u32::try_from(keys.len()).unwrap_or(u32::MAX),
                });
            }
            b'}' | b']' => {
                if let Some(closed) = open.pop() {
                    let keys_from = closed.keys_from as usize;
                    let own = keys.get_mut(keys_from..).unwrap_or_default();
                    if strictness >= Strictness::Unambiguous && repeats(text, own) {
                        return Err(JsonError::DuplicateKey);
                    }
                    keys.truncate(keys_from);
                }
            }
            b',' => {
                at_key = open.last().is_some_and(|container| container.is_object);
                after_constructor = false;
            }
            b':' => at_key = false,
            b'"' => {
                let end = string_end(bytes, i);
                let token = &text[i..end];
                if strictness == Strictness::Written && has_lone_surrogate(token) {
                    return Err(JsonError::LoneSurrogate);
                }
                if at_key {
                    let key = unescaped(token);
                    let of_constructor = open.last().is_some_and(|c| c.of_constructor);
                    if key == "__proto__" || (of_constructor && key == "prototype") {
                        return Err(JsonError::PrototypeKey);
                    }
                    after_constructor = key == "constructor";
                    if after_constructor && strictness == Strictness::Metadata {
                        return Err(JsonError::PrototypeKey);
                    }
                    if strictness >= Strictness::Unambiguous {
                        // Texts beyond 4 GiB are not checked for repeated keys, but kept.
                        if let (Ok(from), Ok(to)) = (u32::try_from(i), u32::try_from(end)) {
                            keys.push((from, to));
                        }
                    }
                }
                i = end;
                continue;
            }
            // The first clients of ai@6 ask `null` for its own properties and die of it.
            b'n' if after_constructor && strictness == Strictness::Written => {
                return Err(JsonError::PrototypeKey);
            }
            b'-' | b'0'..=b'9' => {
                let end = i + bytes[i..].iter().take_while(|b| is_number_byte(**b)).count();
                if matches!(strictness, Strictness::Metadata | Strictness::Written)
                    && overflows(&text[i..end])
                {
                    return Err(JsonError::NumberTooLarge);
                }
                i = end;
                continue;
            }
            b'\n' | b'\r' => lines = Lines::Several,
            _ => {}
        }
        i += 1;
    }
    Ok(lines)
}

/// The offset behind the closing quote of the string that opens at `from`.
pub(crate) fn string_end(bytes: &[u8], from: usize) -> usize {
    let ends = |byte: &u8| (*byte == b'"') | (*byte == b'\\');
    let mut i = from + 1;
    while let Some(rest) = bytes.get(i..) {
        // The loop over a block has no branch inside: the compiler makes it one comparison.
        let (blocks, _) = rest.as_chunks::<16>();
        let is_plain = |block: &&[u8; 16]| !block.iter().fold(false, |any, b| any | ends(b));
        let plain = 16 * blocks.iter().take_while(is_plain).count();
        let Some(end) = rest[plain..].iter().position(ends) else {
            break;
        };
        i += plain + end;
        if bytes[i] == b'"' {
            return i + 1;
        }
        i += 2;
    }
    bytes.len()
}

fn is_number_byte(byte: u8) -> bool {
    matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
}

fn overflows(number: &str) -> bool {
    // Without an exponent it takes more than 300 digits.
    (number.len() > 300 || number.contains(['e', 'E']))
        && number.parse::<f64>().is_ok_and(f64::is_infinite)
}

/// Whether one of these keys stands there twice, written the same or not.
fn repeats(text: &str, keys: &mut [(u32, u32)]) -> bool {
    let token = |&(from, to): &(u32, u32)| &text[from as usize..to as usize];
    if keys.len() <= 8 {
        let key = |at| unescaped(token(at));
        return keys.iter().enumerate().any(|(n, a)| keys[..n].iter().any(|b| key(a) == key(b)));
    }
    if !keys.iter().any(|key| token(key).contains('\\')) {
        return repeats_exactly(text, keys);
    }
    // Read once, not at every comparison. What was shorter than 4 GiB is so still.
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
    spans.sort_unstable_by(|a, b| bytes(a).cmp(bytes(b)));
    spans.windows(2).any(|pair| bytes(&pair[0]) == bytes(&pair[1]))
}

/// The text of a string token, quotes included in `token`; half surrogates become U+FFFD.
pub(crate) fn unescaped(token: &str) -> std::borrow::Cow<'_, str> {
    let inner = token.get(1..token.len().saturating_sub(1)).unwrap_or_default();
    if !inner.contains('\\') {
        return inner.into();
    }
    match serde_json::from_str::<String>(token) {
        Ok(text) => text.into(),
        Err(_) => lossy(token).into(),
    }
}

/// Reads a string token that holds half a surrogate pair, as a browser's string may.
fn lossy(token: &str) -> String {
    struct Bytes;
    impl serde::de::Visitor<'_> for Bytes {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }
        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
            Ok(with_replacements(bytes))
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(token);
    deserializer.deserialize_bytes(Bytes).unwrap_or_default()
}

/// The text of a JSON string as `serde_json` hands it out in bytes: UTF-8, but for half surrogate
/// pairs. Each of them becomes one U+FFFD, as where a browser shows it.
pub(crate) fn with_replacements(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        // Half a pair is encoded as ED and two bytes that are not UTF-8 without it.
        if chunk.invalid() == [0xED] {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

/// Whether a string token holds a `\ud800` … `\udfff` without its other half.
fn has_lone_surrogate(token: &str) -> bool {
    let bytes = token.as_bytes();
    let unit = |at: usize| -> Option<u16> {
        let hex = token.get(at + 2..at + 6)?;
        (bytes.get(at) == Some(&b'\\') && bytes.get(at + 1) == Some(&b'u'))
            .then(|| u16::from_str_radix(hex, 16).ok())
            .flatten()
    };
    let mut i = 0;
    while let Some(offset) = bytes.get(i..).and_then(|rest| rest.iter().position(|b| *b == b'\\')) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Result<Json, JsonError> {
        Json::parse(text)
    }

    fn received(text: &str) -> Result<Json, JsonError> {
        Json::received(&RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn a_key_that_kills_the_client_is_refused_however_it_is_written() {
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
    fn the_same_words_elsewhere_are_harmless() {
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
    fn what_readers_would_see_differently_is_not_written_but_may_be_received() {
        for text in [
            r#"{"constructor":null}"#,
            r#""\ud800""#,
            r#""\udc00x""#,
            "1e400",
            "[-1e999]",
            r#"{"a":1,"\u0061":2}"#,
        ] {
            assert!(written(text).is_err(), "{text}");
            assert!(received(text).is_ok(), "{text}");
        }
        assert!(written(r#""\ud83d\ude00 \\ud800""#).is_ok());
    }

    #[test]
    fn a_repeated_key_is_found_among_many() {
        let many = |last: &str| {
            let keys: Vec<String> = (0..50).map(|n| format!(r#""k{n}":{{"a":1}}"#)).collect();
            format!("{{{},\"{last}\":1}}", keys.join(","))
        };
        assert!(written(&many("k50")).is_ok());
        assert!(matches!(written(&many("k7")), Err(JsonError::DuplicateKey)));
    }

    #[test]
    fn depth_is_bounded_where_it_is_written_and_costs_no_stack_where_it_is_received() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(written(&nested(Json::MAX_DEPTH)).is_ok());
        assert!(matches!(written(&nested(Json::MAX_DEPTH + 1)), Err(JsonError::TooDeep)));
        assert!(received(&nested(100_000)).is_ok());
    }

    #[test]
    fn it_stands_on_one_line() {
        assert_eq!(written("{\n  \"a\":\r\n1}").unwrap().as_str(), "{   \"a\":  1}");
        assert_eq!(Json::string("a\nb").as_str(), r#""a\nb""#);
    }

    #[test]
    fn half_a_surrogate_pair_reads_as_a_replacement_character() {
        assert_eq!(unescaped(r#""a\ud800b""#), "a\u{FFFD}b");
        assert_eq!(unescaped(r#""\udc00\ud800é""#), "\u{FFFD}\u{FFFD}é");
        assert_eq!(unescaped(r#""\ud83d\ude00\n""#), "😀\n");
    }
}
