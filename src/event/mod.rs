//! [`AgentEvent`]: what an agent says, in the agent's own words.
//!
//! An adapter maps its agent to these and is done: no step, part or message has to be opened or
//! closed for them to make sense. The [`Translator`](crate::Translator) turns them into chunks.
//!
//! Events serialize (as externally tagged JSON), so that a run can be logged, stored and replayed.

mod text;

use serde::{Deserialize, Serialize};

pub use self::text::Text;

pub(crate) use crate::approval::OUTCOME_UNKNOWN;
use crate::approval::{self, DeferredOutcome, DeferredToolResult, ToolOutcome};
use crate::chunk::{Chunk, FinishReason};
use crate::id::{ApprovalId, PartId, ToolCallId};
use crate::json::Json;
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// One thing that happened in the agent.
///
/// Text without an id belongs to the part that is being written; it begins anew after reasoning, a
/// tool call, a file or a step. With an id, several parts may be open at once, each until its end.
///
/// A tool call is one call from its announcement to its result: `ToolInput` (whole, or preceded by
/// `ToolInputStart` and deltas), perhaps `ApprovalRequested`, then `ToolOutput`, `ToolFailed` or
/// `ToolDenied`. An id that is used again after its call has its result names a new call.
///
/// ```
/// use ui_message_stream::event::{AgentEvent, ToolCall};
/// use ui_message_stream::Json;
///
/// let said = [
///     AgentEvent::text("I will look."),
///     AgentEvent::tool_input(ToolCall::new("call_1", "read_file"), Json::of(&["notes.txt"])?),
///     AgentEvent::tool_output("call_1", Json::of("milk, bread")?),
///     AgentEvent::text("You need milk and bread."),
/// ];
/// # let _ = said;
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum AgentEvent {
    /// A step begins: one model call and the tool calls it causes. Without this event a step begins
    /// with the first content, and with content that follows a tool's result.
    StepStart,
    /// A text part begins.
    TextStart {
        /// Names it until its end.
        id: PartId,
    },
    /// Text to add.
    TextDelta {
        /// To which part; it begins if it is not open. `None`: the part being written.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<PartId>,
        /// The text. Empty text is nothing.
        delta: Text,
    },
    /// A text part ends.
    TextEnd {
        /// Which one.
        id: PartId,
    },
    /// A reasoning part begins.
    ReasoningStart {
        /// Names it until its end.
        id: PartId,
    },
    /// Reasoning to add.
    ReasoningDelta {
        /// To which part; it begins if it is not open. `None`: the part being written.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<PartId>,
        /// The text. Empty text is nothing.
        delta: Text,
    },
    /// A reasoning part ends.
    ReasoningEnd {
        /// Which one; `None`: the part being written.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<PartId>,
        /// What the provider wants back, its signature for instance.
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
        /// Which call.
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
    /// A tool call whose input is not what the tool takes. It has its result: the error.
    ToolInputInvalid {
        /// The call.
        call: Box<ToolCall>,
        /// The input as it came; text that is not JSON goes into [`Json::string`].
        input: Json,
        /// What is wrong with it.
        error: Text,
    },
    /// A tool call waits for a person.
    ApprovalRequested {
        /// Which call.
        tool_call_id: ToolCallId,
        /// Names the question. Never the tool call's id.
        approval_id: ApprovalId,
        /// What comes with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<Box<QuestionDetails>>,
    },
    /// The person said no. A refusal by the server is a [`ToolFailed`](AgentEvent::ToolFailed).
    ToolDenied {
        /// Which call.
        tool_call_id: ToolCallId,
    },
    /// A tool returned.
    ToolOutput {
        /// Which call.
        tool_call_id: ToolCallId,
        /// What it returned.
        output: Json,
        /// Whether a later output replaces this one.
        #[serde(default)]
        preliminary: bool,
    },
    /// A tool failed, or the server refused to run it.
    ToolFailed {
        /// Which call.
        tool_call_id: ToolCallId,
        /// What the person reads.
        error: Text,
    },
    /// Something the answer rests on.
    Source(Box<Source>),
    /// A file that the model made.
    File(Box<File>),
    /// Data of the application.
    Data(Box<Data>),
    /// To merge into the message's metadata.
    Metadata(Json),
    /// The step ends.
    StepFinish,
    /// The run failed. The client stops reading here.
    Error {
        /// What the person reads. A cause that is not for the person's eyes goes into an `Err` of
        /// the event stream instead, where it is masked.
        error_text: Text,
    },
    /// The run was stopped.
    Abort {
        /// By whom or by what; for clients that know it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Text>,
    },
    /// The run ended.
    Finish {
        /// Why.
        reason: FinishReason,
        /// To merge into the message's metadata.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<Json>,
    },
    /// A chunk, for what the events lack. It is held to the same rules as they are.
    Chunk(Box<Chunk<'static>>),
}

impl AgentEvent {
    /// Text to add to the part being written.
    pub fn text(delta: impl Into<Text>) -> Self {
        AgentEvent::TextDelta { id: None, delta: delta.into() }
    }

    /// Reasoning to add to the part being written.
    pub fn reasoning(delta: impl Into<Text>) -> Self {
        AgentEvent::ReasoningDelta { id: None, delta: delta.into() }
    }

    /// A tool call whose input streams in from here on.
    pub fn tool_input_start(call: ToolCall) -> Self {
        AgentEvent::ToolInputStart { call: Box::new(call) }
    }

    /// A piece of a streaming tool input.
    pub fn tool_input_delta(tool_call_id: impl Into<ToolCallId>, delta: impl Into<Text>) -> Self {
        AgentEvent::ToolInputDelta { tool_call_id: tool_call_id.into(), delta: delta.into() }
    }

    /// A tool call with its whole input.
    pub fn tool_input(call: ToolCall, input: Json) -> Self {
        AgentEvent::ToolInput { call: Box::new(call), input }
    }

    /// A tool call whose input is not what the tool takes.
    pub fn tool_input_invalid(call: ToolCall, input: Json, error: impl Into<Text>) -> Self {
        AgentEvent::ToolInputInvalid { call: Box::new(call), input, error: error.into() }
    }

    /// A question to the person.
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

    /// The person's no.
    pub fn tool_denied(tool_call_id: impl Into<ToolCallId>) -> Self {
        AgentEvent::ToolDenied { tool_call_id: tool_call_id.into() }
    }

    /// What is said of a call that an earlier run left open: that it was denied, what came of it, or
    /// that it was not executed.
    ///
    /// `None` where there is nothing to say: the call is still to be run, here or by the provider,
    /// or the client gave the result itself.
    ///
    /// ```
    /// use ui_message_stream::AgentEvent;
    /// use ui_message_stream::approval::DeferredToolResults;
    ///
    /// let decided = DeferredToolResults::decided_by_host().deny("call_1", "transfer", None).build();
    /// let said = AgentEvent::of_deferred(&decided.results()[0]);
    /// assert_eq!(said, Some(AgentEvent::tool_denied("call_1")));
    /// ```
    pub fn of_deferred(result: &DeferredToolResult) -> Option<Self> {
        let id = result.tool_call_id.clone();
        Some(match &result.outcome {
            DeferredOutcome::Denied { .. }
            | DeferredOutcome::ForProvider { approved: false, .. } => Self::tool_denied(id),
            DeferredOutcome::Ran { outcome: ToolOutcome::Output(output) } => {
                Self::tool_output(id, output.clone())
            }
            DeferredOutcome::Ran { outcome: ToolOutcome::Failed(error) } => {
                Self::tool_failed(id, error.clone())
            }
            DeferredOutcome::OutcomeUnknown => Self::tool_failed(id, approval::OUTCOME_UNKNOWN),
            DeferredOutcome::Expired => Self::tool_failed(id, approval::EXPIRED),
            DeferredOutcome::Revoked => Self::tool_failed(id, approval::REVOKED),
            DeferredOutcome::Refused => Self::tool_failed(id, approval::REFUSED),
            DeferredOutcome::Approved { .. }
            | DeferredOutcome::Running { .. }
            | DeferredOutcome::ForProvider { approved: true, .. }
            | DeferredOutcome::Forwarded
            | DeferredOutcome::Output { .. }
            | DeferredOutcome::OutputError { .. } => return None,
        })
    }

    /// A tool's final output.
    pub fn tool_output(tool_call_id: impl Into<ToolCallId>, output: Json) -> Self {
        AgentEvent::ToolOutput { tool_call_id: tool_call_id.into(), output, preliminary: false }
    }

    /// A tool's output that a later one replaces.
    pub fn preliminary_output(tool_call_id: impl Into<ToolCallId>, output: Json) -> Self {
        AgentEvent::ToolOutput { tool_call_id: tool_call_id.into(), output, preliminary: true }
    }

    /// A tool's failure.
    pub fn tool_failed(tool_call_id: impl Into<ToolCallId>, error: impl Into<Text>) -> Self {
        AgentEvent::ToolFailed { tool_call_id: tool_call_id.into(), error: error.into() }
    }

    /// Data of the application, kept in the message.
    pub fn data(name: impl Into<Text>, data: Json) -> Self {
        AgentEvent::Data(Box::new(Data { name: name.into(), id: None, data, transient: false }))
    }

    /// The run's failure, in words for the person.
    pub fn error(error_text: impl Into<Text>) -> Self {
        AgentEvent::Error { error_text: error_text.into() }
    }

    /// The run's end.
    pub fn finish(reason: FinishReason) -> Self {
        AgentEvent::Finish { reason, metadata: None }
    }
}

/// A tool call as its announcement describes it.
///
/// ```
/// use ui_message_stream::event::ToolCall;
///
/// let call = ToolCall::new("call_7", "get_location").client_executed().with_title("Your location");
/// assert_eq!(call.id.as_str(), "call_7");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolCall {
    /// Names the call, within its message: one that was used before in it goes out under another
    /// id, which the client then answers with. An approval is found by its own id all the same;
    /// the output of a client-executed tool is not.
    pub id: ToolCallId,
    /// Which tool.
    pub tool_name: Text,
    /// Who runs the tool.
    #[serde(default)]
    pub executed_by: Executor,
    /// Whether the client does not know the tool by name.
    #[serde(default)]
    pub dynamic: bool,
    /// What a person reads instead of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<Text>,
    /// What the application attaches; for clients that know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_metadata: Option<ToolMetadata>,
    /// What the provider wants back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

impl ToolCall {
    /// A call of a tool that this server runs and the client knows by name.
    pub fn new(id: impl Into<ToolCallId>, tool_name: impl Into<Text>) -> Self {
        ToolCall {
            id: id.into(),
            tool_name: tool_name.into(),
            executed_by: Executor::Server,
            dynamic: false,
            title: None,
            tool_metadata: None,
            provider_metadata: None,
        }
    }

    /// The client runs the tool: the call stays open for its output when the run ends.
    #[must_use]
    pub fn client_executed(mut self) -> Self {
        self.executed_by = Executor::Client;
        self
    }

    /// The provider runs the tool.
    #[must_use]
    pub fn provider_executed(mut self) -> Self {
        self.executed_by = Executor::Provider;
        self
    }

    /// The client does not know the tool by name.
    #[must_use]
    pub fn dynamic(mut self) -> Self {
        self.dynamic = true;
        self
    }

    /// Shows a person this instead of the name.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Text>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Attaches metadata of the application.
    #[must_use]
    pub fn with_tool_metadata(mut self, metadata: ToolMetadata) -> Self {
        self.tool_metadata = Some(metadata);
        self
    }

    /// Attaches what the provider wants back.
    #[must_use]
    pub fn with_provider_metadata(mut self, metadata: ProviderMetadata) -> Self {
        self.provider_metadata = Some(metadata);
        self
    }
}

/// Who runs a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Executor {
    /// This server: the call gets its result before the run ends, or an error then.
    #[default]
    Server,
    /// The client, which answers with its next request.
    Client,
    /// The provider of the model.
    Provider,
}

/// What comes with a question to a person.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuestionDetails {
    /// What the person is shown beside the call: a `data-approval` part with the call's id, and for
    /// clients that know it the descriptor of the approval itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<Json>,
    /// The AI SDK's signature, for a backend built with it that shares the chat; for clients that
    /// know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Text>,
}

/// Something the answer rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Source {
    /// A web page.
    Url {
        /// Names the source.
        source_id: Text,
        /// Where it is.
        url: Text,
        /// Its title.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<Text>,
    },
    /// A document.
    Document {
        /// Names the source.
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
    /// Where it is: `https:` or `data:`.
    pub url: Text,
    /// Its media type.
    pub media_type: Text,
}

/// Data of the application: a part `data-<name>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    /// What follows `data-` in the part's type.
    pub name: Text,
    /// Replaces the message's data of the same name and id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Text>,
    /// The data.
    pub data: Json,
    /// Shown to `onData` and not kept in the message.
    #[serde(default)]
    pub transient: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_small_enough_to_hand_around() {
        assert!(size_of::<AgentEvent>() <= 56, "{}", size_of::<AgentEvent>());
    }

    #[test]
    fn events_survive_being_stored() {
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
