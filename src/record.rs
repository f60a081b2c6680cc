//! [`Object`]: one JSON object read in one pass, its fields still text, in their order.
//!
//! Chunks and message parts name their kind in a `type` that may stand anywhere, carry JSON that
//! nobody here opens, and may hold fields of a later version. serde's own tagged enums would
//! buffer all of that as a tree. An object read here gives up the fields that are known, one by
//! one, and what is left is what the reader did not know.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::{JsonError, unescaped};
use crate::metadata::MetadataError;

/// An object's fields as text. Of two equal keys the last one counts, as in a browser.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    fields: Vec<(Cow<'a, str>, Option<&'a RawValue>)>,
}

impl<'a> Object<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// An object of these fields; for a reader that counts or refuses some on the way.
    pub(crate) fn from_fields(
        fields: impl IntoIterator<Item = (Cow<'a, str>, &'a RawValue)>,
    ) -> Self {
        Object { fields: fields.into_iter().map(|(key, value)| (key, Some(value))).collect() }
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

    /// The fields that nobody took, in their order.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.fields.iter().filter_map(|(key, value)| value.map(|value| (&**key, value)))
    }
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
                Ok(Object { fields })
            }
        }
        deserializer.deserialize_map(Fields)
    }
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
                Ok(Key(String::from_utf8_lossy(bytes)))
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(String::from_utf8_lossy(bytes).into_owned())))
            }
        }
        // As bytes, half a surrogate pair is not an error.
        deserializer.deserialize_bytes(Text)
    }
}

/// What is wrong with one field of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    field: Cow<'static, str>,
    problem: Cow<'static, str>,
}

impl FieldError {
    pub(crate) fn missing(field: &'static str) -> Self {
        FieldError { field: field.into(), problem: "missing".into() }
    }

    pub(crate) fn expected(field: &'static str, what: &'static str) -> Self {
        FieldError { field: field.into(), problem: format!("expected {what}").into() }
    }

    pub(crate) fn json(field: &'static str, error: &JsonError) -> Self {
        FieldError { field: field.into(), problem: error.to_string().into() }
    }

    pub(crate) fn metadata(field: &'static str, error: &MetadataError) -> Self {
        FieldError { field: field.into(), problem: error.to_string().into() }
    }

    /// The path of the field from where reading began: `approval.approved`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong: `missing`, or `expected a boolean`.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The same problem, seen from the object that holds `parent`.
    pub(crate) fn within(self, parent: &str) -> Self {
        FieldError { field: format!("{parent}.{}", self.field).into(), problem: self.problem }
    }
}
