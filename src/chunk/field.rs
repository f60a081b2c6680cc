//! How one field of a chunk is read, written, made owned and left out, by its type.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::SerializeMap;

use super::{Citations, FinishReason, InputEncoding, Version};
use crate::json::{FieldError, Json, Object};
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// Receives the fields of a chunk one by one, in the order of the wire.
pub(crate) trait FieldWriter {
    fn text(&mut self, key: &'static str, value: &str);
    fn json(&mut self, key: &'static str, value: &Json);
    fn flag(&mut self, key: &'static str, value: bool);
}

/// Writes fields as entries of a serde map, and keeps the first error.
pub(super) struct Entries<M: SerializeMap> {
    pub(super) map: M,
    pub(super) failed: Option<M::Error>,
}

impl<M: SerializeMap> Entries<M> {
    fn entry<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        if self.failed.is_none() {
            self.failed = self.map.serialize_entry(key, value).err();
        }
    }
}

impl<M: SerializeMap> FieldWriter for Entries<M> {
    fn text(&mut self, key: &'static str, value: &str) {
        self.entry(key, value);
    }
    fn json(&mut self, key: &'static str, value: &Json) {
        self.entry(key, value);
    }
    fn flag(&mut self, key: &'static str, value: bool) {
        self.entry(key, &value);
    }
}

/// A type that can be a field. An absent field is `None`, never `null`.
pub(super) trait Field<'a>: Sized {
    type Static;
    fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError>;
    fn write(&self, key: &'static str, writer: &mut impl FieldWriter);
    fn into_owned(self) -> Self::Static;
    /// Removes the value of an optional field. A required field stays.
    fn leave_out(&mut self) {}
    /// Replaces a value that a client of this version does not know.
    fn restrict_to(&mut self, _version: Version) {}
}

impl<'a> Field<'a> for Cow<'a, str> {
    type Static = Cow<'static, str>;
    fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError> {
        object.text(key)
    }
    fn write(&self, key: &'static str, writer: &mut impl FieldWriter) {
        writer.text(key, self);
    }
    fn into_owned(self) -> Self::Static {
        Cow::Owned(self.into_owned())
    }
}

impl<'a> Field<'a> for Option<Cow<'a, str>> {
    type Static = Option<Cow<'static, str>>;
    fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError> {
        object.text_if_any(key)
    }
    fn write(&self, key: &'static str, writer: &mut impl FieldWriter) {
        if let Some(text) = self {
            writer.text(key, text);
        }
    }
    fn into_owned(self) -> Self::Static {
        self.map(Field::into_owned)
    }
    fn leave_out(&mut self) {
        *self = None;
    }
}

impl<'a> Field<'a> for bool {
    type Static = Self;
    fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError> {
        object.flag_if_any(key)?.ok_or(FieldError::missing(key))
    }
    fn write(&self, key: &'static str, writer: &mut impl FieldWriter) {
        writer.flag(key, *self);
    }
    fn into_owned(self) -> Self::Static {
        self
    }
}

impl<'a> Field<'a> for Option<bool> {
    type Static = Self;
    fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError> {
        object.flag_if_any(key)
    }
    fn write(&self, key: &'static str, writer: &mut impl FieldWriter) {
        if let Some(flag) = self {
            writer.flag(key, *flag);
        }
    }
    fn into_owned(self) -> Self::Static {
        self
    }
    fn leave_out(&mut self) {
        *self = None;
    }
}

/// A field of any JSON, where `null` is a value like any other.
impl<'a> Field<'a> for Option<Cow<'a, Json>> {
    type Static = Option<Cow<'static, Json>>;
    fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError> {
        let Some(raw) = object.take(key) else {
            return Ok(None);
        };
        let json = Json::received(raw).map_err(|error| FieldError::json(key, &error))?;
        Ok(Some(Cow::Owned(json)))
    }
    fn write(&self, key: &'static str, writer: &mut impl FieldWriter) {
        if let Some(json) = self {
            writer.json(key, json);
        }
    }
    fn into_owned(self) -> Self::Static {
        self.map(|json| Cow::Owned(json.into_owned()))
    }
    fn leave_out(&mut self) {
        *self = None;
    }
}

macro_rules! metadata_field {
    ($($metadata:ident)*) => {$(
        impl<'a> Field<'a> for Option<Cow<'a, $metadata>> {
            type Static = Option<Cow<'static, $metadata>>;
            fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError> {
                let Some(raw) = object.take(key) else { return Ok(None) };
                let json = Json::received(raw).map_err(|error| FieldError::json(key, &error))?;
                let metadata =
                    $metadata::new(json).map_err(|error| FieldError::json(key, &error))?;
                Ok(Some(Cow::Owned(metadata)))
            }
            fn write(&self, key: &'static str, writer: &mut impl FieldWriter) {
                if let Some(metadata) = self {
                    writer.json(key, metadata.as_json());
                }
            }
            fn into_owned(self) -> Self::Static {
                self.map(|metadata| Cow::Owned(metadata.into_owned()))
            }
            fn leave_out(&mut self) {
                *self = None;
            }
        }
    )*};
}

metadata_field! { ProviderMetadata ToolMetadata Citations }

macro_rules! word_field {
    ($($word:ident $expected:literal)*) => {$(
        impl<'a> Field<'a> for Option<$word> {
            type Static = Self;
            fn read(object: &mut Object<'a>, key: &'static str) -> Result<Self, FieldError> {
                let Some(word) = object.text_if_any(key)? else { return Ok(None) };
                match $word::from_wire(&word) {
                    Some(word) => Ok(Some(word)),
                    None => Err(FieldError::expected(key, $expected)),
                }
            }
            fn write(&self, key: &'static str, writer: &mut impl FieldWriter) {
                if let Some(word) = self {
                    writer.text(key, word.as_str());
                }
            }
            fn into_owned(self) -> Self::Static {
                self
            }
            fn leave_out(&mut self) {
                *self = None;
            }
            fn restrict_to(&mut self, version: Version) {
                *self = self.map(|word| word.for_version(version));
            }
        }
    )*};
}

word_field! {
    FinishReason "one of stop, length, content-filter, tool-calls, error, interrupted, other"
    InputEncoding "`json` or `text`"
}
