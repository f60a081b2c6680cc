//! [`MergedMetadata`]: the metadata of several chunks, merged as the client merges it.
//!
//! Objects are merged field by field at any depth. Every other value replaces the earlier one. The
//! merge target is parsed into fields once, at all levels, and the incoming value is read once. A
//! merge therefore costs the size of the incoming value, at any depth. The text of the merged value
//! is written only when the message is read.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::json::{Json, string_end, unescaped};

/// The metadata of a message.
#[derive(Debug, Clone, Default)]
pub(super) struct MergedMetadata {
    value: Option<Value>,
    has_changed: bool,
}

#[derive(Debug, Clone)]
enum Value {
    /// JSON that nothing was merged into yet.
    Unparsed(Json),
    Object(Box<Fields>),
}

/// An object parsed into its fields, in their order.
#[derive(Debug, Clone, Default)]
struct Fields {
    list: Vec<(Box<str>, Value)>,
    /// The index of each field by its key, once there are more than [`MAX_UNINDEXED`] fields.
    index: HashMap<Box<str>, usize>,
}

/// A cursor over a text that is known to be valid JSON.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

/// The reason why metadata cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeError {
    /// The client looks up a key in a value that has no keys.
    NotMergeable,
    /// The metadata nests deeper than [`MAX_DEPTH`].
    TooDeep,
}

/// The maximum depth of metadata that is merged into other metadata.
pub(super) const MAX_DEPTH: usize = 1000;

/// The keys that the client does not merge.
const SKIPPED: [&str; 3] = ["__proto__", "constructor", "prototype"];

/// The maximum number of fields that are searched one by one.
const MAX_UNINDEXED: usize = 8;

impl MergedMetadata {
    pub(super) fn new(current: Option<Json>) -> Self {
        MergedMetadata { value: current.map(Value::Unparsed), has_changed: false }
    }

    /// Merges the metadata of a chunk. Returns whether the chunk carried any. On an error nothing
    /// changes.
    pub(super) fn merge(&mut self, incoming: Option<&Json>) -> Result<bool, MergeError> {
        let Some(incoming) = incoming.filter(|incoming| !incoming.is_null()) else {
            return Ok(false);
        };
        match &mut self.value {
            Some(base) if !base.is_null() => {
                if depth(incoming.as_str()) > MAX_DEPTH {
                    return Err(MergeError::TooDeep);
                }
                if base.is_scalar() && has_mergeable_fields(incoming) {
                    return Err(MergeError::NotMergeable);
                }
                let fields = base.as_fields(MAX_DEPTH);
                each_field_of(incoming, |key, cursor| fields.merge_field(key, cursor, MAX_DEPTH));
            }
            value => *value = Some(Value::Unparsed(incoming.clone())),
        }
        self.has_changed = true;
        Ok(true)
    }

    /// Returns the metadata if it changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<Json> {
        if !std::mem::take(&mut self.has_changed) {
            return None;
        }
        match self.value.as_ref()? {
            Value::Unparsed(json) => Some(json.clone()),
            // All keys are different, and the keys and values were checked when they were received.
            value => to_raw_value(value).ok().map(Json::from_checked),
        }
    }
}

impl Value {
    fn is_null(&self) -> bool {
        matches!(self, Value::Unparsed(json) if json.is_null())
    }

    fn is_object(&self) -> bool {
        match self {
            Value::Unparsed(json) => json.is_object(),
            Value::Object(_) => true,
        }
    }

    /// Returns whether the value is a string, a number or a boolean.
    fn is_scalar(&self) -> bool {
        matches!(self, Value::Unparsed(json) if !json.as_str().trim_start().starts_with(['{', '[']))
    }

