//! [`Json`]: a JSON value, stored as text on one line. The text is checked once and is never parsed
//! into a tree.
//!
//! Tool inputs and outputs, data and metadata pass through this crate, which does not look inside
//! them. The text is checked when the value is created:
//!
//! - It is one JSON value on one line. A newline would split an SSE frame.
//! - It holds no key that makes the client refuse the whole stream: `__proto__`, or `constructor`
//!   with the key `prototype` in its value.
//!
//! [`Json::parse`] and [`Json::from_serialize`] also reject:
//!
//! - nesting deeper than [`Json::MAX_DEPTH`];
//! - a repeated key;
//! - a key `constructor` with the value `null`, which the first clients of `ai@6` refuse;
//! - a number beyond the range of a double;
//! - half of a surrogate pair.
//!
//! An integer beyond 2^53 is accepted, and the client rounds it: send it as a string.
//!
//! Values from a peer need to satisfy only the first two rules, because a request of an honest client
//! must not be rejected for a value that this crate never reads. If such a value repeats a key, only
//! the last field is kept, as in a browser. A request that repeats a key is refused. So no `Json`
//! repeats a key, and two readers never read two different values.

mod check;
mod format;
mod object;
mod repeated_keys;
mod string_token;

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use self::check::JsonError;
pub(crate) use self::format::check_format;
pub use self::format::{Format, FormatError, RecordKind};
pub use self::object::{ExtraFields, FieldError, Object, each_field};
pub(crate) use self::object::{Key, entry_if_any, without};

use self::check::{Lines, Strictness, check};
use self::repeated_keys::without_repeated_keys;
pub use self::string_token::{SplitText, optional_text, with_replaced_halves};
pub(crate) use self::string_token::{string_end, unescaped, with_replacements};

/// A JSON value, stored as checked text on one line. Cheap to clone, never parsed into a tree.
///
/// Of a `serde_json::Value`, write `Json::try_from(value)?`. Of a literal, write [`json!`](crate::json!) in place of
/// the macro of `serde_json`.
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
    /// The maximum nesting depth, in levels, of a value that this server creates.
    ///
    /// The value comes back in the next request inside a part of a message of a list. These five or
    /// six levels count against [`Limits::max_depth`](crate::request::Limits), 64 by default.
    pub const MAX_DEPTH: usize = check::MAX_DEPTH;

    /// Parses a text and checks it. Newlines between tokens become spaces.
    ///
    /// # Errors
    /// [`JsonError::Syntax`] if the text is not JSON, else the rule that it breaks.
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        let raw: &RawValue = serde_json::from_str(text).map_err(JsonError::Syntax)?;
        Self::written(raw)
    }

    /// Serializes a value and checks the text.
    ///
    /// # Errors
    /// [`JsonError::Syntax`] if the value does not serialize, else the rule that its text breaks.
    ///
    /// ```
    /// # use ui_message_stream::Json;
    /// let output = Json::from_serialize(&vec![1, 2])?;
    /// assert_eq!(output.as_str(), "[1,2]");
    /// # Ok::<(), ui_message_stream::json::JsonError>(())
    /// ```
    pub fn from_serialize<T: Serialize + ?Sized>(value: &T) -> Result<Self, JsonError> {
        let raw = serde_json::value::to_raw_value(value).map_err(JsonError::Syntax)?;
        Self::written(&raw)
    }

    /// Creates the JSON `null`.
    pub fn null() -> Self {
        Json(Arc::from(RawValue::NULL.to_owned()))
    }

    /// Creates `null`, which is passed in place of the input schema of a tool that has none.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::approval::DefinitionDigest;
    ///
    /// let definition = DefinitionDigest::new("ring", "Rings the bell.", &Json::no_schema());
    /// # let _ = definition;
    /// ```
    pub fn no_schema() -> Self {
        Self::null()
    }

    /// Creates a JSON string that holds `text`.
    pub fn string(text: &str) -> Self {
        match serde_json::value::to_raw_value(text) {
            Ok(raw) => Json(Arc::from(raw)),
            // A `str` always serializes; `null` keeps this total without a panic.
            Err(_) => Json::null(),
        }
    }

    /// Returns the text: valid JSON on one line.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns whether the value is `null`.
    pub fn is_null(&self) -> bool {
        self.as_str().trim() == "null"
    }

    /// Returns whether the value is an object.
    pub fn is_object(&self) -> bool {
        self.as_str().trim_start().starts_with('{')
    }

    /// Reads the value as `T`.
    ///
    /// # Errors
    /// The error of `serde_json` if the value is not a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }

    /// Accepts a value that a peer sent, as a browser reads it: of a repeated key, the last field.
    /// Half surrogates in keys count as U+FFFD. Refuses only keys that every client refuses.
    pub(crate) fn received(raw: &RawValue) -> Result<Self, JsonError> {
        Self::received_unambiguous(raw).or_else(|_| {
            // The refused key can also be inside a field that a later one replaces.
            let kept = RawValue::from_string(without_repeated_keys(raw.get()));
            Self::received_unambiguous(&kept.map_err(JsonError::Syntax)?)
        })
    }

    /// Accepts a value as [`Json::received`] does, but refuses a repeated key: two readers could
    /// read two different values.
    pub(crate) fn received_unambiguous(raw: &RawValue) -> Result<Self, JsonError> {
        Self::received_within(raw, usize::MAX)
    }

    /// Accepts a value as [`Json::received_unambiguous`] does, but refuses one that nests deeper than `max_depth`
    /// levels.
    pub(crate) fn received_within(raw: &RawValue, max_depth: usize) -> Result<Self, JsonError> {
        Self::checked(raw, Strictness::Unambiguous, max_depth)
    }

    /// Parses a text under the rules of [`Json::received`].
    pub(crate) fn parse_received(text: &str) -> Result<Self, JsonError> {
        Self::received(serde_json::from_str(text).map_err(JsonError::Syntax)?)
    }

    /// Reads a stored value that a peer sent: under the rules of [`Json::received`].
    pub(crate) fn deserialize_received<'de, D>(deserializer: D) -> Result<Self, D::Error>
    where
        D: Deserializer<'de>,
    {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Json::received(&raw).map_err(serde::de::Error::custom)
    }

    /// Creates a value without a check, from text that the caller built out of checked values.
    ///
    /// The caller must add nothing that breaks a rule of the check.
    pub(crate) fn from_checked(raw: Box<RawValue>) -> Self {
        Json(Arc::from(raw))
    }

    /// Checks the value under the client's schema of metadata, which looks at every object and
    /// number in it.
    pub(crate) fn check_as_metadata(&self) -> Result<(), JsonError> {
        check(self.as_str(), Strictness::Metadata, usize::MAX).map(|_| ())
    }

    fn written(raw: &RawValue) -> Result<Self, JsonError> {
        Self::checked(raw, Strictness::Written, Self::MAX_DEPTH)
    }

    fn checked(
        raw: &RawValue,
        strictness: Strictness,
        max_depth: usize,
    ) -> Result<Self, JsonError> {
        let text = raw.get();
        if check(text, strictness, max_depth)? == Lines::One {
            return Ok(Json(Arc::from(raw.to_owned())));
        }
        // In valid JSON a raw newline stands between tokens only.
        let one_line = text.replace(['\n', '\r'], " ");
        RawValue::from_string(one_line).map(|raw| Json(Arc::from(raw))).map_err(JsonError::Syntax)
    }
}

