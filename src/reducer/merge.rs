//! [`MergedMetadata`]: what the metadata of several chunks adds up to, merged as the client merges it.
//!
//! Objects are merged field by field, however deep; everything else replaces what was there. What is
//! merged into is taken apart once, all the way down, and what is merged is gone through once: so a
//! merge costs what it brings, however deep it nests. The text of it all is written when somebody
//! looks.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::held;
use crate::json::{Json, string_end, unescaped};

/// A message's metadata.
#[derive(Debug, Clone, Default)]
pub(super) struct MergedMetadata {
    value: Option<Value>,
    changed: bool,
}

#[derive(Debug, Clone)]
enum Value {
    /// Nothing was merged into it yet.
    Whole(Json),
    Object(Box<Fields>),
}

/// An object that was taken apart, its fields in their order.
#[derive(Debug, Clone, Default)]
struct Fields {
    list: Vec<(Box<str>, Value)>,
    /// Where they stand, once there are more than [`FEW`].
    places: HashMap<Box<str>, usize>,
}

/// A text that is known to be JSON, as it is gone through.
struct Walk<'a> {
    text: &'a str,
    at: usize,
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

/// So many fields are searched one by one.
const FEW: usize = 8;

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
                if base.is_scalar() && has_mergeable_fields(&brought) {
                    return Err(MergeError::NotMergeable);
                }
                let fields = base.as_fields(MAX_DEPTH);
                each_field_of(&brought, |key, walk| fields.merge_field(key, walk, MAX_DEPTH));
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
        match self.value.as_ref()? {
            Value::Whole(json) => Some(json.clone()),
            // Fields whose keys are all different and were checked, as their values were.
            value => to_raw_value(value).ok().map(Json::of_checked),
        }
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

    /// Takes the value apart, whatever it is, and the objects in it: `levels` levels, at least one.
    fn as_fields(&mut self, levels: usize) -> &mut Fields {
        match self {
            Value::Object(fields) => fields,
            Value::Whole(json) => {
                let mut fields = Fields::default();
                each_field_of(json, |key, walk| fields.set(key, walk.value(levels - 1)));
                *self = Value::Object(Box::new(fields));
                self.as_fields(levels)
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Whole(json) => json.serialize(serializer),
            Value::Object(fields) => {
                serializer.collect_map(fields.list.iter().map(|(key, value)| (key, value)))
            }
        }
    }
}

impl Fields {
    /// Merges the value that comes next, which nests less deep than `levels`.
    fn merge_field(&mut self, key: &str, walk: &mut Walk<'_>, levels: usize) {
        if SKIPPED.contains(&key) {
            walk.raw();
            return;
        }
        let held = self.place(key).map(|at| &mut self.list[at].1);
        match held {
            Some(held) if held.is_object() && walk.peek() == Some(b'{') => {
                let fields = held.as_fields(levels - 1);
                walk.each_field(|key, walk| fields.merge_field(key, walk, levels - 1));
            }
            _ => self.set(key, walk.value(0)),
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        if let Some(at) = self.place(key) {
            self.list[at].1 = value;
            return;
        }
        self.list.push((key.into(), value));
        let noted = self.places.len();
        if self.list.len() > FEW {
            let unnoted = self.list.iter().enumerate().skip(noted);
            self.places.extend(unnoted.map(|(at, (name, _))| (name.clone(), at)));
        }
    }

    fn place(&self, key: &str) -> Option<usize> {
        if self.list.len() <= FEW {
            return self.list.iter().position(|(name, _)| **name == *key);
        }
        self.places.get(key).copied()
    }
}

impl<'a> Walk<'a> {
    fn of(text: &'a str) -> Self {
        Walk { text, at: 0 }
    }

    /// What comes next, past any space.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let spaces = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.at += spaces;
        rest.get(spaces).copied()
    }

    /// Goes through the fields of the object that comes next; each is to go past its value.
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

    /// Goes past the next value, and keeps it, its objects taken apart `levels` levels deep.
    fn value(&mut self, levels: usize) -> Value {
        if levels > 0 && self.peek() == Some(b'{') {
            let mut fields = Fields::default();
            self.each_field(|key, walk| fields.set(key, walk.value(levels - 1)));
            return Value::Object(Box::new(fields));
        }
        let raw = self.raw().map(ToOwned::to_owned);
        Value::Whole(raw.map_or_else(Json::null, Json::of_checked))
    }

    /// Goes past the next value.
    fn raw(&mut self) -> Option<&'a RawValue> {
        let mut values = serde_json::Deserializer::from_str(self.text.get(self.at..)?).into_iter();
        let raw = values.next()?.ok();
        self.at += values.byte_offset();
        raw
    }
}

/// Goes through what the client goes through when it goes through the keys of a value: the fields of
/// an object, the items of an array by their places, the UTF-16 units of a text.
fn each_field_of(json: &Json, mut each: impl FnMut(&str, &mut Walk<'_>)) {
    let text = json.as_str().trim();
    match text.as_bytes().first() {
        Some(b'{') => Walk::of(text).each_field(each),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            for (at, item) in items.into_iter().enumerate() {
                each(&at.to_string(), &mut Walk::of(item.get()));
            }
        }
        Some(b'"') => {
            for (at, unit) in unescaped(text).encode_utf16().enumerate() {
                each(&at.to_string(), &mut Walk::of(&unit_text(unit)));
            }
        }
        _ => {}
    }
}

fn has_mergeable_fields(json: &Json) -> bool {
    let mut has_any = false;
    each_field_of(json, |key, walk| {
        has_any |= !SKIPPED.contains(&key);
        walk.raw();
    });
    has_any
}

/// The JSON of one UTF-16 unit, which may be half a character.
fn unit_text(unit: u16) -> String {
    match char::from_u32(unit.into()) {
        Some(whole) => Json::string(whole.encode_utf8(&mut [0; 4])).to_string(),
        None => format!("\"\\u{unit:04x}\""),
    }
}

/// How deep a value nests.
fn depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut open, mut deepest, mut i) = (0_usize, 0, 0);
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
