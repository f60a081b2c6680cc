//! [`AgentEvent`]: what an agent emits, before translation to chunks.
//!
//! An adapter maps the output of its agent to these events and does nothing else: it does not have
//! to open or close steps, parts or the message. The [`Translator`](crate::Translator) turns them
//! into chunks.
//!
//! Events can be serialized (as externally tagged JSON), so that a turn can be logged, stored and
//! replayed.

mod text;
mod tool_call;

use serde::{Deserialize, Serialize};

pub use self::text::Text;
pub use self::tool_call::{Executor, ToolCall};

use crate::UserText;
use crate::approval::{DeferredOutcome, DeferredToolResult, ToolOutcome};
use crate::chunk::{Chunk, FinishReason};
use crate::id::{ApprovalId, PartId, ToolCallId};
use crate::json::Json;
use crate::metadata::ProviderMetadata;

/// An event that an agent emits.
///
/// Text deltas without an id are added to one text part, the current one. If reasoning, a tool
/// call, a file, a new step or a part with an id came in between, the next delta begins a new text
/// part. Reasoning deltas without an id work in the same way. Deltas with ids can write several
/// parts at once. Each of these parts stays open until its end event or the end of the step.
///
/// The events of a tool call come in this order: optionally `ToolInputStart` and `ToolInputDelta`s;
/// then `ToolInput`; optionally `ApprovalRequested` and `InputChanged`; then `ToolOutput`, `ToolFailed` or
/// `ToolDenied`. After `ToolInputInvalid` no other event of the call is needed. If an id is
/// announced again after its call has a result, the id names a new call.
///
/// ```
/// use ui_message_stream::event::{AgentEvent, ToolCall};
/// use ui_message_stream::Json;
///
/// let events = [
///     AgentEvent::text("I will look."),
///     AgentEvent::tool_input(
///         ToolCall::new("call_1", "read_file"),
///         Json::from_serialize(&["notes.txt"])?,
///     ),
///     AgentEvent::tool_output("call_1", Json::from_serialize("milk, bread")?),
///     AgentEvent::text("You need milk and bread."),
/// ];
/// # let _ = events;
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum AgentEvent {
    /// A step begins: one model call and the tool calls that it causes. This event is optional.
    /// Without it the translator begins a step at the first content. After all tool calls of a step
    /// have results, the next content begins a new step.
    StepStart,
    /// A text part begins.
    TextStart {
        /// The id of the part until its end.
        id: PartId,
    },
    /// Text to add.
    TextDelta {
        /// The id of the part. If no part with this id is open, the part is opened. `None`: the
        /// current part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<PartId>,
        /// The text. Empty text has no effect.
        delta: Text,
    },
    /// A text part ends.
    TextEnd {
        /// The id of the part.
        id: PartId,
    },
    /// A reasoning part begins.
    ReasoningStart {
        /// The id of the part until its end.
        id: PartId,
    },
    /// Reasoning to add.
    ReasoningDelta {
        /// The id of the part. If no part with this id is open, the part is opened. `None`: the
        /// current part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<PartId>,
        /// The text. Empty text has no effect.
        delta: Text,
    },
    /// A reasoning part ends.
    ReasoningEnd {
        /// The id of the part. `None`: the current part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<PartId>,
        /// Metadata that the provider expects back with the next request, for example the signature
        /// of the reasoning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_metadata: Option<ProviderMetadata>,
    },
    /// A tool call is announced, and its input streams in.
    ToolInputStart {
        /// The call.
        call: Box<ToolCall>,
    },
    /// A piece of a streaming tool input.
    ToolInputDelta {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The text to add.
        delta: Text,
    },
    /// A tool call with its whole input.
    ToolInput {
        /// The call.
        call: Box<ToolCall>,
        /// The input.
        input: Json,
    },
    /// A tool call whose input is not valid for the tool. The call does not run, and the error
    /// becomes its result.
    ToolInputInvalid {
        /// The call.
        call: Box<ToolCall>,
        /// The input as the model wrote it. Text that is not JSON goes into [`Json::string`].
        input: Json,
        /// What is wrong with the input.
        error: Text,
    },
    /// A tool call waits for the user's approval.
    ApprovalRequested {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The id of the approval request, which is not the id of the call.
        approval_id: ApprovalId,
        /// What the user sees with the request, and a signature of the server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<Box<ApprovalRequestDetails>>,
    },
    /// The user denied the call. If the server itself refuses a call, emit
    /// [`ToolRefused`](AgentEvent::ToolRefused).
    ToolDenied {
        /// The id of the call.
        tool_call_id: ToolCallId,
    },
    /// The message that the client sent denies this call, but the call was approved before. The
    /// denial is ignored: the call gets its result now or later. No chunk is sent for this event.
    DenialOverruled {
        /// The id of the call.
        tool_call_id: ToolCallId,
    },
    /// The approver of the call has changed its input. The client shows the changed input with the
    /// result of the call, which must follow.
    ///
    /// It is shown only if the call is in the current step of the message, because a client would show a
    /// second call otherwise. No chunk is sent for this event alone.
    InputChanged {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The input with which the call ran.
        input: Json,
    },
    /// The call was approved, and the client executes it: it reads the input now.
    ///
    /// Emit [`ToolInputStart`](Self::ToolInputStart) and the whole input as
    /// [`ToolInputDelta`](Self::ToolInputDelta) before the approval is requested, and no
    /// [`ToolInput`](Self::ToolInput): a client executes the call when it reads that. No chunk is sent for
    /// a call of an earlier step, because a client would show a second call.
    HandedToClient {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The input that was approved.
        input: Json,
    },
    /// A tool returned an output.
    ToolOutput {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The output.
        output: Json,
        /// Whether a later output replaces this one.
        #[serde(default)]
        preliminary: bool,
    },
    /// A tool failed.
    ToolFailed {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The text that the user sees.
        error: Text,
    },
    /// The server refused to run the call, without a question to a user. If the version is [`Version::V7`] or
    /// [`Version::V7Patch`], the client shows a denied call. In all other cases it shows a call that failed with this
    /// reason: with another version, without approvals, if the client executes the call, or if it executes another call
    /// of the step. It sends no outputs of a step with a denied call, so emit this event after the calls that the client
    /// executes.
    ///
    /// [`Version::V7`]: crate::chunk::Version::V7
    /// [`Version::V7Patch`]: crate::chunk::Version::V7Patch
    ToolRefused {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The text that the user and the model read.
        reason: Text,
    },
    /// A source that the model used for its answer.
    Source(Box<Source>),
    /// A file that the model made.
    File(Box<File>),
    /// Data of the application.
    Data(Box<Data>),
    /// An object to merge into the message's metadata.
    Metadata(Json),
    /// The step ends.
    StepFinish,
    /// The turn failed. The client reads nothing after this event.
    Error {
        /// The text that the user sees. If the user must not see the cause, yield an `Err` from the
        /// event stream instead: the user then sees a masked text.
        error_text: Text,
    },
    /// The turn was stopped.
    Abort {
        /// Who or what stopped it. Sent only to clients that know the field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Text>,
    },
    /// The turn ended.
    Finish {
        /// The reason.
        reason: FinishReason,
        /// An object to merge into the message's metadata.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Json>,
    },
    /// A chunk of the protocol, for content that has no event of its own. The translator applies
    /// the same rules to it as to an event.
    Chunk(Box<Chunk<'static>>),
}

impl AgentEvent {
    /// Adds text to the current text part.
    pub fn text(delta: impl Into<Text>) -> Self {
        AgentEvent::TextDelta { id: None, delta: delta.into() }
    }

    /// Adds reasoning to the current reasoning part.
    pub fn reasoning(delta: impl Into<Text>) -> Self {
        AgentEvent::ReasoningDelta { id: None, delta: delta.into() }
    }

    /// Announces a tool call whose input is streamed by the events that follow.
    pub fn tool_input_start(call: ToolCall) -> Self {
        AgentEvent::ToolInputStart { call: Box::new(call) }
    }

    /// Adds a piece to a streaming tool input.
    pub fn tool_input_delta(tool_call_id: impl Into<ToolCallId>, delta: impl Into<Text>) -> Self {
        AgentEvent::ToolInputDelta { tool_call_id: tool_call_id.into(), delta: delta.into() }
    }

    /// Announces a tool call with its whole input.
    pub fn tool_input(call: ToolCall, input: Json) -> Self {
        AgentEvent::ToolInput { call: Box::new(call), input }
    }

    /// Announces a tool call whose input is not valid for the tool.
    pub fn tool_input_invalid(call: ToolCall, input: Json, error: impl Into<Text>) -> Self {
        AgentEvent::ToolInputInvalid { call: Box::new(call), input, error: error.into() }
    }

    /// Requests the user's approval of a tool call.
    pub fn approval_requested(
        tool_call_id: impl Into<ToolCallId>,
        approval_id: impl Into<ApprovalId>,
    ) -> Self {
        AgentEvent::ApprovalRequested {
            tool_call_id: tool_call_id.into(),
            approval_id: approval_id.into(),
            details: None,
        }
    }

    /// Reports that the user denied a tool call.
    pub fn tool_denied(tool_call_id: impl Into<ToolCallId>) -> Self {
        AgentEvent::ToolDenied { tool_call_id: tool_call_id.into() }
    }

    /// Creates the event that replaces the data of a call's `data-approval` part.
    #[cfg(feature = "approvals")]
    pub fn approval_data(call: &ToolCallId, data: Json) -> Self {
        let id = Some(call.to_string().into());
        AgentEvent::Data(Box::new(Data {
            name: crate::approval::APPROVAL_DATA_NAME.into(),
            id,
            data,
            transient: false,
        }))
    }

    /// Creates the event that reports a deferred result, which is the result of a call that an
    /// earlier turn left open. The event is a denial, an output, an error, or that the client executes
    /// the call. An error is also the event of a call that was not executed, or whose outcome is unknown.
    ///
    /// Returns `None` in three cases: the call has not been executed yet, the provider will report
    /// its result, or the client sent the result itself.
    ///
    /// ```
    /// use ui_message_stream::AgentEvent;
    /// use ui_message_stream::approval::DeferredToolResults;
    ///
    /// let decided = DeferredToolResults::builder().deny("call_1", "transfer", None).build();
    /// let event = AgentEvent::from_deferred(&decided.results()[0]);
    /// assert_eq!(event, Some(AgentEvent::tool_denied("call_1")));
    /// ```
    pub fn from_deferred(result: &DeferredToolResult) -> Option<Self> {
        let id = result.tool_call_id.clone();
        Some(match &result.outcome {
            DeferredOutcome::Denied { .. }
            | DeferredOutcome::ForwardToProvider { approved: false, .. } => Self::tool_denied(id),
            DeferredOutcome::Executed { outcome: ToolOutcome::Output(output) } => {
                Self::tool_output(id, output.clone())
            }
            DeferredOutcome::Executed { outcome: ToolOutcome::Failed(error) } => {
                Self::tool_failed(id, error.clone())
            }
            DeferredOutcome::Executed { outcome: ToolOutcome::HandedToClient(input) } => {
                Self::HandedToClient { tool_call_id: id, input: input.clone() }
            }
            DeferredOutcome::OutcomeUnknown => Self::tool_failed(id, UserText::OutcomeUnknown),
            DeferredOutcome::Expired => Self::tool_failed(id, UserText::Expired),
            DeferredOutcome::Superseded => Self::tool_failed(id, UserText::Superseded),
            DeferredOutcome::Lapsed => Self::tool_failed(id, UserText::Lapsed),
            DeferredOutcome::Revoked => Self::tool_failed(id, UserText::Revoked),
            DeferredOutcome::Rejected => Self::tool_failed(id, UserText::Refused),
            DeferredOutcome::Forgotten => Self::tool_failed(id, UserText::Forgotten),
            DeferredOutcome::Approved { .. }
            | DeferredOutcome::Executing { .. }
            | DeferredOutcome::ForwardToProvider { approved: true, .. }
            | DeferredOutcome::ForwardedToProvider
            | DeferredOutcome::Output { .. }
            | DeferredOutcome::OutputError { .. } => return None,
        })
    }

    /// Returns the events that show the result of a deferred tool call to a client that may hold
    /// another decision: a denial that arrived after the approval, for example.
    #[cfg(feature = "approvals")]
    pub fn settling(result: &DeferredToolResult) -> impl Iterator<Item = Self> + use<> {
        let is_approved = result.outcome.matches_decision(true);
        let overruled = is_approved
            .then(|| Self::DenialOverruled { tool_call_id: result.tool_call_id.clone() });
        let decision = Self::decision(result);
        let changed = Self::input_changed(result);
        overruled.into_iter().chain(decision).chain(changed).chain(Self::from_deferred(result))
    }

    /// Returns the event that tells a client how a call was decided, for a client that has not decided it. Clients
    /// before `ai@7` have no chunk for it.
    #[cfg(feature = "approvals")]
    pub fn decision(result: &DeferredToolResult) -> Option<Self> {
        let is_decided_as = |approved| result.outcome.matches_decision(approved);
        let approved = [true, false].into_iter().find(|approved| is_decided_as(*approved))?;
        let reason = match &result.outcome {
            DeferredOutcome::Denied { reason }
            | DeferredOutcome::ForwardToProvider { reason, .. } => reason.clone(),
            _ => None,
        };
        Some(AgentEvent::Chunk(Box::new(Chunk::ToolApprovalResponse {
            approval_id: result.approval_id.as_ref()?.to_string().into(),
            approved,
            reason: reason.map(Into::into),
            provider_executed: None,
            provider_metadata: None,
        })))
    }

    /// Returns the event that shows the input of an approved call, if its approver changed it.
    #[cfg(feature = "approvals")]
    pub fn input_changed(result: &DeferredToolResult) -> Option<Self> {
        let changed = result.changed_input.as_ref();
        let changed = changed.filter(|_| result.outcome.matches_decision(true))?;
        let tool_call_id = result.tool_call_id.clone();
        Some(AgentEvent::InputChanged { tool_call_id, input: changed.changed.clone() })
    }

    /// Reports the final output of a tool.
    pub fn tool_output(tool_call_id: impl Into<ToolCallId>, output: Json) -> Self {
        AgentEvent::ToolOutput { tool_call_id: tool_call_id.into(), output, preliminary: false }
    }

    /// Reports a preliminary output of a tool, which a later output replaces.
    pub fn preliminary_output(tool_call_id: impl Into<ToolCallId>, output: Json) -> Self {
        AgentEvent::ToolOutput { tool_call_id: tool_call_id.into(), output, preliminary: true }
    }

    /// Reports the failure of a tool.
    pub fn tool_failed(tool_call_id: impl Into<ToolCallId>, error: impl Into<Text>) -> Self {
        AgentEvent::ToolFailed { tool_call_id: tool_call_id.into(), error: error.into() }
    }

    /// Reports that the server refused to run a call.
    pub fn tool_refused(tool_call_id: impl Into<ToolCallId>, reason: impl Into<Text>) -> Self {
        AgentEvent::ToolRefused { tool_call_id: tool_call_id.into(), reason: reason.into() }
    }

    /// Adds data of the application, which is kept in the message.
    pub fn data(name: impl Into<Text>, data: Json) -> Self {
        AgentEvent::Data(Box::new(Data { name: name.into(), id: None, data, transient: false }))
    }

    /// Ends the turn as failed, with a text that the user sees.
    pub fn error(error_text: impl Into<Text>) -> Self {
        AgentEvent::Error { error_text: error_text.into() }
    }

    /// Ends the turn.
    pub fn finish(reason: FinishReason) -> Self {
        AgentEvent::Finish { reason, metadata: None }
    }
}

/// What a server attaches to an approval request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequestDetails {
    /// The data that the user sees with the approval request. It is sent as a `data-approval` part
    /// with the id of the call. Clients that know the field `approvalDescriptor` also receive it in
    /// the approval request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<Json>,
    /// Why the user is asked, or what the call does, in words for the user. Sent only to clients that know the
    /// field, from `ai@7.0.82` on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text>,
    /// A signature that the client sends back unchanged. Sent only to clients that know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Text>,
}