/// Creates a [`Json`] of a literal, as `serde_json::json!` creates a `Value`, or of any value that serializes.
///
/// Returns a `Result`, because a value in the literal may break a [rule](mod@crate::json) of `Json`.
///
/// ```
/// use ui_message_stream::{AgentEvent, event::ToolCall, json};
///
/// let path = "notes.txt";
/// let input = json!({ "path": path })?;
/// assert_eq!(input.as_str(), r#"{"path":"notes.txt"}"#);
/// let event = AgentEvent::tool_input(ToolCall::new("call_1", "delete_file"), input);
/// # let _ = event;
///
/// let from_your_agent = serde_json::json!([1, 2]);
/// assert_eq!(json!(from_your_agent)?.as_str(), "[1,2]");
/// assert!(json!({ "__proto__": 1 }).is_err());
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
///
/// # Errors
/// As for [`Json::from_serialize`](crate::Json::from_serialize).
#[macro_export]
macro_rules! json {
    ($($literal:tt)+) => {
        $crate::Json::from_serialize(&$crate::__serde_json::json!($($literal)+))
    };
}

/// # Errors
/// As for [`Json::from_serialize`].
impl TryFrom<&serde_json::Value> for Json {
    type Error = JsonError;

    fn try_from(value: &serde_json::Value) -> Result<Self, JsonError> {
        Json::from_serialize(value)
    }
}

/// # Errors
/// As for [`Json::from_serialize`].
impl TryFrom<serde_json::Value> for Json {
    type Error = JsonError;

    fn try_from(value: serde_json::Value) -> Result<Self, JsonError> {
        Json::from_serialize(&value)
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

/// Deserializes an optional value that may be `null`: with `#[serde(default)]`, a missing field is
/// `None`, and `null` is a value.
///
/// # Errors
/// Those of [`Json`].
pub fn json_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Json::written(&raw).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_serde_json_is_checked() {
        let value = serde_json::json!({"path": "notes.txt"});
        assert_eq!(Json::try_from(&value).unwrap().as_str(), r#"{"path":"notes.txt"}"#);
        assert!(Json::try_from(serde_json::json!({"__proto__": 1})).is_err());
    }

    #[test]
    fn json_text_is_on_one_line() {
        assert_eq!(Json::parse("{\n  \"a\":\r\n1}").unwrap().as_str(), "{   \"a\":  1}");
        assert_eq!(Json::string("a\nb").as_str(), r#""a\nb""#);
    }
}
