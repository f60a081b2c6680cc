//! JSON objects read in one pass, their fields still text, in their order.
//!
//! Chunks and message parts name their kind in a `type` that may stand anywhere, carry JSON that
//! this crate does not read, and may hold fields of a later version. serde's own tagged enums would
//! buffer all of that as a tree. From an [`Object`] a reader removes the fields that it knows, one
//! by one; the fields that remain are unknown and become [`ExtraFields`].

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap};
use serde_json::value::RawValue;

use crate::json::{Json, JsonError, unescaped, with_replacements};

/// An object's fields as text. Of two equal keys the last one counts, as in a browser.
#[derive(Debug)]
pub struct Object<'a> {
    fields: Vec<(Cow<'a, str>, Option<&'a RawValue>)>,
    /// Fields that were unknown to [`Object::add`], as one text: `"a":1,"b":2`.
    unknown: String,
    /// How many levels its values may nest.
    max_depth: usize,
}

impl Default for Object<'_> {
    fn default() -> Self {
        Self::with_max_depth(usize::MAX)
    }
}

impl<'a> Object<'a> {
    /// Creates an object without fields, whose values may nest up to `max_depth` levels.
    pub(crate) fn with_max_depth(max_depth: usize) -> Self {
        Object { fields: Vec::new(), unknown: String::new(), max_depth }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Adds a field, for a reader that visits the fields of an object itself.
    ///
    /// A field of `known` may be added once. All other fields are appended to the unknown ones, so
    /// that they take no more memory than their text. Returns an error for a known field that was
    /// added before.
    pub fn add(
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

    /// Removes a field and returns its value.
    pub fn take(&mut self, key: &str) -> Option<&'a RawValue> {
        let mut found = None;
        for (name, value) in &mut self.fields {
            if name == key {
                found = value.take().or(found);
            }
        }
        found
    }

    /// Removes a string field and returns it. Returns an error if the field is missing.
    pub fn text(&mut self, key: &'static str) -> Result<Cow<'a, str>, FieldError> {
        self.text_if_any(key)?.ok_or_else(|| FieldError::missing(key))
    }

    /// Removes a string field and returns it, if it is present.
    pub fn text_if_any(&mut self, key: &'static str) -> Result<Option<Cow<'a, str>>, FieldError> {
        match self.take(key) {
            None => Ok(None),
            Some(raw) if raw.get().starts_with('"') => Ok(Some(unescaped(raw.get()))),
            Some(_) => Err(FieldError::expected(key, "a string")),
        }
    }

    /// Removes a boolean field and returns it, if it is present.
    pub fn flag_if_any(&mut self, key: &'static str) -> Result<Option<bool>, FieldError> {
        match self.take(key).map(RawValue::get) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(FieldError::expected(key, "a boolean")),
        }
    }

    /// Removes a field with any JSON value and returns it, if it is present. `null` is a value.
    pub fn json_if_any(&mut self, key: &'static str) -> Result<Option<Json>, FieldError> {
        let json = self.take(key).map(|raw| Json::received_within(raw, self.max_depth)).transpose();
        json.map_err(|error| FieldError::json(key, &error))
    }

    /// Iterates over the fields that were not removed, in their order.
    pub fn rest(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.fields.iter().filter_map(|(key, value)| value.map(|value| (&**key, value)))
    }

    /// Returns the unknown fields and the known ones that were not removed.
    pub fn into_extra(mut self) -> Result<ExtraFields, FieldError> {
        let mut text = std::mem::take(&mut self.unknown);
        for (key, value) in self.rest() {
            push_field(&mut text, key, value);
        }
        ExtraFields::from_fields(text, self.max_depth).map_err(|error| FieldError::json("", &error))
    }

    /// Returns the whole object, with the `type` that was removed.
    pub(crate) fn into_json(mut self, kind: &str) -> Result<Json, FieldError> {
        let rest = std::mem::take(&mut self.unknown);
        push_field(&mut self.unknown, "type", &Json::string(kind).0);
        if !rest.is_empty() {
            self.unknown.push(',');
            self.unknown.push_str(&rest);
        }
        Ok(self.into_extra()?.0.unwrap_or_else(Json::null))
    }
}

/// Appends a field to the text of others.
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
                Ok(Object { fields, ..Object::default() })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Calls `each` for the fields of an object, in their order, without collecting them.
pub fn each_field<'a>(
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

/// A key that borrows if it holds no escape. serde's own `Cow` never borrows.
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
        // Read as bytes: half a surrogate pair is then not an error.
        deserializer.deserialize_bytes(Text)
    }
}