    /// Converts a value of any type into fields, and the objects in it too, `levels` levels deep.
    /// `levels` is at least 1.
    fn as_fields(&mut self, levels: usize) -> &mut Fields {
        match self {
            Value::Object(fields) => fields,
            Value::Unparsed(json) => {
                let mut fields = Fields::default();
                each_field_of(json, |key, cursor| fields.set(key, cursor.value(levels - 1)));
                *self = Value::Object(Box::new(fields));
                self.as_fields(levels)
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Unparsed(json) => json.serialize(serializer),
            Value::Object(fields) => {
                serializer.collect_map(fields.list.iter().map(|(key, value)| (key, value)))
            }
        }
    }
}

impl Fields {
    /// Merges the next value, which nests less deep than `levels`.
    fn merge_field(&mut self, key: &str, cursor: &mut Cursor<'_>, levels: usize) {
        if SKIPPED.contains(&key) {
            cursor.raw();
            return;
        }
        let current = self.position(key).map(|at| &mut self.list[at].1);
        match current {
            Some(current) if current.is_object() && cursor.peek() == Some(b'{') => {
                let fields = current.as_fields(levels - 1);
                cursor.each_field(|key, cursor| fields.merge_field(key, cursor, levels - 1));
            }
            _ => self.set(key, cursor.value(0)),
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        if let Some(at) = self.position(key) {
            self.list[at].1 = value;
            return;
        }
        self.list.push((key.into(), value));
        let indexed = self.index.len();
        if self.list.len() > MAX_UNINDEXED {
            let unindexed = self.list.iter().enumerate().skip(indexed);
            self.index.extend(unindexed.map(|(at, (name, _))| (name.clone(), at)));
        }
    }

    fn position(&self, key: &str) -> Option<usize> {
        if self.list.len() <= MAX_UNINDEXED {
            return self.list.iter().position(|(name, _)| **name == *key);
        }
        self.index.get(key).copied()
    }
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Cursor { text, at: 0 }
    }

    /// Skips white space and returns the next byte.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let spaces = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += spaces;
        rest.get(spaces).copied()
    }

    /// Calls `each` for each field of the object that comes next. `each` must move the cursor past
    /// the value.
    fn each_field(&mut self, mut each: impl FnMut(&str, &mut Self)) {
        self.at += 1;
        while let Some(byte) = self.peek() {
            let from = self.at;
            self.at += 1;
            match byte {
                b'"' => {
                    self.at = string_end(self.text.as_bytes(), from);
                    let key = unescaped(&self.text[from..self.at]);
                    // The colon.
                    self.peek();
                    self.at += 1;
                    each(&key, self);
                }
                b'}' => return,
                // A comma.
                _ => {}
            }
        }
    }

    /// Moves past the next value and returns it, with its objects parsed into fields `levels`
    /// levels deep.
    fn value(&mut self, levels: usize) -> Value {
        if levels > 0 && self.peek() == Some(b'{') {
            let mut fields = Fields::default();
            self.each_field(|key, cursor| fields.set(key, cursor.value(levels - 1)));
            return Value::Object(Box::new(fields));
        }
        let raw = self.raw().map(ToOwned::to_owned);
        Value::Unparsed(raw.map_or_else(Json::null, Json::from_checked))
    }

    /// Moves past the next value and returns its text.
    fn raw(&mut self) -> Option<&'a RawValue> {
        let mut values = serde_json::Deserializer::from_str(self.text.get(self.at..)?).into_iter();
        let raw = values.next()?.ok();
        self.at += values.byte_offset();
        raw
    }
}

/// Calls `each` for each key that the client visits when it loops over the keys of this value: the
/// fields of an object, the indexes of an array, the UTF-16 units of a string.
fn each_field_of(json: &Json, mut each: impl FnMut(&str, &mut Cursor<'_>)) {
    let text = json.as_str().trim();
    match text.as_bytes().first() {
        Some(b'{') => Cursor::new(text).each_field(each),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            for (at, item) in items.into_iter().enumerate() {
                each(&at.to_string(), &mut Cursor::new(item.get()));
            }
        }
        Some(b'"') => {
            for (at, unit) in unescaped(text).encode_utf16().enumerate() {
                each(&at.to_string(), &mut Cursor::new(&unit_text(unit)));
            }
        }
        _ => {}
    }
}

fn has_mergeable_fields(json: &Json) -> bool {
    let mut has_any = false;
    each_field_of(json, |key, cursor| {
        has_any |= !SKIPPED.contains(&key);
        cursor.raw();
    });
    has_any
}

/// Returns the JSON string of one UTF-16 unit, which may be half of a surrogate pair.
fn unit_text(unit: u16) -> String {
    match char::from_u32(unit.into()) {
        Some(whole) => Json::string(whole.encode_utf8(&mut [0; 4])).to_string(),
        None => format!("\"\\u{unit:04x}\""),
    }
}

/// Returns how many levels deep a value nests.
fn depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut open = 0_usize;
    let mut deepest = 0;
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'"' => {
                i = string_end(bytes, i);
                continue;
            }
            b'{' | b'[' => {
                open += 1;
                deepest = deepest.max(open);
            }
            b'}' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        i += 1;
    }
    deepest
}
