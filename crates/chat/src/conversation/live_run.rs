//! The run of a conversation: the one that writes now, and what it has to read.

use serde::{Deserialize, Serialize};

use ui_message_stream::approval::{DeferredOutcome, DeferredToolResult};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::MessageId;
use ui_message_stream::json::Json;
use ui_message_stream::message::AnswerEnd;

/// The run of a conversation, and what happened to calls since its model was called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunRegister {
    /// The message that the live run writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) live: Option<LiveMessage>,
    /// Whether the last message has results that no model call has read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_unread_results: bool,
    /// How the last run has ended, if it did not finish. If the user stopped it, its message is not
    /// continued without a new request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<EndedRun>,
}

/// The message that a live run writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LiveMessage {
    pub(super) id: MessageId,
    /// The run answers a message of the user. Otherwise it continues this message with results of calls.
    pub(super) is_new: bool,
}

/// How a run has ended that did not finish, and that no other one resumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndedRun {
    pub(crate) message_id: MessageId,
    pub(crate) end: AnswerEnd,
    /// What clients read of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error_text: Option<String>,
    /// Its message is not complete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_cut: bool,
}

impl EndedRun {
    /// Returns the event that ends a response in this way. `None` if the run has finished its message.
    pub(crate) fn early_end(&self) -> Option<AgentEvent> {
        match &self.error_text {
            Some(error_text) => Some(AgentEvent::error(error_text.clone())),
            None => self.is_cut.then_some(AgentEvent::Abort { reason: None }),
        }
    }
}

impl RunRegister {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The result of a call, with the data that the client shows beside the call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReceivedResult {
    pub(crate) result: DeferredToolResult,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) descriptor: Option<Json>,
    /// What the page shows that sent the answer, if that differs: a late denial stays a denial there,
    /// and an approval after a denial is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shown: Option<DeferredOutcome>,
}

impl ReceivedResult {
    pub(crate) fn new(result: DeferredToolResult, descriptor: Option<Json>) -> Self {
        let result = result.described_by(descriptor.as_ref());
        ReceivedResult { result, descriptor, shown: None }
    }

    /// Returns the events that show the result to the page that answered the call.
    pub(crate) fn events(&self) -> impl Iterator<Item = AgentEvent> + use<> {
        let shown = self.shown();
        let data = self.descriptor.clone();
        let data = data.map(|data| AgentEvent::approval_data(&shown.tool_call_id, data));
        AgentEvent::settling(&shown).chain(data)
    }

    /// Returns the result that the page shows that answered the call.
    fn shown(&self) -> DeferredToolResult {
        let ReceivedResult { result, shown, .. } = self;
        let outcome = shown.clone().unwrap_or_else(|| result.outcome.clone());
        result.clone().with_outcome(outcome)
    }

    /// Returns the events that show the result to all pages, also the output of a client to the
    /// others.
    pub(crate) fn events_for_all(&self) -> impl Iterator<Item = AgentEvent> + use<> {
        let id = self.result.tool_call_id.clone();
        let output = match &self.result.outcome {
            DeferredOutcome::Output { output } => Some(AgentEvent::tool_output(id, output.clone())),
            DeferredOutcome::OutputError { error_text } => {
                Some(AgentEvent::tool_failed(id, error_text.clone()))
            }
            _ => None,
        };
        self.events().chain(output)
    }
}
