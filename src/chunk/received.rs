//! [`ReceivedChunk`]: a chunk of any server's stream, unknown fields included.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::Chunk;
use super::field::Entries;
use crate::json::{FieldError, Json, JsonError, Object};

/// A chunk as it was received: known fields are typed, unknown fields and unknown kinds are kept.
///
/// Serializing it gives the same object.
///
/// ```
/// use ui_message_stream::chunk::{Chunk, ReceivedChunk};
///
/// let text = r#"{"type":"text-start","id":"0","later":[1]}"#;
/// let received = ReceivedChunk::parse(text)?;
/// assert!(matches!(&received, ReceivedChunk::Known { chunk: Chunk::TextStart { .. }, .. }));
/// assert_eq!(serde_json::to_string(&received).unwrap(), text);
/// # Ok::<(), ui_message_stream::chunk::ReadChunkError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ReceivedChunk<'a> {
    /// A kind of [`Chunk`].
    Known {
        /// The chunk with its known fields.
        chunk: Chunk<'a>,
        /// The other fields, in their order.
        extra: Vec<(Box<str>, Json)>,
    },
    /// Any other kind. No version of `ai@6` accepts it.
    Unknown {
        /// Its `type`.
        kind: Cow<'a, str>,
        /// The whole object.
        json: Json,
    },
}

impl<'a> ReceivedChunk<'a> {
    /// Reads one chunk from its JSON.
    ///
    /// Accepts what the schema of `ai@6.0.326` accepts, and also unknown kinds. Of several equal
    /// keys of an object the last one counts, as in a browser. Half of a surrogate pair becomes U+FFFD: a
    /// [`ChunkReader`](super::ChunkReader) joins two halves in two deltas.
    ///
    /// # Errors
    /// - [`ReadChunkError::Syntax`] if the text is not a JSON object.
    /// - [`ReadChunkError::Field`] if a field is missing or of a wrong type.
    /// - [`ReadChunkError::Json`] if it holds JSON that the client's reader refuses.
    pub fn parse(text: &'a str) -> Result<Self, ReadChunkError> {
        let mut object = Object::parse(text).map_err(ReadChunkError::Syntax)?;
        let kind = object.text("type")?;
        let received = match Chunk::read(&kind, &mut object)? {
            Some(chunk) => {
                let mut fields: Vec<(&str, &RawValue)> = Vec::new();
                let mut indexes: HashMap<&str, usize> = HashMap::new();
                if object.rest().any(|(key, _)| matches!(key, "__proto__" | "constructor")) {
                    // The client's JSON reader also checks the keys of the chunk itself.
                    Json::parse_received(text)?;
                }
                for (key, value) in object.rest() {
                    match indexes.entry(key) {
                        Entry::Occupied(index) => fields[*index.get()].1 = value,
                        Entry::Vacant(index) => {
                            index.insert(fields.len());
                            fields.push((key, value));
                        }
                    }
                }
                let received =
                    |(key, value): (&str, &RawValue)| Ok((key.into(), Json::received(value)?));
                let extra = fields.into_iter().map(received).collect::<Result<_, JsonError>>()?;
                ReceivedChunk::Known { chunk, extra }
            }
            None => ReceivedChunk::Unknown { kind, json: Json::parse_received(text)? },
        };
        Ok(received)
    }
}

impl Serialize for ReceivedChunk<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (chunk, extra) = match self {
            ReceivedChunk::Known { chunk, extra } => (chunk, extra),
            ReceivedChunk::Unknown { json, .. } => return json.serialize(serializer),
        };
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &chunk.kind())?;
        let mut entries = Entries { map, failed: None };
        chunk.write_fields(&mut entries);
        let Entries { mut map, failed } = entries;
        if let Some(error) = failed {
            return Err(error);
        }
        for (key, value) in extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Reads a chunk of a known kind, and drops the fields that this crate does not know.
impl<'de> Deserialize<'de> for Chunk<'static> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        match ReceivedChunk::parse(raw.get()).map_err(D::Error::custom)? {
            ReceivedChunk::Known { chunk, .. } => Ok(chunk.into_owned()),
            ReceivedChunk::Unknown { kind, .. } => {
                Err(D::Error::custom(format!("unknown kind of chunk `{kind}`")))
            }
        }
    }
}

/// Why a chunk cannot be read. The client would refuse it too.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadChunkError {
    /// It is not a JSON object.
    #[error("not a JSON object: {0}")]
    Syntax(#[source] serde_json::Error),
    /// A field is missing or of a wrong type.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// It holds JSON that the client's reader refuses.
    #[error(transparent)]
    Json(#[from] JsonError),
}
