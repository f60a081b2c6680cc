//! [`MergedMetadata`]: what the metadata of several chunks adds up to, merged as the client merges it.
//!
//! Objects are merged field by field, however deep; everything else replaces what was there. A level
//! is taken apart when something is first merged into it, and put together when somebody looks.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::held;
use crate::json::{Json, unescaped};
use crate::record::each_field;

/// A message's metadata.
#[derive(Debug, Clone, Default)]
pub(super) struct MergedMetadata {
    value: Option<Value>,
    changed: bool,
}

#[derive(Debug, Clone)]
enum Value {
    Whole(Json),
    Object(Fields),
}

/// An object that was taken apart, its fields in their order.
#[derive(Debug, Clone, Default)]
struct Fields {
    list: Vec<(Box<str>, Value)>,
    places: HashMap<Box<str>, usize>,
}

/// Why metadata cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeError {
    /// The client looks for a key in what has none.
    NotMergeable,
    /// It nests deeper than [`MAX_DEPTH`].
    TooDeep,
}

/// How deep metadata may nest that is merged into other metadata. The client's stack ends somewhere
/// between 1 500 and 2 000 levels.
pub(super) const MAX_DEPTH: usize = 1000;

/// Keys that the client does not merge.
const SKIPPED: [&str; 3] = ["__proto__", "constructor", "prototype"];

impl MergedMetadata {
    pub(super) fn of(held: Option<Json>) -> Self {
        MergedMetadata { value: held.map(Value::Whole), changed: false }
    }

    /// Merges what a chunk brought and says whether it brought anything. An error changes nothing.
    pub(super) fn merge(&mut self, brought: Option<&Json>) -> Result<bool, MergeError> {
        let Some(brought) = brought.filter(|brought| !brought.is_null()) else {
            return Ok(false);
        };
        let brought = held::json(brought);
        match &mut self.value {
            Some(base) if !base.is_null() => {
                if depth(brought.as_str()) > MAX_DEPTH {
                    return Err(MergeError::TooDeep);
                }
                let fields = mergeable_fields_of(&brought);
                if base.is_scalar() && !fields.is_empty() {
                    return Err(MergeError::NotMergeable);
                }
                base.as_fields().merge(fields);
            }
            value => *value = Some(Value::Whole(brought)),
        }
        self.changed = true;
        Ok(true)
    }

    /// The metadata, if it is another one than when it was last asked for.
    pub(super) fn take_change(&mut self) -> Option<Json> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let value = self.value.as_ref()?;
        if let Value::Whole(json) = value {
            return Some(json.clone());
        }
        let mut text = String::new();
        value.write(&mut text);
        held::parse(&text)
    }
}

impl Value {
    fn is_null(&self) -> bool {
        matches!(self, Value::Whole(json) if json.is_null())
    }

    fn is_object(&self) -> bool {
        match self {
            Value::Whole(json) => json.is_object(),
            Value::Object(_) => true,
        }
    }

    /// Whether it is a string, a number or a boolean.
    fn is_scalar(&self) -> bool {
        matches!(self, Value::Whole(json) if !json.as_str().trim_start().starts_with(['{', '[']))
    }

    /// Takes the value apart, whatever it is: an array becomes an object with its places as keys, a
    /// text one of its UTF-16 units, anything else an empty one.
    fn as_fields(&mut self) -> &mut Fields {
        match self {
            Value::Object(fields) => fields,
            Value::Whole(json) => {
                let mut fields = Fields::default();
                for (key, value) in fields_of(json) {
                    fields.set(key, Value::Whole(value));
                }
                *self = Value::Object(fields);
                self.as_fields()
            }
        }
    }

    fn write(&self, text: &mut String) {
        let fields = match self {
            Value::Whole(json) => return text.push_str(json.as_str()),
            Value::Object(fields) => fields,
        };
        text.push('{');
        for (at, (key, value)) in fields.list.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            text.push_str(Json::string(key).as_str());
            text.push(':');
            value.write(text);
        }
        text.push('}');
    }
}

impl Fields {
    fn merge(&mut self, brought: Vec<(Box<str>, Json)>) {
        for (key, value) in brought {
            let held = self.places.get(&key).map(|at| &mut self.list[*at].1);
            match held {
                Some(held) if value.is_object() && held.is_object() => {
                    let fields = mergeable_fields_of(&value);
                    // Else each level of a deep value would keep its copy of what is below it.
                    drop(value);
                    held.as_fields().merge(fields);
                }
                _ => self.set(key, Value::Whole(value)),
            }
        }
    }

    fn set(&mut self, key: Box<str>, value: Value) {
        match self.places.get(&key) {
            Some(at) => self.list[*at].1 = value,
            None => {
                self.places.insert(key.clone(), self.list.len());
                self.list.push((key, value));
            }
        }
    }
}

/// The fields of what is merged into something.
fn mergeable_fields_of(json: &Json) -> Vec<(Box<str>, Json)> {
    let mut fields = fields_of(json);
    fields.retain(|(key, _)| !SKIPPED.contains(&&**key));
    fields
}

/// What the client goes through when it goes through the keys of a value.
fn fields_of(json: &Json) -> Vec<(Box<str>, Json)> {
    let text = json.as_str().trim_start();
    let mut fields = Vec::new();
    let mut add = |key: &str, raw: &RawValue| {
        fields.extend(Json::received(raw).ok().map(|value| (Box::from(key), value)));
    };
    match text.as_bytes().first() {
        Some(b'{') => {
            // It is an object that was checked when it was made.
            let _ = each_field(text, add);
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            for (at, item) in items.into_iter().enumerate() {
                add(&at.to_string(), item);
            }
        }
        Some(b'"') => {
            for (at, unit) in unescaped(text.trim_end()).encode_utf16().enumerate() {
                fields.extend(unit_text(unit).map(|value| (Box::from(at.to_string()), value)));
            }
        }
        _ => {}
    }
    fields
}

/// A text of one UTF-16 unit, which may be half a character.
fn unit_text(unit: u16) -> Option<Json> {
    match char::from_u32(unit.into()) {
        Some(whole) => Some(Json::string(whole.encode_utf8(&mut [0; 4]))),
        None => held::parse(&format!("\"\\u{unit:04x}\"")),
    }
}

/// How deep a value nests.
fn depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut open, mut deepest, mut i) = (0_usize, 0, 0);
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'"' => {
                i = crate::json::string_end(bytes, i);
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
