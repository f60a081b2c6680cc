//! [`Part`]: a piece of a message.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::read::{Fault, Reader};
use super::{ToolPart, entry_if_any};
use crate::json::{Json, unescaped};
use crate::metadata::{ProviderMetadata, ToolMetadata};
use crate::record::{Extra, FieldError, Object, each_field};

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
    /// `step-start`: what follows is of another step.
    StepStart {
        /// Fields that this crate does not know.
        extra: Extra,
    },
    /// `data-<name>`
    Data(Box<DataPart>),
    /// `tool-<name>` or `dynamic-tool`
    Tool(Box<ToolPart>),
    /// Any other kind, of a later version for instance. Nobody acts on it.
    Unknown(UnknownPart),
}

/// Text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TextPart {
    /// The text.
    pub text: String,
    /// Whether more was to come. A user's text has no state.
    pub state: Option<TextState>,
    /// What the provider wants back.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

/// What the model thought aloud.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReasoningPart {
    /// The text.
    pub text: String,
    /// The id that the part had in the stream.
    pub id: Option<Box<str>>,
    /// Whether more was to come.
    pub state: Option<TextState>,
    /// What the provider wants back.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

/// A web page that the answer rests on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SourceUrlPart {
    /// Names the source.
    pub source_id: Box<str>,
    /// Where it is.
    pub url: String,
    /// Its title.
    pub title: Option<Box<str>>,
    /// What the provider wants back.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

/// A document that the answer rests on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SourceDocumentPart {
    /// Names the source.
    pub source_id: Box<str>,
    /// Its media type.
    pub media_type: Box<str>,
    /// Its title.
    pub title: Box<str>,
    /// Its file name.
    pub filename: Option<Box<str>>,
    /// What the provider wants back.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

/// A file, from the person or from the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FilePart {
    /// Its media type.
    pub media_type: Box<str>,
    /// Where it is. A browser puts the file itself here, as a `data:` URL.
    pub url: String,
    /// Its file name.
    pub filename: Option<Box<str>>,
    /// What the provider wants back.
    pub provider_metadata: Option<ProviderMetadata>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

/// Data of the application.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DataPart {
    /// What follows `data-` in the kind.
    pub name: Box<str>,
    /// Which data of the same name it is.
    pub id: Option<Box<str>>,
    /// The data; it may be absent on the wire.
    pub data: Option<Json>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

/// A part of a kind that this crate does not know, as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct UnknownPart(pub(crate) Json);

/// Whether a text is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TextState {
    /// More was to come when the client last looked.
    Streaming,
    /// It is complete.
    Done,
}

impl Part {
    /// A text part, as a user's message holds it.
    pub fn text(text: impl Into<String>) -> Self {
        Part::Text(Box::new(TextPart {
            text: text.into(),
            state: None,
            provider_metadata: None,
            extra: Extra::default(),
        }))
    }

    /// The tool part that this is, if it is one.
    pub fn as_tool(&self) -> Option<&ToolPart> {
        match self {
            Part::Tool(part) => Some(part),
            _ => None,
        }
    }

    /// Reads an element of a message's `parts`.
    pub(super) fn read(raw: &RawValue, reader: &mut Reader) -> Result<Self, Fault> {
        let mut object = reader.object(raw.get(), KNOWN)?;
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
            "file" => Part::File(Box::new(FilePart {
                media_type: object.text("mediaType")?.into(),
                url: object.text("url")?.into_owned(),
                filename: object.text_if_any("filename")?.map(Into::into),
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
                    let json = Json::received_unambiguous(raw);
                    Part::Unknown(UnknownPart(json.map_err(|e| FieldError::json("", &e))?))
                }
            }
        })
    }
}

impl UnknownPart {
    /// Its `type`.
    pub fn kind(&self) -> Cow<'_, str> {
        let mut kind = Cow::default();
        // It was an object with a `type` when it was read.
        let _ = each_field(self.0.as_str(), |key, value| {
            if key == "type" {
                kind = unescaped(value.get());
            }
        });
        kind
    }

    /// The whole part.
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
            Part::File(part) => {
                map.serialize_entry("type", "file")?;
                map.serialize_entry("mediaType", &part.media_type)?;
                entry_if_any(&mut map, "filename", &part.filename)?;
                map.serialize_entry("url", &part.url)?;
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

/// Takes provider metadata out if it is there.
pub(super) fn provider_metadata(
    object: &mut Object<'_>,
    key: &'static str,
) -> Result<Option<ProviderMetadata>, FieldError> {
    let metadata = object.json_if_any(key)?.map(ProviderMetadata::new).transpose();
    metadata.map_err(|error| FieldError::metadata(key, &error))
}

/// Takes tool metadata out if it is there.
pub(super) fn tool_metadata(object: &mut Object<'_>) -> Result<Option<ToolMetadata>, FieldError> {
    let metadata = object.json_if_any("toolMetadata")?.map(ToolMetadata::new).transpose();
    metadata.map_err(|error| FieldError::metadata("toolMetadata", &error))
}

/// Every field that some kind of part has. What its own kind does not have is kept with the others.
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
];
