//! JSON objects read in one pass, their fields still text, in their order.
//!
//! Chunks and message parts name their kind in a `type` that may stand anywhere, carry JSON that
//! nobody here opens, and may hold fields of a later version. serde's own tagged enums would
//! buffer all of that as a tree. An object read here gives up the fields that are known, one by
//! one, and what is left is what the reader did not know: [`Extra`].

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde_json::value::RawValue;

use crate::json::{Json, JsonError, unescaped, with_replacements};
use crate::metadata::MetadataError;

/// An object's fields as text. Of two equal keys the last one counts, as in a browser.
#[derive(Debug, Default)]
pub(crate) struct Object<'a> {
    fields: Vec<(Cow<'a, str>, Option<&'a RawValue>)>,
    /// Fields that [`Object::add`] did not know, in one piece: `"a":1,"b":2`.
    unknown: String,
}

impl<'a> Object<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Adds a field, for a reader that goes through an object by itself: one of `known`, and not
    /// for the second time, or else one more that is not known.
    ///
    /// However many unknown fields there are, they cost what their text costs.
    pub(crate) fn add(
        &mut self,
        key: &str,
        value: &'a RawValue,
        known: &[&'static str],
    ) -> Result<(), FieldError> {
        let Some(&key) = known.iter().find(|known| **known == key) else {
            push_field(&mut self.unknown, key, value);
            return Ok(());
        };
        if self.fields.iter().any(|(name, _)| name == key) {
            return Err(FieldError::new(key, "given twice"));
        }
        self.fields.push((Cow::Borrowed(key), Some(value)));
        Ok(())
    }

    /// Takes a field out.
    pub(crate) fn take(&mut self, key: &str) -> Option<&'a RawValue> {
        let mut found = None;
        for (name, value) in &mut self.fields {
            if name == key {
                found = value.take().or(found);
            }
        }
        found
    }

    /// Takes a string out; absent is an error.
    pub(crate) fn text(&mut self, key: &'static str) -> Result<Cow<'a, str>, FieldError> {
        self.text_if_any(key)?.ok_or_else(|| FieldError::missing(key))
    }

    /// Takes a string out if it is there.
    pub(crate) fn text_if_any(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Cow<'a, str>>, FieldError> {
        match self.take(key) {
            None => Ok(None),
            Some(raw) if raw.get().starts_with('"') => Ok(Some(unescaped(raw.get()))),
            Some(_) => Err(FieldError::expected(key, "a string")),
        }
    }

    /// Takes a boolean out if it is there.
    pub(crate) fn flag_if_any(&mut self, key: &'static str) -> Result<Option<bool>, FieldError> {
        match self.take(key).map(RawValue::get) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(FieldError::expected(key, "a boolean")),
        }
    }

    /// Takes a value of any kind out if it is there. `null` is a value.
    pub(crate) fn json_if_any(&mut self, key: &'static str) -> Result<Option<Json>, FieldError> {
        let json = self.take(key).map(Json::received_unambiguous).transpose();
        json.map_err(|error| FieldError::json(key, &error))
    }

    /// The fields that nobody took, in their order.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.fields.iter().filter_map(|(key, value)| value.map(|value| (&**key, value)))
    }

    /// The unknown fields and those that nobody took, to keep.
    pub(crate) fn into_extra(mut self) -> Result<Extra, FieldError> {
        let mut text = std::mem::take(&mut self.unknown);
        for (key, value) in self.rest() {
            push_field(&mut text, key, value);
        }
        Extra::of_fields(text).map_err(|error| FieldError::json("", &error))
    }
}

/// Writes one more field behind others.
fn push_field(fields: &mut String, key: &str, value: &RawValue) {
    if !fields.is_empty() {
        fields.push(',');
    }
    // A `str` always serializes.
    fields.push_str(&serde_json::to_string(key).unwrap_or_default());
    fields.push(':');
    fields.push_str(value.get());
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(6);
                while let Some(Key(key)) = map.next_key()? {
                    fields.push((key, Some(map.next_value()?)));
                }
                Ok(Object { fields, unknown: String::new() })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Goes through an object's fields in their order and keeps none, however many there are.
pub(crate) fn each_field<'a>(
    object: &'a str,
    mut each: impl FnMut(&str, &'a RawValue),
) -> Result<(), serde_json::Error> {
    struct Fields<F>(F);
    impl<'de, F: FnMut(&str, &'de RawValue)> Visitor<'de> for Fields<F> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
            while let Some(Key(key)) = map.next_key()? {
                (self.0)(&key, map.next_value()?);
            }
            Ok(())
        }
    }
    serde_json::Deserializer::from_str(object).deserialize_map(Fields(&mut each))
}