/// The fields of an object that this crate does not know, stored unchanged.
///
/// They are one checked text: cheap to clone, and no larger than what was sent.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ExtraFields(Option<Json>);

impl ExtraFields {
    /// Creates fields from their text: `"a":1,"b":2`. Their values may nest up to `max_depth` levels.
    fn from_fields(mut fields: String, max_depth: usize) -> Result<Self, JsonError> {
        if fields.is_empty() {
            return Ok(ExtraFields(None));
        }
        fields.insert(0, '{');
        fields.push('}');
        let raw = RawValue::from_string(fields).map_err(JsonError::Syntax)?;
        // The braces are one more level.
        let json = Json::received_within(&raw, max_depth.saturating_add(1));
        json.map(|json| ExtraFields(Some(json)))
    }

    /// Returns whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<Json> {
        let mut found = None;
        self.each(|key, value| {
            if key == name {
                found = Json::received_unambiguous(value).ok();
            }
        });
        found
    }

    /// Returns all fields as one object, or `None` if there is no field.
    pub fn as_json(&self) -> Option<&Json> {
        self.0.as_ref()
    }

    /// Reads all fields as `T`. Without a field, reads `{}`.
    ///
    /// # Errors
    /// The error of `serde_json` if the fields are not a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.as_ref().map_or("{}", Json::as_str))
    }

    /// Writes the fields after the known ones of their object.
    pub(crate) fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let mut written = Ok(());
        self.each(|key, value| {
            if written.is_ok() {
                written = map.serialize_entry(key, value);
            }
        });
        written
    }

    /// Returns these fields, followed by `more`. Of equal names the last one counts.
    pub(crate) fn with<'a>(self, more: impl Iterator<Item = (&'a str, &'a Json)>) -> Self {
        let mut text = String::new();
        self.each(|key, value| push_field(&mut text, key, value));
        let own = text.len();
        more.for_each(|(key, value)| push_field(&mut text, key, &value.0));
        if text.len() == own {
            return self;
        }
        Json::parse_received(&format!("{{{text}}}")).map_or(self, |json| ExtraFields(Some(json)))
    }

    /// Returns the fields without those of `names`, or `None` if it has none of them.
    pub(crate) fn without(&self, names: &[&str]) -> Option<Self> {
        Some(ExtraFields(without(self.0.as_ref()?, names)?))
    }

    fn each(&self, each: impl FnMut(&str, &RawValue)) {
        if let Some(object) = &self.0 {
            // The constructor checked that it is an object.
            let _ = each_field(object.as_str(), each);
        }
    }
}

impl fmt::Debug for ExtraFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("{}", Json::as_str))
    }
}

/// Returns an object without the fields of `names`: the outer `None` if it has none of them, the
/// inner one if no field remains.
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
    ExtraFields::from_fields(text, usize::MAX).ok().map(|extra| extra.0)
}

/// Writes an optional field. An absent field is left out, never written as `null`.
pub(crate) fn entry_if_any<M: SerializeMap, T: Serialize>(
    map: &mut M,
    key: &'static str,
    value: &Option<T>,
) -> Result<(), M::Error> {
    value.as_ref().map_or(Ok(()), |value| map.serialize_entry(key, value))
}

/// What is wrong with one field of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    field: Cow<'static, str>,
    problem: Cow<'static, str>,
}

impl FieldError {
    /// Creates an error about a field, which is named by its path in the body:
    /// `clientTools[0].name`.
    pub fn new(field: impl Into<Cow<'static, str>>, problem: impl Into<Cow<'static, str>>) -> Self {
        FieldError { field: field.into(), problem: problem.into() }
    }

    /// The error of a field that is missing.
    pub fn missing(field: &'static str) -> Self {
        Self::new(field, "missing")
    }

    /// The error of a field whose value is not what was expected, for example `a string`.
    pub fn expected(field: &'static str, what: &'static str) -> Self {
        Self::new(field, format!("expected {what}"))
    }

    /// The JSON of a field breaks a rule.
    pub(crate) fn json(field: &'static str, error: &impl fmt::Display) -> Self {
        Self::new(field, error.to_string())
    }

    /// Returns the path of the field from where reading began: `approval.approved`. It is empty if
    /// the error is about the whole value.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns what is wrong: `missing`, or `expected a boolean`.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// Names the field by another path.
    pub fn renamed(self, field: impl Into<Cow<'static, str>>) -> Self {
        Self::new(field, self.problem)
    }

    /// Puts `parent` before the path of the field, unless it is empty.
    pub fn within(self, parent: &str) -> Self {
        if parent.is_empty() {
            return self;
        }
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
