//! [`ToolPart`]: a tool call in a message, and its state.

use std::fmt;

use serde::ser::SerializeMap;

use super::approval::{ApprovalDetails, RequestedApproval, RespondedApproval, SettledApproval};
use super::read::{Fault, Reader, provider_metadata, tool_metadata};
use crate::chunk::InputEncoding;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::{ExtraFields, FieldError, Json, Object, entry_if_any};
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// A tool call in a message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolPart {
    /// The id of the call. Several parts of a message may have the same id.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// How the part names its tool.
    pub kind: ToolKind,
    /// The title that the user sees instead of the name. The client does not check its type.
    pub title: Option<Json>,
    /// Metadata of the application.
    pub tool_metadata: Option<ToolMetadata>,
    /// Whether the provider runs the tool.
    pub provider_executed: Option<bool>,
    /// Metadata about the call that the provider expects back.
    pub call_provider_metadata: Option<ProviderMetadata>,
    /// The state of the call.
    pub state: ToolState,
    /// Fields that this crate does not know, or that do not belong to the state.
    pub extra: ExtraFields,
}

/// How a part names its tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolKind {
    /// `tool-<name>`: the client knows the tool.
    Static,
    /// `dynamic-tool`: the client learns of the tool from the call.
    Dynamic,
    /// `dynamic-tool` with `dynamic: false`: a static tool that is not registered any more.
    Unregistered,
}

/// The state of a tool call, with what exists in that state.
///
/// `input` and `output` may be absent on the wire in every state: the client does not require them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ToolState {
    /// The input is being streamed.
    InputStreaming {
        /// The input as far as it can be parsed.
        input: Option<Json>,
        /// The text of the input so far.
        raw_input: Option<String>,
        /// How the text is encoded.
        input_encoding: Option<InputEncoding>,
    },
    /// The input is complete: the server runs the tool, or the client has to run it.
    InputAvailable {
        /// The input.
        input: Option<Json>,
    },
    /// The user is asked for approval.
    ApprovalRequested {
        /// The input.
        input: Option<Json>,
        /// The approval request.
        approval: Box<RequestedApproval>,
    },
    /// The user answered the approval request.
    ApprovalResponded {
        /// The input.
        input: Option<Json>,
        /// The approval response.
        approval: Box<RespondedApproval>,
    },
    /// The tool returned an output.
    OutputAvailable {
        /// The input.
        input: Option<Json>,
        /// The output.
        output: Option<Json>,
        /// Whether a later output replaces this one.
        preliminary: Option<bool>,
        /// The approval, if the user was asked before.
        approval: Option<Box<SettledApproval>>,
        /// Metadata about the output that the provider expects back.
        result_provider_metadata: Option<ProviderMetadata>,
    },
    /// The tool failed, or was not run.
    OutputError {
        /// The input.
        input: Option<Json>,
        /// An input that could not be parsed, as it was received.
        raw_input: Option<Json>,
        /// The text that the user sees.
        error_text: String,
        /// The approval, if the user was asked before.
        approval: Option<Box<SettledApproval>>,
        /// Metadata about the error that the provider expects back.
        result_provider_metadata: Option<ProviderMetadata>,
    },
    /// The user denied the call, or a server refused it by itself. After a refusal by a server the
    /// approval may be unanswered or granted.
    OutputDenied {
        /// The input.
        input: Option<Json>,
        /// The approval, if the user was asked.
        approval: Option<Box<SettledApproval>>,
    },
    /// A state that this crate does not know. The fields are in [`ToolPart::extra`].
    Unknown {
        /// Its name.
        state: Box<str>,
    },
}

/// Why a tool part cannot be answered: its call is in another state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the call is in the state `{state}`, and not `{expected}`")]
pub struct ToolStateError {
    state: Box<str>,
    expected: &'static str,
}

impl ToolPart {
    /// Returns whether the part is a `dynamic-tool`.
    pub fn is_dynamic(&self) -> bool {
        self.kind != ToolKind::Static
    }

