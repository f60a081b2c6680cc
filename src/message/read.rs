//! [`Reader`]: counts what is read of a message, and keeps the reason why reading stopped.
//!
//! A request may hold anything. So everything is counted before it is built, and takes about as
//! much memory as its text: unknown fields stay one text, and lists grow by an eighth.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::{FieldError, JsonError, Key, Object};
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// How much may still be built, and why reading stopped.
#[derive(Debug)]
pub(crate) struct Reader {
    left: Budget,
    /// The next field and its expected type, for the error if the type is another one.
    expected: (&'static str, &'static str),
    /// Where that field is.
    place: String,
    fault: Option<Fault>,
}

/// How much may be built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) messages: usize,
    pub(crate) parts: usize,
    /// Messages, parts and fields together.
    pub(crate) nodes: usize,
    /// Objects and lists inside each other, from here on.
    pub(crate) levels: usize,
}

/// Why reading stopped.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The text is not JSON.
    Syntax(serde_json::Error),
    /// A field is missing, of a wrong type, or breaks another rule.
    Field(FieldError),
    /// There are more messages than allowed.
    TooManyMessages,
    /// There are more parts than allowed.
    TooManyParts,
    /// There are more messages, parts and fields together than allowed.
    TooManyNodes,
}

impl From<FieldError> for Fault {
    fn from(error: FieldError) -> Self {
        Fault::Field(error)
    }
}

impl Fault {
    /// Puts `parent` before the path of the field.
    pub(crate) fn within(self, parent: &str) -> Self {
        match self {
            Fault::Field(error) => Fault::Field(error.within(parent)),
            other => other,
        }
    }
}

impl Reader {
    pub(crate) fn new(budget: Budget) -> Self {
        Reader { left: budget, expected: ("", ""), place: String::new(), fault: None }
    }

    pub(crate) fn unlimited() -> Self {
        const NO_LIMIT: usize = usize::MAX;
        Self::new(Budget { messages: NO_LIMIT, parts: NO_LIMIT, nodes: NO_LIMIT, levels: NO_LIMIT })
    }

    /// Reads an object whose fields are still text.
    pub(super) fn object<'a>(
        &mut self,
        text: &'a str,
        known: &'static [&'static str],
    ) -> Result<Object<'a>, Fault> {
        self.read(text, |reader, deserializer| {
            reader.expects("", "an object");
            reader.one_level_deeper(|reader| FieldsSeed { reader, known }.deserialize(deserializer))
        })
    }

    /// Reads an object or a list, whose values are one level deeper. `read` must fail for every other value.
    pub(crate) fn one_level_deeper<T, E: Error>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let levels = self.left.levels;
        self.left.levels = levels.saturating_sub(1);
        let value = read(self)?;
        self.left.levels = levels;
        if levels == 0 {
            Err(self.stop(FieldError::json("", &JsonError::TooDeep)))
        } else {
            Ok(value)
        }
    }

    /// Returns an object without fields, whose values may nest as deep as is left.
    pub(crate) fn new_object<'a>(&self) -> Object<'a> {
        Object::with_max_depth(self.left.levels)
    }

    /// Reads a text to its end. On failure, returns the fault that stopped the reading.
    pub(crate) fn read<'a, T>(
        &mut self,
        text: &'a str,
        read: impl FnOnce(&mut Self, &mut TextDeserializer<'a>) -> serde_json::Result<T>,
    ) -> Result<T, Fault> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        read(self, &mut deserializer)
            .and_then(|value| deserializer.end().map(|()| value))
            .map_err(|_| self.fault_behind(text))
    }

    /// Sets the next field and its expected type.
    pub(crate) fn expects(&mut self, field: &'static str, what: &'static str) {
        self.expected = (field, what);
    }

    /// Stops reading: keeps the fault and returns an error for serde.
    pub(crate) fn stop<E: Error>(&mut self, fault: impl Into<Fault>) -> E {
        self.fault = Some(fault.into());
        E::custom("refused")
    }

    /// Reading has stopped inside of this place. Call it from the innermost place to the outermost.
    pub(crate) fn stopped_within(&mut self, place: &str) {
        self.fault = self.fault.take().map(|fault| fault.within(place));
        let dot = if self.place.is_empty() { "" } else { "." };
        self.place.insert_str(0, &format!("{place}{dot}"));
    }

    fn fault_behind(&mut self, text: &str) -> Fault {
        if let Some(fault) = self.fault.take() {
            return fault;
        }
        // `serde_json` calls `1e400` in place of an object a syntax error or a value of another type: its features
        // decide. So its first error is not used.
        match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => {
                let (field, what) = self.expected;
                FieldError::expected(field, what).within(&self.place).into()
            }
            Err(error) => Fault::Syntax(error),
        }
    }

    /// Counts a message, a part or an unknown field.
    pub(crate) fn count_node(&mut self) -> Result<(), Fault> {
        self.left.nodes = self.left.nodes.checked_sub(1).ok_or(Fault::TooManyNodes)?;
        Ok(())
    }

    /// Counts a message.
    pub(super) fn count_message(&mut self) -> Result<(), Fault> {
        self.left.messages = self.left.messages.checked_sub(1).ok_or(Fault::TooManyMessages)?;
        self.count_node()
    }

    /// Counts an element of a message's `parts`.
    pub(super) fn count_part(&mut self) -> Result<(), Fault> {
        self.left.parts = self.left.parts.checked_sub(1).ok_or(Fault::TooManyParts)?;
        self.count_node()
    }
}

type TextDeserializer<'a> = serde_json::Deserializer<serde_json::de::StrRead<'a>>;

/// Reads the fields of an object as text, and separates known from unknown fields.
pub(super) struct FieldsSeed<'r> {
    pub(super) reader: &'r mut Reader,
    pub(super) known: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_> {
    type Value = Object<'de>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_> {
    type Value = Object<'de>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
        let FieldsSeed { reader, known } = self;
        let mut object = reader.new_object();
        while let Some(Key(key)) = map.next_key()? {
            // Known fields are few, and the limit of parts bounds them.
            if !known.contains(&&*key) {
                reader.count_node().map_err(|fault| reader.stop(fault))?;
            }
            let value = map.next_value()?;
            object.add(&key, value, known).map_err(|error| reader.stop(error))?;
        }
        Ok(object)
    }
}

/// Removes provider metadata and reads it, if it is present.
pub(super) fn provider_metadata(
    object: &mut Object<'_>,
    key: &'static str,
) -> Result<Option<ProviderMetadata>, FieldError> {
    let metadata = object.json_if_any(key)?.map(ProviderMetadata::new).transpose();
    metadata.map_err(|error| FieldError::json(key, &error))
}

/// Removes tool metadata and reads it, if it is present.
pub(super) fn tool_metadata(object: &mut Object<'_>) -> Result<Option<ToolMetadata>, FieldError> {
    let metadata = object.json_if_any("toolMetadata")?.map(ToolMetadata::new).transpose();
    metadata.map_err(|error| FieldError::json("toolMetadata", &error))
}

/// Appends to a list whose length a peer decides. The capacity grows by an eighth: while the list
/// is reallocated it takes little more than twice its size.
pub(crate) fn push_tightly<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 8 + 1);
    }
    list.push(item);
}
