//! [`snapshot`]: lines to compare, with stable names for values that differ from run to run.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Writes chunks or messages, one per line, with stable names for ids and times.
///
/// The ids of messages, tool calls, approvals, text and reasoning parts and sources, and the
/// signatures of approvals, become `msg-1`, `call-1`, `approval-1`, `text-1`, `reasoning-1`,
/// `source-1` and `signature-1`. They are numbered in the order in which they first appear, and
/// replaced wherever they occur. Within inputs, outputs, data, metadata and text, the id of a
/// message, call, approval or source is replaced only if it is the whole string. A string that is a
/// date with a time (RFC 3339) becomes `time-1`. A number of seconds or milliseconds since 1970
/// becomes `time-1` too if its key ends in `At` or `_at`, or is `time` or `timestamp`.
///
/// Everything else is written as on the wire, with the keys in their original order.
///
/// ```
/// use ui_message_stream::{Chunk, Json};
/// use ui_message_stream::testing::snapshot;
///
/// let (call, output) = ("call_8a61", Json::parse(r#"{"of":"call_8a61","doneAt":1767225600123}"#)?);
/// let chunks = [
///     Chunk::ToolInputDelta { tool_call_id: call.into(), input_text_delta: "call_8a61?".into() },
///     Chunk::Data { name: "job".into(), id: None, data: Some(std::borrow::Cow::Owned(output)), transient: None },
/// ];
/// assert_eq!(
///     snapshot(&chunks),
///     r#"{"type":"tool-input-delta","toolCallId":"call-1","inputTextDelta":"call_8a61?"}
/// {"type":"data-job","data":{"of":"call-1","doneAt":"time-1"}}
/// "#
/// );
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
///
/// # Panics
/// If an item cannot be serialized to JSON. Chunks and messages always can.
#[must_use]
pub fn snapshot<T: Serialize>(items: &[T]) -> String {
    let items: Vec<Box<RawValue>> = items
        .iter()
        .map(|item| serde_json::value::to_raw_value(item).expect("chunks and messages serialize"))
        .collect();
    Names::default().snapshot(&items)
}

/// The kind of thing that an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Approval,
    Call,
    Message,
    Reasoning,
    Signature,
    Source,
    Text,
    Time,
}

impl Kind {
    /// The kinds whose ids are replaced wherever they occur.
    const RECURRING: [Kind; 4] = [Kind::Message, Kind::Call, Kind::Approval, Kind::Source];

    fn word(self) -> &'static str {
        match self {
            Kind::Approval => "approval",
            Kind::Call => "call",
            Kind::Message => "msg",
            Kind::Reasoning => "reasoning",
            Kind::Signature => "signature",
            Kind::Source => "source",
            Kind::Text => "text",
            Kind::Time => "time",
        }
    }
}

/// The position of a value, which decides what its keys mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// A chunk, a message, a part of a message, or a request.
    Protocol,
    /// The `approval` of a part.
    Approval,
    /// A value that the application defines.
    Free,
}

/// The stable names of the ids found so far.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<(Kind, String), String>,
    counts: HashMap<Kind, usize>,
}

impl Names {
    /// Writes these items as [`snapshot`] does. Ids of earlier items keep their names.
    pub(super) fn snapshot(&mut self, items: &[Box<RawValue>]) -> String {
        for item in items {
            self.record(item, Position::Protocol);
        }
        let mut text = String::new();
        for item in items {
            self.write(item, Position::Protocol, "", &mut text);
            text.push('\n');
        }
        text
    }

    /// Writes a request to a route, in which each id and time of `self` is replaced by the one of
    /// the same name in `others`: by the one that was found in the same place.
    pub(super) fn translate(&self, request: &RawValue, others: &Names) -> String {
        let others: HashMap<(Kind, &str), &str> =
            others.known.iter().map(|((kind, id), name)| ((*kind, &**name), &**id)).collect();
        let known = self.known.iter().filter_map(|((kind, id), name)| {
            let other = others.get(&(*kind, name.as_str()))?;
            Some(((*kind, id.clone()), (*other).to_owned()))
        });
        let mut text = String::new();
        let names = Names { known: known.collect(), counts: HashMap::new() };
        names.write(request, Position::Protocol, "", &mut text);
        text
    }

    /// Returns whether this approval was found.
    pub(super) fn has_approval(&self, id: &str) -> bool {
        self.get(Kind::Approval, id).is_some()
    }

