//! The run of a conversation: the one that writes now, and what it has to read.

use serde::{Deserialize, Serialize};

use crate::approval::{DeferredOutcome, DeferredToolResult};
use crate::chat::log::Fence;
#[cfg(feature = "approvals")]
use crate::event::AgentEvent;
use crate::id::{MessageId, RunId};
use crate::json::Json;

/// The run that writes in a conversation. Only this run, at this fence, may call the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveRun {
    pub(crate) run: RunId,
    pub(crate) fence: Fence,
    /// The message that the run writes: a new one, or one that it continues.
    pub(crate) message_id: MessageId,
    /// What the stored message holds of the run. `None` if it holds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<KeptSteps>,
    /// The lost run that this run resumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resumes: Option<LostRun>,
    /// The message that the client continues, if the conversation lacks it or some of its calls. The
    /// log continues them, so only a page that holds the message can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) only_for: Option<MessageId>,
}

/// A run that was lost with its server, and that another run resumes without a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LostRun {
    pub(crate) run: RunId,
    /// The fence of the turn that has taken it, and the number of entries of its log, but the last one:
    /// the run that resumes it.
    pub(crate) fence: Fence,
    pub(crate) entries: u64,
    /// How many runs in a row were lost, this one included.
    pub(crate) losses: u32,
}

/// The part of a live run that the stored message holds already: up to the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeptSteps {
    /// The number of entries of the log.
    pub(crate) entries: u64,
    /// The number of parts that the message had when the run began.
    pub(crate) begun_parts: usize,
}

#[cfg(feature = "approvals")]
impl LiveRun {
    /// Returns whether this is the run with this id, or resumes it.
    pub(crate) fn is_of(&self, run: &RunId) -> bool {
        self.run == *run || self.resumes.as_ref().is_some_and(|lost| lost.run == *run)
    }

    /// Returns whether this is the same run, with the same holder.
    pub(crate) fn is_same_run(&self, other: &Self) -> bool {
        self.run == other.run && self.fence == other.fence
    }
}

/// The run of a conversation, and what happened to calls since its model was called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunRegister {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) live: Option<LiveRun>,
    /// Results of calls in the message of the live run that its log may not hold yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) new_results: Vec<ReceivedResult>,
    /// Whether the last message has results that no model call has read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_unread_results: bool,
    /// Whether the user stopped the last run. Its message is not continued without a new request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_stopped: bool,
    /// How the message of the last run has ended, if the run did not finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) early_end: Option<EarlyEnd>,
}

/// The end of a message whose run failed or was aborted. The message alone does not show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EarlyEnd {
    pub(crate) message_id: MessageId,
    /// What clients read of the error. `None` if the run was aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error_text: Option<String>,
}

#[cfg(feature = "approvals")]
impl EarlyEnd {
    /// Returns the event that ends a response in this way.
    pub(crate) fn event(&self) -> AgentEvent {
        match &self.error_text {
            Some(error_text) => AgentEvent::error(error_text.clone()),
            None => AgentEvent::Abort { reason: None },
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

#[cfg(feature = "approvals")]
impl ReceivedResult {
    pub(crate) fn new(result: DeferredToolResult, descriptor: Option<Json>) -> Self {
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
        DeferredToolResult { outcome, ..result.clone() }
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

    /// Whether the result has a frame of its own.
    pub(crate) fn shows_outcome(&self) -> bool {
        AgentEvent::from_deferred(&self.shown()).is_some()
    }

    /// Whether this is a result of the same call.
    pub(crate) fn is_of_call_of(&self, other: &Self) -> bool {
        self.result.approval_id == other.result.approval_id
            && self.result.tool_call_id == other.result.tool_call_id
    }
}
