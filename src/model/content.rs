//! The contents of model messages: text, files, reasoning, tool calls and tool results.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::ToolResult;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::has_scheme;
use crate::metadata::ProviderMetadata;

/// A piece of a user message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserContent {
    /// Text.
    Text(TextContent),
    /// A file.
    File(FileContent),
}

/// A piece of an assistant message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AssistantContent {
    /// Text.
    Text(TextContent),
    /// Reasoning.
    Reasoning(ReasoningContent),
    /// A file that the model generated.
    File(FileContent),
    /// A tool call.
    ToolCall(ToolCallContent),
    /// The result of a tool call that the provider executed. It follows the call.
    ToolResult(ToolResultContent),
}

/// A piece of a tool message: the result of a call, or the user's response to an approval request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolContent {
    /// The result of a call that the provider did not execute.
    Result(ToolResultContent),
    /// The user's response to an approval request of the provider.
    ProviderApproval(ToolApprovalResponseContent),
}

/// Text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TextContent {
    /// The text.
    pub text: String,
    /// The provider metadata that is sent back with the text.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// Reasoning of a model. The text may be empty if the metadata contains the reasoning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ReasoningContent {
    /// The text.
    pub text: String,
    /// The provider metadata that is sent back with the reasoning: a signature, or the encrypted
    /// reasoning. Other providers accept neither.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// A file, for example an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FileContent {
    /// The media type.
    pub media_type: Box<str>,
    /// The file name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<Box<str>>,
    /// The address or the data of the file.
    pub source: FileSource,
    /// The provider metadata that is sent back with the file.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// The address or the data of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSource {
    /// The address of the file. The code that fetches the file must decide whether the address is
    /// allowed.
    Url(String),
    /// The data in Base64, as it stood in a `data:` URL. It is not validated.
    Base64(String),
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolCallContent {
    /// The id of the call. It is unique among the converted messages.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The input. It may be any JSON value; [`input_object`](Self::input_object) always returns an
    /// object.
    #[serde(deserialize_with = "Json::deserialize_received")]
    pub input: Json,
    /// Whether the provider executes the tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider_executed: bool,
    /// The provider metadata that is sent back with the call.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolResultContent {
    /// The id of the call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The result.
    pub result: ToolResult,
    /// The provider metadata that is sent back with the result.
    #[serde(default, deserialize_with = "received", skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

/// A user's response to an approval request of the provider. Adapters execute no tool because of
/// it.
///
/// An approval is present only if the [`DeferredToolResults`](crate::approval::DeferredToolResults)
/// of this turn contain it. An approval that stands only in the history could be forged or
/// outdated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolApprovalResponseContent {
    /// The id of the approval request, as in the UI message.
    pub approval_id: ApprovalId,
    /// The id of the call.
    pub tool_call_id: ToolCallId,
    /// Whether the user approved the call.
    pub approved: bool,
    /// The reason of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl TextContent {
    /// Creates a text without provider metadata.
    pub fn new(text: impl Into<String>) -> Self {
        TextContent { text: text.into(), provider_metadata: None }
    }
}

impl ReasoningContent {
    /// Creates reasoning without provider metadata.
    pub fn new(text: impl Into<String>) -> Self {
        ReasoningContent { text: text.into(), provider_metadata: None }
    }
}

impl FileContent {
    /// Creates a file without a name and without provider metadata.
    pub fn new(media_type: impl Into<Box<str>>, source: FileSource) -> Self {
        let media_type = media_type.into();
        FileContent { media_type, filename: None, source, provider_metadata: None }
    }
}

impl FileSource {
    /// Creates the source from the URL of a file part in a UI message.
    ///
    /// A `data:` URL in Base64 becomes [`FileSource::Base64`], and any other URL
    /// [`FileSource::Url`].
    ///
    /// ```
    /// use ui_message_stream::model::FileSource;
    ///
    /// let source = FileSource::from_url("data:text/plain;base64,SGk=");
    /// assert_eq!(source, FileSource::Base64("SGk=".into()));
    /// ```
    pub fn from_url(url: &str) -> Self {
        match url.split_once(',') {
            Some((head, base64)) if has_scheme(url, &["data"]) && is_base64(head) => {
                FileSource::Base64(base64.to_owned())
            }
            _ => FileSource::Url(url.to_owned()),
        }
    }
}

fn is_base64(head: &str) -> bool {
    head.rsplit_once(';').is_some_and(|(_, last)| last.trim().eq_ignore_ascii_case("base64"))
}

impl ToolCallContent {
    /// Creates a call that the provider does not execute, without provider metadata.
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

    /// Returns the input as an object, for providers that accept only objects.
    ///
    /// `null` becomes the empty object. Any other value that is not an object is put in the field
    /// `input`; a value that is not valid JSON for every reader is put there as a string of its
    /// text.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::model::ToolCallContent;
    ///
    /// let call = ToolCallContent::new("call_1", "search", Json::string("{\"q\": "));
    /// assert_eq!(call.input_object().as_str(), r#"{"input":"{\"q\": "}"#);
    /// ```
    pub fn input_object(&self) -> Json {
        match Json::parse(self.input.as_str()) {
            Ok(input) if input.is_object() => input,
            Ok(input) if input.is_null() => object_with(""),
            Ok(input) => object_with(&format!(r#""input":{input}"#)),
            Err(_) => object_with(&format!(r#""input":{}"#, Json::string(self.input.as_str()))),
        }
    }
}

impl ToolResultContent {
    /// Creates a result without provider metadata.
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

/// Returns a JSON object with these fields, which are given as JSON text.
pub(super) fn object_with(fields: &str) -> Json {
    // Valid JSON after a plain key forms an object. `null` is returned instead of panicking.
    RawValue::from_string(format!("{{{fields}}}")).map_or_else(|_| Json::null(), Json::from_checked)
}

/// Deserializes metadata that a provider sent earlier.
fn received<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ProviderMetadata>, D::Error> {
    let json = Json::deserialize_received(deserializer)?;
    ProviderMetadata::new(json).map(Some).map_err(serde::de::Error::custom)
}
