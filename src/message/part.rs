//! [`Part`]: a piece of a message.

use std::borrow::Cow;

use serde::de::DeserializeSeed;
use serde::ser::SerializeMap;
use serde::{Deserializer, Serialize, Serializer};

use super::ToolPart;
use super::read::{Fault, FieldsSeed, Reader, provider_metadata};
use crate::json::{ExtraFields, FieldError, Json, Object, each_field, entry_if_any, unescaped};
use crate::metadata::ProviderMetadata;

/// A piece of a message.
///
/// Its large variants are boxed: a hostile request holds many small parts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Part {
    /// `text`
    Text(Box<TextPart>),
    /// `reasoning`
    Reasoning(Box<ReasoningPart>),
    /// `source-url`
    SourceUrl(Box<SourceUrlPart>),
    /// `source-document`
    SourceDocument(Box<SourceDocumentPart>),
    /// `file`
    File(Box<FilePart>),
    /// `reasoning-file` of `ai@7`: a file that the model made while it reasoned.
    ReasoningFile(Box<FilePart>),
    /// `custom` of `ai@7`: content of a provider that has no kind of its own.
    Custom(Box<CustomPart>),
    /// `step-start`: the parts after it belong to the next step.
    StepStart {
        /// Fields that this crate does not know.
        extra: ExtraFields,
    },
    /// `data-<name>`
    Data(Box<DataPart>),
    /// `tool-<name>` or `dynamic-tool`
    Tool(Box<ToolPart>),
    /// Any other kind, for example of a later version. This crate does not act on it.
    Unknown(UnknownPart),
}

/// Text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TextPart {
    /// The text.
    pub text: String,
    /// Whether the text is complete. A user's text has no state.
    pub state: Option<TextState>,
    /// Metadata that the provider expects back with the next request.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

/// Reasoning of the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReasoningPart {
    /// The text.
    pub text: String,
    /// The id that the part had in the stream.
    pub id: Option<Box<str>>,
    /// Whether the text is complete.
    pub state: Option<TextState>,
    /// Metadata that the provider expects back with the next request.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

/// A web page that the answer rests on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SourceUrlPart {
    /// The id of the source.
    pub source_id: Box<str>,
    /// Its URL.
    pub url: String,
    /// Its title.
    pub title: Option<Box<str>>,
    /// Metadata that the provider expects back with the next request.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

/// A document that the answer rests on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SourceDocumentPart {
    /// The id of the source.
    pub source_id: Box<str>,
    /// Its media type.
    pub media_type: Box<str>,
    /// Its title.
    pub title: Box<str>,
    /// Its file name.
    pub filename: Option<Box<str>>,
    /// Metadata that the provider expects back with the next request.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

/// A file, from the user or from the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FilePart {
    /// Its media type.
    pub media_type: Box<str>,
    /// Its URL. A browser sends the file itself here, as a `data:` URL.
    pub url: String,
    /// Its file name.
    pub filename: Option<Box<str>>,
    /// Metadata that the provider expects back with the next request.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

/// Content of a provider that has no kind of its own, for example a compaction. A page shows it; `ToModelMessages`
/// does not send it to the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CustomPart {
    /// What it is: `<provider>.<type>`.
    pub kind: Box<str>,
    /// Metadata of the provider.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

/// Data of the application.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DataPart {
    /// The kind without `data-`.
    pub name: Box<str>,
    /// Its id among the data of the same name.
    pub id: Option<Box<str>>,
    /// The data; it may be absent on the wire.
    pub data: Option<Json>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

/// A part of a kind that this crate does not know, as it was received.
#[derive(Debug, Clone, PartialEq)]
pub struct UnknownPart(pub(crate) Json);

/// Whether a text is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TextState {
    /// It was incomplete when the client last received a chunk.
    Streaming,
    /// It is complete.
    Done,
}

impl Part {
    /// Creates a text part, as a user's message holds it.
    pub fn text(text: impl Into<String>) -> Self {
        Part::Text(Box::new(TextPart {
            text: text.into(),
            state: None,
            provider_metadata: None,
            extra: ExtraFields::default(),
        }))
    }

