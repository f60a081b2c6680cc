//! What a model message holds: texts, files, reasoning, tool calls and their results.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::ToolResult;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::metadata::ProviderMetadata;

/// What a person says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserContent {
    /// A text.
    Text(TextContent),
    /// A file.
    File(FileContent),
}

/// What a model says and calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AssistantContent {
    /// A text.
    Text(TextContent),
    /// What it thought aloud.
    Reasoning(ReasoningContent),
    /// A file that it made.
    File(FileContent),
    /// A tool call.
    ToolCall(ToolCallContent),
    /// The result of a call that the provider ran, behind the call.
    ToolResult(ToolResultContent),
}

/// What became of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolContent {
    /// The result of a call that the provider did not run.
    Result(ToolResultContent),
    /// The person's answer about a call that the provider runs, or does not.
    ProviderApproval(ProviderApprovalContent),
}

/// A text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TextContent {
    /// The text.
    pub text: String,
    /// What the provider wants back with it.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// What a model thought aloud. The text may be empty where the metadata says more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ReasoningContent {
    /// The text.
    pub text: String,
    /// What the provider wants back with it: a signature, the encrypted thoughts. A provider that
    /// did not make it takes neither.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// A file, an image for instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FileContent {
    /// Its media type.
    pub media_type: Box<str>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<Box<str>>,
    /// Where it is, or what.
    pub source: FileSource,
    /// What the provider wants back with it.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// Where a file is, or what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSource {
    /// It is there. Who fetches it decides whether it may be asked for.
    Url(String),
    /// The bytes in base64, as a `data:` URL held them. They were not looked at.
    Base64(String),
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolCallContent {
    /// Names the call. No other call of the transcript has the id.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// The input. Not always an object: [`input_object`](Self::input_object) is.
    #[serde(deserialize_with = "Json::deserialize_received")]
    pub input: Json,
    /// Whether the provider runs the tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider_executed: bool,
    /// What the provider wants back with it.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// What became of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolResultContent {
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// What became of it.
    pub result: ToolResult,
    /// What the provider wants back with it.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// A person's answer about a call that the provider is to run. No adapter runs anything for it.
///
/// A yes is only here where the [`DeferredToolResults`](crate::approval::DeferredToolResults) of this
/// turn say it: a yes that stands in a history could be forged, or be an old one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ProviderApprovalContent {
    /// The question, as the UI message names it.
    pub approval_id: ApprovalId,
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Yes or no.
    pub approved: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl TextContent {
    /// A text.
    pub fn new(text: impl Into<String>) -> Self {
        TextContent { text: text.into(), provider_metadata: None }
    }
}

impl ReasoningContent {
    /// What was thought.
    pub fn new(text: impl Into<String>) -> Self {
        ReasoningContent { text: text.into(), provider_metadata: None }
    }
}

impl FileContent {
    /// A file.
    pub fn new(media_type: impl Into<Box<str>>, source: FileSource) -> Self {
        let media_type = media_type.into();
        FileContent { media_type, filename: None, source, provider_metadata: None }
    }
}

impl FileSource {
    /// What stands behind the URL of a UI message's file.
    ///
    /// ```
    /// use ui_message_stream::model_message::FileSource;
    ///
    /// let source = FileSource::at("data:text/plain;base64,SGk=");
    /// assert_eq!(source, FileSource::Base64("SGk=".into()));
    /// ```
    pub fn at(url: &str) -> Self {
        let is_data = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
        match url.split_once(',') {
            Some((head, base64)) if is_data && ends_in_base64(head) => {
                FileSource::Base64(base64.to_owned())
            }
            _ => FileSource::Url(url.to_owned()),
        }
    }
}

fn ends_in_base64(head: &str) -> bool {
    head.rsplit_once(';').is_some_and(|(_, last)| last.trim().eq_ignore_ascii_case("base64"))
}

impl ToolCallContent {
    /// A call that the provider does not run.
    pub fn new(
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        ToolCallContent {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            input,
            provider_executed: false,
            provider_metadata: None,
        }
    }

    /// The input for a provider that takes only objects: one that is none stands in the field
    /// `input`, as its text if no reader would take it.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::model_message::ToolCallContent;
    ///
    /// let call = ToolCallContent::new("call_1", "search", Json::string("{\"q\": "));
    /// assert_eq!(call.input_object().as_str(), r#"{"input":"{\"q\": "}"#);
    /// ```
    pub fn input_object(&self) -> Json {
        match Json::parse(self.input.as_str()) {
            Ok(input) if input.is_object() => input,
            Ok(input) if input.is_null() => object_of(""),
            Ok(input) => object_of(&format!(r#""input":{input}"#)),
            Err(_) => object_of(&format!(r#""input":{}"#, Json::string(self.input.as_str()))),
        }
    }
}

impl ToolResultContent {
    /// What became of a call.
    pub fn new(
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        result: ToolResult,
    ) -> Self {
        ToolResultContent {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            result,
            provider_metadata: None,
        }
    }
}

/// The object of these fields.
pub(super) fn object_of(fields: &str) -> Json {
    // Checked JSON behind a plain key makes an object; `null` keeps this total without a panic.
    RawValue::from_string(format!("{{{fields}}}")).map_or_else(|_| Json::null(), Json::of_checked)
}

/// Reads metadata back as a provider once sent it.
fn received<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ProviderMetadata>, D::Error> {
    let json = Json::deserialize_received(deserializer)?;
    ProviderMetadata::new(json).map(Some).map_err(serde::de::Error::custom)
}