/// A key that borrows when it holds no escape, which serde's own `Cow` never does.
pub(crate) struct Key<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
                Ok(Key(match std::str::from_utf8(bytes) {
                    Ok(text) => Cow::Borrowed(text),
                    Err(_) => Cow::Owned(with_replacements(bytes)),
                }))
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(with_replacements(bytes))))
            }
        }
        // As bytes, half a surrogate pair is not an error.
        deserializer.deserialize_bytes(Text)
    }
}

/// The fields of an object that this crate does not know, kept as they came.
///
/// They are one piece of checked text: cheap to clone, and no larger than what was sent.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Extra(Option<Json>);

impl Extra {
    /// Keeps fields that stand as text: `"a":1,"b":2`.
    fn of_fields(mut fields: String) -> Result<Self, JsonError> {
        if fields.is_empty() {
            return Ok(Extra(None));
        }
        fields.insert(0, '{');
        fields.push('}');
        let raw = RawValue::from_string(fields).map_err(JsonError::Syntax)?;
        Json::received_unambiguous(&raw).map(|json| Extra(Some(json)))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The value of one field.
    pub fn get(&self, name: &str) -> Option<Json> {
        let mut found = None;
        self.each(|key, value| {
            if key == name {
                found = Json::received_unambiguous(value).ok();
            }
        });
        found
    }

    /// All of them as one object, if there are any.
    pub fn as_json(&self) -> Option<&Json> {
        self.0.as_ref()
    }

    /// Reads all of them as `T`; none reads as `{}`.
    ///
    /// # Errors
    /// What `serde_json` says of fields that are not a `T`.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.as_ref().map_or("{}", Json::as_str))
    }

    /// Writes the fields behind the known ones of their object.
    pub(crate) fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let mut written = Ok(());
        self.each(|key, value| {
            if written.is_ok() {
                written = map.serialize_entry(key, value);
            }
        });
        written
    }

    /// The fields but for some, or nothing if there are none of those.
    pub(crate) fn without(&self, names: &[&str]) -> Option<Self> {
        Some(Extra(without(self.0.as_ref()?, names)?))
    }

    fn each(&self, each: impl FnMut(&str, &RawValue)) {
        if let Some(object) = &self.0 {
            // It was an object when it was made.
            let _ = each_field(object.as_str(), each);
        }
    }
}

impl fmt::Debug for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("{}", Json::as_str))
    }
}

/// An object but for some fields, or nothing if it has none of those.
pub(crate) fn without(object: &Json, names: &[&str]) -> Option<Option<Json>> {
    let mut has_any = false;
    each_field(object.as_str(), |key, _| has_any |= names.contains(&key)).ok()?;
    if !has_any {
        return None;
    }
    let mut text = String::new();
    let keep = |key: &str, value: &RawValue| {
        if !names.contains(&key) {
            push_field(&mut text, key, value);
        }
    };
    each_field(object.as_str(), keep).ok()?;
    Extra::of_fields(text).ok().map(|extra| extra.0)
}

/// What is wrong with one field of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    field: Cow<'static, str>,
    problem: Cow<'static, str>,
}

impl FieldError {
    /// Says it of a field, named by its path in the body: `clientTools[0].name`.
    pub fn new(field: impl Into<Cow<'static, str>>, problem: impl Into<Cow<'static, str>>) -> Self {
        FieldError { field: field.into(), problem: problem.into() }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self::new(field, "missing")
    }

    pub(crate) fn expected(field: &'static str, what: &'static str) -> Self {
        Self::new(field, format!("expected {what}"))
    }

    pub(crate) fn json(field: &'static str, error: &JsonError) -> Self {
        Self::new(field, error.to_string())
    }

    pub(crate) fn metadata(field: &'static str, error: &MetadataError) -> Self {
        Self::new(field, error.to_string())
    }

    /// The path of the field from where reading began: `approval.approved`. Empty if it is the
    /// whole that is wrong.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong: `missing`, or `expected a boolean`.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The same problem, seen from what holds `parent`.
    pub(crate) fn within(self, parent: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self::new(format!("{parent}{dot}{}", self.field), self.problem)
    }
}

impl std::error::Error for FieldError {}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)
    }
}