    /// Creates a file part. The URL may hold the file itself: `data:text/plain;base64,…`.
    ///
    /// ```
    /// use ui_message_stream::message::Part;
    ///
    /// let mut part = Part::file("text/plain", "data:text/plain;base64,SGk=");
    /// if let Part::File(file) = &mut part {
    ///     file.filename = Some("hi.txt".into());
    /// }
    /// assert_eq!(
    ///     serde_json::to_string(&part)?,
    ///     r#"{"type":"file","mediaType":"text/plain","filename":"hi.txt","url":"data:text/plain;base64,SGk="}"#,
    /// );
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn file(media_type: impl Into<Box<str>>, url: impl Into<String>) -> Self {
        Part::File(Box::new(FilePart {
            media_type: media_type.into(),
            url: url.into(),
            filename: None,
            provider_metadata: None,
            extra: ExtraFields::default(),
        }))
    }

    /// Returns the tool part, if this is one.
    pub fn as_tool(&self) -> Option<&ToolPart> {
        match self {
            Part::Tool(part) => Some(part),
            _ => None,
        }
    }

    fn from_fields(mut object: Object<'_>, reader: &mut Reader) -> Result<Self, Fault> {
        let kind = object.text("type")?;
        Ok(match &*kind {
            "text" => Part::Text(Box::new(TextPart {
                text: object.text("text")?.into_owned(),
                state: text_state(&mut object)?,
                provider_metadata: provider_metadata(&mut object, "providerMetadata")?,
                extra: object.into_extra()?,
            })),
            "reasoning" => Part::Reasoning(Box::new(ReasoningPart {
                text: object.text("text")?.into_owned(),
                id: object.text_if_any("id")?.map(Into::into),
                state: text_state(&mut object)?,
                provider_metadata: provider_metadata(&mut object, "providerMetadata")?,
                extra: object.into_extra()?,
            })),
            "source-url" => Part::SourceUrl(Box::new(SourceUrlPart {
                source_id: object.text("sourceId")?.into(),
                url: object.text("url")?.into_owned(),
                title: object.text_if_any("title")?.map(Into::into),
                provider_metadata: provider_metadata(&mut object, "providerMetadata")?,
                extra: object.into_extra()?,
            })),
            "source-document" => Part::SourceDocument(Box::new(SourceDocumentPart {
                source_id: object.text("sourceId")?.into(),
                media_type: object.text("mediaType")?.into(),
                title: object.text("title")?.into(),
                filename: object.text_if_any("filename")?.map(Into::into),
                provider_metadata: provider_metadata(&mut object, "providerMetadata")?,
                extra: object.into_extra()?,
            })),
            "file" => Part::File(Box::new(FilePart::read(object)?)),
            "reasoning-file" => Part::ReasoningFile(Box::new(FilePart::read(object)?)),
            "custom" => Part::Custom(Box::new(CustomPart {
                kind: object.text("kind")?.into(),
                provider_metadata: provider_metadata(&mut object, "providerMetadata")?,
                extra: object.into_extra()?,
            })),
            "step-start" => Part::StepStart { extra: object.into_extra()? },
            "dynamic-tool" => Part::Tool(Box::new(ToolPart::read_dynamic(object, reader)?)),
            other => {
                if let Some(tool_name) = other.strip_prefix("tool-") {
                    Part::Tool(Box::new(ToolPart::read_static(tool_name, object, reader)?))
                } else if let Some(name) = other.strip_prefix("data-") {
                    Part::Data(Box::new(DataPart {
                        name: name.into(),
                        id: object.text_if_any("id")?.map(Into::into),
                        data: object.json_if_any("data")?,
                        extra: object.into_extra()?,
                    }))
                } else {
                    Part::Unknown(UnknownPart(object.into_json(other)?))
                }
            }
        })
    }
}

/// Reads an element of a message's `parts` in place.
pub(super) struct PartSeed<'r>(pub(super) &'r mut Reader);

impl<'de> DeserializeSeed<'de> for PartSeed<'_> {
    type Value = Part;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Part, D::Error> {
        let reader = self.0;
        reader.count_part().map_err(|fault| reader.stop(fault))?;
        reader.expects("", "an object");
        reader.one_level_deeper(|reader| {
            let object = FieldsSeed { reader, known: KNOWN }.deserialize(deserializer)?;
            Part::from_fields(object, reader).map_err(|fault| reader.stop(fault))
        })
    }
}

impl FilePart {
    fn read(mut object: Object<'_>) -> Result<Self, Fault> {
        Ok(FilePart {
            media_type: object.text("mediaType")?.into(),
            url: object.text("url")?.into_owned(),
            filename: object.text_if_any("filename")?.map(Into::into),
            provider_metadata: provider_metadata(&mut object, "providerMetadata")?,
            extra: object.into_extra()?,
        })
    }