    /// Records every id of a value. All values are recorded before the first is written, because an
    /// id may occur in a value before the place that defines it.
    fn record(&mut self, raw: &RawValue, position: Position) {
        match Value::parse(raw) {
            Value::Object(fields) => {
                let kind = Object::from_fields(&fields);
                for (key, raw) in &fields.0 {
                    match (Value::parse(raw), kind.id(key, position)) {
                        (Value::Text(id), Some(kind)) => self.name(kind, &id),
                        _ => self.record(raw, kind.position_of(key, position)),
                    }
                    if is_time_key(key) && is_time_number(raw.get()) {
                        self.name(Kind::Time, raw.get());
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.record(item, position)),
            Value::Text(text) if is_time(&text) => self.name(Kind::Time, &text),
            Value::Text(_) | Value::Other => {}
        }
    }

    fn name(&mut self, kind: Kind, id: &str) {
        self.known.entry((kind, id.to_owned())).or_insert_with(|| {
            let count = self.counts.entry(kind).or_default();
            *count += 1;
            format!("{}-{count}", kind.word())
        });
    }

    fn get(&self, kind: Kind, id: &str) -> Option<&str> {
        self.known.get(&(kind, id.to_owned())).map(String::as_str)
    }

    fn write(&self, raw: &RawValue, position: Position, key: &str, out: &mut String) {
        match Value::parse(raw) {
            Value::Object(fields) => {
                let kind = Object::from_fields(&fields);
                out.push('{');
                for (n, (key, raw)) in fields.0.iter().enumerate() {
                    out.push_str(if n == 0 { "" } else { "," });
                    push_text(key, out);
                    out.push(':');
                    match (Value::parse(raw), kind.id(key, position)) {
                        (Value::Text(id), Some(kind)) => {
                            push_text(self.get(kind, &id).unwrap_or(&id), out);
                        }
                        (Value::Text(word), None) if kind.is_word(key, position) => {
                            push_text(&word, out);
                        }
                        _ => self.write(raw, kind.position_of(key, position), key, out),
                    }
                }
                out.push('}');
            }
            Value::Array(items) => {
                out.push('[');
                for (n, item) in items.iter().enumerate() {
                    out.push_str(if n == 0 { "" } else { "," });
                    self.write(item, position, key, out);
                }
                out.push(']');
            }
            Value::Text(text) => {
                let id = Kind::RECURRING.iter().find_map(|kind| self.get(*kind, &text));
                push_text(id.or_else(|| self.get(Kind::Time, &text)).unwrap_or(&text), out);
            }
            Value::Other => match self.get(Kind::Time, raw.get()).filter(|_| is_time_key(key)) {
                // A translated time is a number again.
                Some(name) if is_time_number(name) => out.push_str(name),
                Some(name) => push_text(name, out),
                None => out.push_str(raw.get()),
            },
        }
    }
}

/// The kind of an object, which decides what its `id` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Message,
    Text,
    Reasoning,
    Other,
}

impl Object {
    fn from_fields(fields: &Fields<'_>) -> Self {
        let word = |name: &str| {
            let field = fields.0.iter().find(|(key, _)| key == name);
            field.and_then(|(_, raw)| serde_json::from_str::<String>(raw.get()).ok())
        };
        match word("type") {
            Some(kind) if kind.starts_with("text-") => Object::Text,
            Some(kind) if kind == "reasoning" || kind.starts_with("reasoning-") => {
                Object::Reasoning
            }
            Some(_) => Object::Other,
            None if word("role").is_some() => Object::Message,
            None => Object::Other,
        }
    }

    /// Returns the kind of id that the field holds, if it holds an id.
    fn id(self, key: &str, position: Position) -> Option<Kind> {
        match (position, key, self) {
            (Position::Protocol, "approvalId", _) | (Position::Approval, "id", _) => {
                Some(Kind::Approval)
            }
            (Position::Protocol, "toolCallId", _) => Some(Kind::Call),
            (Position::Protocol, "messageId", _) | (Position::Protocol, "id", Object::Message) => {
                Some(Kind::Message)
            }
            (Position::Protocol, "id", Object::Reasoning) => Some(Kind::Reasoning),
            (Position::Protocol | Position::Approval, "signature", _) => Some(Kind::Signature),
            (Position::Protocol, "sourceId", _) => Some(Kind::Source),
            (Position::Protocol, "id", Object::Text) => Some(Kind::Text),
            _ => None,
        }
    }

    /// Returns whether the field holds a word of the protocol or the name of a tool.
    fn is_word(self, key: &str, position: Position) -> bool {
        position == Position::Protocol && matches!(key, "type" | "role" | "state" | "toolName")
    }

    fn position_of(self, key: &str, position: Position) -> Position {
        match (position, key) {
            (Position::Protocol, "parts") if self == Object::Message => Position::Protocol,
            (Position::Protocol, "messages") if self == Object::Other => Position::Protocol,
            (Position::Protocol, "approval") => Position::Approval,
            _ => Position::Free,
        }
    }
}

/// A value parsed one level deep. Numbers keep their text, and keys keep their order.
enum Value<'a> {
    Object(Fields<'a>),
    Array(Vec<&'a RawValue>),
    Text(String),
    Other,
}

impl<'a> Value<'a> {
    fn parse(raw: &'a RawValue) -> Self {
        let text = raw.get();
        let value = match text.as_bytes().first() {
            Some(b'{') => serde_json::from_str(text).map(Value::Object),
            Some(b'[') => serde_json::from_str(text).map(Value::Array),
            Some(b'"') => serde_json::from_str(text).map(Value::Text),
            _ => Ok(Value::Other),
        };
        // A string with half of a surrogate pair cannot be a Rust string. It is written unchanged.
        value.unwrap_or(Value::Other)
    }
}

/// The fields of an object in their order.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

fn push_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// Returns whether a text is a date with a time, as RFC 3339 defines it.
fn is_time(text: &str) -> bool {
    let shape = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        10 => matches!(byte, b'T' | b't' | b' '),
        13 | 16 => byte == b':',
        0..19 => byte.is_ascii_digit(),
        _ => matches!(byte, b'0'..=b'9' | b'.' | b':' | b'+' | b'-' | b'Z' | b'z'),
    };
    (19..=40).contains(&text.len()) && text.bytes().enumerate().all(shape)
}

fn is_time_key(key: &str) -> bool {
    key.ends_with("At") || key.ends_with("_at") || matches!(key, "time" | "timestamp")
}

/// Returns whether a number can be seconds or milliseconds since 1970, between 2001 and 2286.
fn is_time_number(number: &str) -> bool {
    let whole = number.split('.').next().unwrap_or_default();
    matches!(whole.len(), 10 | 13) && whole.bytes().all(|byte| byte.is_ascii_digit())
}