/// A source that the model used for its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Source {
    /// A web page.
    Url {
        /// The id of the source.
        source_id: Text,
        /// Its URL: `https:` or `http:`.
        url: Text,
        /// Its title.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<Text>,
    },
    /// A document.
    Document {
        /// The id of the source.
        source_id: Text,
        /// Its media type.
        media_type: Text,
        /// Its title.
        title: Text,
        /// Its file name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filename: Option<Text>,
    },
}

/// A file that the model made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Its URL: `https:`, `http:` or `data:`.
    pub url: Text,
    /// Its media type.
    pub media_type: Text,
}

/// Data of the application: a part `data-<name>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    /// The part's type without `data-`.
    pub name: Text,
    /// The id. Data of the message with the same name and id is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Text>,
    /// The data.
    pub data: Json,
    /// Whether the client only passes the data to the callback `onData` of `useChat` and does not
    /// keep it in the message.
    #[serde(default)]
    pub transient: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_event_is_at_most_56_bytes() {
        assert!(size_of::<AgentEvent>() <= 56, "{}", size_of::<AgentEvent>());
    }

    #[test]
    fn events_can_be_serialized_and_read_back() {
        let events = [
            AgentEvent::StepStart,
            AgentEvent::text("Hi"),
            AgentEvent::tool_input(
                ToolCall::new("c", "t").client_executed().dynamic(),
                Json::parse(r#"{"a":[1.0,"é"]}"#).unwrap(),
            ),
            AgentEvent::data("status", Json::null()),
            AgentEvent::Chunk(Box::new(Chunk::TextEnd {
                id: "0".into(),
                citations: None,
                provider_metadata: Some(std::borrow::Cow::Owned(
                    ProviderMetadata::parse(r#"{"p":{}}"#).unwrap(),
                )),
            })),
            AgentEvent::finish(FinishReason::ToolCalls),
        ];
        let stored = serde_json::to_string(&events).unwrap();
        assert_eq!(serde_json::from_str::<Vec<AgentEvent>>(&stored).unwrap(), events);
    }
}