    fn write<M: SerializeMap>(&self, kind: &str, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("type", kind)?;
        map.serialize_entry("mediaType", &self.media_type)?;
        entry_if_any(map, "filename", &self.filename)?;
        map.serialize_entry("url", &self.url)?;
        entry_if_any(map, "providerMetadata", &self.provider_metadata)?;
        self.extra.write(map)
    }
}

impl UnknownPart {
    /// Returns its `type`.
    pub fn kind(&self) -> Cow<'_, str> {
        let mut kind = Cow::default();
        // The reader checked that it is an object with a `type`.
        let _ = each_field(self.0.as_str(), |key, value| {
            if key == "type" {
                kind = unescaped(value.get());
            }
        });
        kind
    }

    /// Returns the whole part.
    pub fn as_json(&self) -> &Json {
        &self.0
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Part::Unknown(part) = self {
            return part.0.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        match self {
            Part::Text(part) => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", &part.text)?;
                entry_if_any(&mut map, "state", &part.state)?;
                entry_if_any(&mut map, "providerMetadata", &part.provider_metadata)?;
                part.extra.write(&mut map)?;
            }
            Part::Reasoning(part) => {
                map.serialize_entry("type", "reasoning")?;
                entry_if_any(&mut map, "id", &part.id)?;
                map.serialize_entry("text", &part.text)?;
                entry_if_any(&mut map, "state", &part.state)?;
                entry_if_any(&mut map, "providerMetadata", &part.provider_metadata)?;
                part.extra.write(&mut map)?;
            }
            Part::SourceUrl(part) => {
                map.serialize_entry("type", "source-url")?;
                map.serialize_entry("sourceId", &part.source_id)?;
                map.serialize_entry("url", &part.url)?;
                entry_if_any(&mut map, "title", &part.title)?;
                entry_if_any(&mut map, "providerMetadata", &part.provider_metadata)?;
                part.extra.write(&mut map)?;
            }
            Part::SourceDocument(part) => {
                map.serialize_entry("type", "source-document")?;
                map.serialize_entry("sourceId", &part.source_id)?;
                map.serialize_entry("mediaType", &part.media_type)?;
                map.serialize_entry("title", &part.title)?;
                entry_if_any(&mut map, "filename", &part.filename)?;
                entry_if_any(&mut map, "providerMetadata", &part.provider_metadata)?;
                part.extra.write(&mut map)?;
            }
            Part::File(part) => part.write("file", &mut map)?,
            Part::ReasoningFile(part) => part.write("reasoning-file", &mut map)?,
            Part::Custom(part) => {
                map.serialize_entry("type", "custom")?;
                map.serialize_entry("kind", &part.kind)?;
                entry_if_any(&mut map, "providerMetadata", &part.provider_metadata)?;
                part.extra.write(&mut map)?;
            }
            Part::StepStart { extra } => {
                map.serialize_entry("type", "step-start")?;
                extra.write(&mut map)?;
            }
            Part::Data(part) => {
                map.serialize_entry("type", &format_args!("data-{}", part.name))?;
                entry_if_any(&mut map, "id", &part.id)?;
                entry_if_any(&mut map, "data", &part.data)?;
                part.extra.write(&mut map)?;
            }
            Part::Tool(part) => part.write(&mut map)?,
            // Written above.
            Part::Unknown(_) => {}
        }
        map.end()
    }
}

fn text_state(object: &mut Object<'_>) -> Result<Option<TextState>, FieldError> {
    Ok(match object.text_if_any("state")?.as_deref() {
        None => None,
        Some("streaming") => Some(TextState::Streaming),
        Some("done") => Some(TextState::Done),
        Some(_) => return Err(FieldError::expected("state", "`streaming` or `done`")),
    })
}

/// The fields of all kinds of parts. A field that the kind of a part does not have is kept among
/// its unknown fields.
const KNOWN: &[&str] = &[
    "type",
    "text",
    "state",
    "toolCallId",
    "input",
    "output",
    "providerMetadata",
    "callProviderMetadata",
    "approval",
    "toolName",
    "providerExecuted",
    "errorText",
    "preliminary",
    "title",
    "toolMetadata",
    "resultProviderMetadata",
    "rawInput",
    "inputEncoding",
    "dynamic",
    "id",
    "mediaType",
    "url",
    "filename",
    "sourceId",
    "data",
    "kind",
];