    /// Returns whether the call has its final result.
    pub fn is_settled(&self) -> bool {
        match &self.state {
            ToolState::OutputAvailable { preliminary, .. } => *preliminary != Some(true),
            ToolState::OutputError { .. } | ToolState::OutputDenied { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the user is asked for approval.
    pub fn awaits_approval(&self) -> bool {
        matches!(self.state, ToolState::ApprovalRequested { .. })
    }

    /// Returns the input in any state, except a state that this crate does not know.
    pub fn input(&self) -> Option<&Json> {
        match &self.state {
            ToolState::InputStreaming { input, .. }
            | ToolState::InputAvailable { input }
            | ToolState::ApprovalRequested { input, .. }
            | ToolState::ApprovalResponded { input, .. }
            | ToolState::OutputAvailable { input, .. }
            | ToolState::OutputError { input, .. }
            | ToolState::OutputDenied { input, .. } => input.as_ref(),
            ToolState::Unknown { .. } => None,
        }
    }

    /// Returns the id of the call inside which this call is made: the tool of that call is an agent,
    /// which asks for this one. The model that has made the outer call does not read this call.
    pub fn outer_call(&self) -> Option<ToolCallId> {
        self.call_provider_metadata.as_ref()?.outer_call()
    }

    /// Returns the id of the approval, also if the state of the part has no approval any more.
    pub(crate) fn held_approval_id(&self) -> Option<ApprovalId> {
        let stale = || SettledApproval::stale(&self.extra).map(|stale| stale.id);
        self.approval_id().cloned().or_else(stale)
    }

    /// Returns the id of the call's approval, if the user was asked.
    pub fn approval_id(&self) -> Option<&ApprovalId> {
        match &self.state {
            ToolState::ApprovalRequested { approval, .. } => Some(&approval.id),
            ToolState::ApprovalResponded { approval, .. } => Some(&approval.id),
            ToolState::OutputAvailable { approval, .. }
            | ToolState::OutputError { approval, .. }
            | ToolState::OutputDenied { approval, .. } => Some(&approval.as_ref()?.id),
            _ => None,
        }
    }

    /// Writes the user's answer to the approval request, as `addToolApprovalResponse` of the client
    /// does. Post the message as the last one of the conversation, and the server continues it.
    ///
    /// # Errors
    /// If the call is in another state than [`ToolState::ApprovalRequested`]. It stays as it is.
    ///
    /// ```
    /// use ui_message_stream::UiMessage;
    ///
    /// let mut message = UiMessage::parse(
    ///     r#"{"id":"m2","role":"assistant","parts":[{"type":"tool-delete","toolCallId":"c1",
    ///     "state":"approval-requested","input":{"path":"/a"},"approval":{"id":"a1"}}]}"#,
    /// )?;
    /// let part = message.tool_parts_mut().next().unwrap();
    /// part.respond(false, Some("Keep it."))?;
    ///
    /// let error = part.respond(true, None).unwrap_err();
    /// let text = "the call is in the state `approval-responded`, and not `approval-requested`";
    /// assert_eq!(error.to_string(), text);
    /// assert_eq!(
    ///     serde_json::to_string(&message.parts)?,
    ///     r#"[{"type":"tool-delete","toolCallId":"c1","state":"approval-responded","input":{"path":"/a"},"approval":{"id":"a1","approved":false,"reason":"Keep it."}}]"#,
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "addToolApprovalResponse")]
    pub fn respond(&mut self, approved: bool, reason: Option<&str>) -> Result<(), ToolStateError> {
        let ToolState::ApprovalRequested { input, approval } = &mut self.state else {
            return Err(self.is_not("approval-requested"));
        };
        let approval = RespondedApproval {
            id: approval.id.clone(),
            approved,
            reason: reason.map(str::to_owned),
            details: std::mem::take(&mut approval.details),
        };
        let input = input.take();
        let approval = Box::new(approval);
        self.state = ToolState::ApprovalResponded { input, approval };
        Ok(())
    }

    /// Writes the output of a call that the client has executed, or the text of its error, as
    /// `addToolOutput` of the client does. Post the message as the last one of the conversation.
    ///
    /// # Errors
    /// If the call is in another state than [`ToolState::InputAvailable`]. It stays as it is.
    ///
    /// ```
    /// use ui_message_stream::{Json, UiMessage};
    ///
    /// let text = r#"{"id":"m2","role":"assistant","parts":[{"type":"tool-locate","toolCallId":"c1",
    ///     "state":"input-available","input":{}}]}"#;
    /// let [mut found, mut failed] = [UiMessage::parse(text)?, UiMessage::parse(text)?];
    /// found.tool_parts_mut().next().unwrap().set_output(Ok(Json::string("Lisbon")))?;
    /// failed.tool_parts_mut().next().unwrap().set_output(Err("No signal.".to_owned()))?;
    /// assert_eq!(
    ///     serde_json::to_string(&[&found.parts, &failed.parts])?,
    ///     r#"[[{"type":"tool-locate","toolCallId":"c1","state":"output-available","input":{},"output":"Lisbon"}],[{"type":"tool-locate","toolCallId":"c1","state":"output-error","input":{},"errorText":"No signal."}]]"#,
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "addToolOutput")]
    #[doc(alias = "addToolResult")]
    pub fn set_output(&mut self, output: Result<Json, String>) -> Result<(), ToolStateError> {
        let ToolState::InputAvailable { input } = &mut self.state else {
            return Err(self.is_not("input-available"));
        };
        let input = input.take();
        self.state = match output {
            Ok(output) => ToolState::OutputAvailable {
                input,
                output: Some(output),
                preliminary: None,
                approval: None,
                result_provider_metadata: None,
            },
            Err(error_text) => ToolState::OutputError {
                input,
                raw_input: None,
                error_text,
                approval: None,
                result_provider_metadata: None,
            },
        };
        Ok(())
    }

    fn is_not(&self, expected: &'static str) -> ToolStateError {
        ToolStateError { state: self.state.as_str().into(), expected }
    }

    /// Returns a rank among the parts of the same call: the part with the highest rank counts.
    pub(super) fn progress(&self) -> u8 {
        match &self.state {
            _ if self.is_settled() => 5,
            ToolState::ApprovalResponded { approval, .. } if !approval.approved => 4,
            ToolState::ApprovalResponded { .. } => 3,
            ToolState::ApprovalRequested { .. } => 2,
            ToolState::InputAvailable { .. } | ToolState::OutputAvailable { .. } => 1,
            _ => 0,
        }
    }

    pub(super) fn read_static(
        tool_name: &str,
        object: Object<'_>,
        reader: &mut Reader,
    ) -> Result<Self, Fault> {
        Self::read(ToolKind::Static, tool_name.into(), object, reader)
    }

    pub(super) fn read_dynamic(mut object: Object<'_>, reader: &mut Reader) -> Result<Self, Fault> {
        let kind = match object.flag_if_any("dynamic")? {
            None => ToolKind::Dynamic,
            Some(false) => ToolKind::Unregistered,
            Some(true) => return Err(FieldError::expected("dynamic", "`false`, or none").into()),
        };
        let tool_name = object.text("toolName")?.into();
        Self::read(kind, tool_name, object, reader)
    }

    fn read(
        kind: ToolKind,
        tool_name: Box<str>,
        mut object: Object<'_>,
        reader: &mut Reader,
    ) -> Result<Self, Fault> {
        Ok(ToolPart {
            tool_call_id: ToolCallId::new(&*object.text("toolCallId")?),
            tool_name,
            kind,
            title: object.json_if_any("title")?,
            tool_metadata: tool_metadata(&mut object)?,
            provider_executed: object.flag_if_any("providerExecuted")?,
            call_provider_metadata: provider_metadata(&mut object, "callProviderMetadata")?,
            state: ToolState::read(&mut object, reader)?,
            extra: object.into_extra()?,
        })
    }

    pub(super) fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        match self.kind {
            ToolKind::Static => {
                map.serialize_entry("type", &format_args!("tool-{}", self.tool_name))?;
            }
            ToolKind::Dynamic | ToolKind::Unregistered => {
                map.serialize_entry("type", "dynamic-tool")?;
                if self.kind == ToolKind::Unregistered {
                    map.serialize_entry("dynamic", &false)?;
                }
                map.serialize_entry("toolName", &self.tool_name)?;
            }
        }
        map.serialize_entry("toolCallId", &self.tool_call_id)?;
        entry_if_any(map, "title", &self.title)?;
        entry_if_any(map, "toolMetadata", &self.tool_metadata)?;
        entry_if_any(map, "providerExecuted", &self.provider_executed)?;
        entry_if_any(map, "callProviderMetadata", &self.call_provider_metadata)?;
        self.state.write(map)?;
        self.extra.write(map)
    }
}

impl ToolState {
    /// Returns what the server attached to the approval request, if the user was asked.
    pub(crate) fn approval_details(&self) -> Option<&ApprovalDetails> {
        match self {
            ToolState::ApprovalRequested { approval, .. } => Some(&approval.details),
            ToolState::ApprovalResponded { approval, .. } => Some(&approval.details),
            ToolState::OutputAvailable { approval, .. }
            | ToolState::OutputError { approval, .. }
            | ToolState::OutputDenied { approval, .. } => Some(&approval.as_ref()?.details),
            _ => None,
        }
    }

    pub(crate) fn approval_details_mut(&mut self) -> Option<&mut ApprovalDetails> {
        match self {
            ToolState::ApprovalRequested { approval, .. } => Some(&mut approval.details),
            ToolState::ApprovalResponded { approval, .. } => Some(&mut approval.details),
            ToolState::OutputAvailable { approval, .. }
            | ToolState::OutputError { approval, .. }
            | ToolState::OutputDenied { approval, .. } => Some(&mut approval.as_mut()?.details),
            _ => None,
        }
    }

    /// Returns the word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            ToolState::InputStreaming { .. } => "input-streaming",
            ToolState::InputAvailable { .. } => "input-available",
            ToolState::ApprovalRequested { .. } => "approval-requested",
            ToolState::ApprovalResponded { .. } => "approval-responded",
            ToolState::OutputAvailable { .. } => "output-available",
            ToolState::OutputError { .. } => "output-error",
            ToolState::OutputDenied { .. } => "output-denied",
            ToolState::Unknown { state } => state,
        }
    }

    /// Removes the fields of the state and reads them. All other fields stay unread in `object`.
    fn read(object: &mut Object<'_>, reader: &mut Reader) -> Result<Self, Fault> {
        Ok(match &*object.text("state")? {
            "input-streaming" => ToolState::InputStreaming {
                input: object.json_if_any("input")?,
                raw_input: object.text_if_any("rawInput")?.map(Into::into),
                input_encoding: input_encoding(object)?,
            },
            "input-available" => ToolState::InputAvailable { input: object.json_if_any("input")? },
            "approval-requested" => ToolState::ApprovalRequested {
                input: object.json_if_any("input")?,
                approval: SettledApproval::take(object, reader)?
                    .ok_or(FieldError::missing("approval"))?
                    .into_requested()?
                    .into(),
            },
            "approval-responded" => ToolState::ApprovalResponded {
                input: object.json_if_any("input")?,
                approval: SettledApproval::take(object, reader)?
                    .ok_or(FieldError::missing("approval"))?
                    .into_responded()?
                    .into(),
            },
            "output-available" => ToolState::OutputAvailable {
                input: object.json_if_any("input")?,
                output: object.json_if_any("output")?,
                preliminary: object.flag_if_any("preliminary")?,
                approval: SettledApproval::take(object, reader)?.map(Box::new),
                result_provider_metadata: provider_metadata(object, "resultProviderMetadata")?,
            },
            "output-error" => ToolState::OutputError {
                input: object.json_if_any("input")?,
                raw_input: object.json_if_any("rawInput")?,
                error_text: object.text("errorText")?.into_owned(),
                approval: SettledApproval::take(object, reader)?.map(Box::new),
                result_provider_metadata: provider_metadata(object, "resultProviderMetadata")?,
            },
            "output-denied" => ToolState::OutputDenied {
                input: object.json_if_any("input")?,
                approval: SettledApproval::take(object, reader)?.map(Box::new),
            },
            other => ToolState::Unknown { state: other.into() },
        })
    }

    fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("state", self.as_str())?;
        match self {
            ToolState::InputStreaming { input, raw_input, input_encoding } => {
                entry_if_any(map, "input", input)?;
                entry_if_any(map, "rawInput", raw_input)?;
                entry_if_any(map, "inputEncoding", input_encoding)
            }
            ToolState::InputAvailable { input } => entry_if_any(map, "input", input),
            ToolState::ApprovalRequested { input, approval } => {
                entry_if_any(map, "input", input)?;
                map.serialize_entry("approval", approval)
            }
            ToolState::ApprovalResponded { input, approval } => {
                entry_if_any(map, "input", input)?;
                map.serialize_entry("approval", approval)
            }
            ToolState::OutputAvailable {
                input,
                output,
                preliminary,
                approval,
                result_provider_metadata,
            } => {
                entry_if_any(map, "input", input)?;
                entry_if_any(map, "output", output)?;
                entry_if_any(map, "preliminary", preliminary)?;
                entry_if_any(map, "approval", approval)?;
                entry_if_any(map, "resultProviderMetadata", result_provider_metadata)
            }
            ToolState::OutputError {
                input,
                raw_input,
                error_text,
                approval,
                result_provider_metadata,
            } => {
                entry_if_any(map, "input", input)?;
                entry_if_any(map, "rawInput", raw_input)?;
                map.serialize_entry("errorText", error_text)?;
                entry_if_any(map, "approval", approval)?;
                entry_if_any(map, "resultProviderMetadata", result_provider_metadata)
            }
            ToolState::OutputDenied { input, approval } => {
                entry_if_any(map, "input", input)?;
                entry_if_any(map, "approval", approval)
            }
            ToolState::Unknown { .. } => Ok(()),
        }
    }
}

/// Writes the word on the wire.
impl fmt::Display for ToolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

fn input_encoding(object: &mut Object<'_>) -> Result<Option<InputEncoding>, FieldError> {
    let Some(word) = object.text_if_any("inputEncoding")? else {
        return Ok(None);
    };
    let encoding = InputEncoding::from_wire(&word);
    encoding.map(Some).ok_or_else(|| FieldError::expected("inputEncoding", "`json` or `text`"))
}
