//! [`SettledCall`]: a deferred tool call with its outcome, and the events that report it.

use std::fmt;

use crate::approval::{DeferredOutcome, DeferredToolResult};
use crate::event::AgentEvent;
use crate::id::log_text;
use crate::json::Json;

/// A deferred tool call that has an outcome: it was denied, it ran, it must not run, or it is not
/// known whether it ran.
#[derive(Clone, PartialEq)]
pub struct SettledCall {
    result: DeferredToolResult,
    descriptor: Option<Json>,
    /// Whether the message that the response continues holds the call.
    is_continued: bool,
}

impl SettledCall {
    pub(super) fn new(
        result: DeferredToolResult,
        descriptor: Option<Json>,
        is_continued: bool,
    ) -> Self {
        let result = result.described_by(descriptor.as_ref());
        SettledCall { result, descriptor, is_continued }
    }

    /// Returns the result, which the model must get.
    pub fn result(&self) -> &DeferredToolResult {
        &self.result
    }

    /// Returns the result, which the model must get.
    pub fn into_result(self) -> DeferredToolResult {
        self.result
    }

    /// Returns the outcome of the call.
    pub fn outcome(&self) -> &DeferredOutcome {
        &self.result.outcome
    }

    /// Returns the reason that the user gave for a denial.
    pub fn denial_reason(&self) -> Option<&str> {
        match &self.result.outcome {
            DeferredOutcome::Denied { reason } => reason.as_deref(),
            _ => None,
        }
    }

    /// Returns the events to stream: the result of the call, and the new data of its
    /// `data-approval` part.
    ///
    /// If the response does not continue the message that holds the call, the client cannot show
    /// the result there, and only the data is returned.
    pub fn events(&self) -> impl Iterator<Item = AgentEvent> + use<> {
        let id = &self.result.tool_call_id;
        let result = self.is_continued.then(|| AgentEvent::settling(&self.result));
        let data = self.descriptor.clone().map(|data| AgentEvent::approval_data(id, data));
        result.into_iter().flatten().chain(data)
    }

    /// Returns whether a response can show this event of the running call: every part, and what belongs to the
    /// call only if the response continues its message.
    pub(super) fn shows(&self, event: &AgentEvent) -> bool {
        let is_of_call =
            matches!(event, AgentEvent::ToolOutput { .. } | AgentEvent::InputChanged { .. });
        self.is_continued || !is_of_call
    }

    pub(super) fn with_outcome(mut self, outcome: DeferredOutcome) -> Self {
        self.result.outcome = outcome;
        self
    }
}

impl fmt::Debug for SettledCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettledCall")
            .field("tool_call_id", &self.result.tool_call_id)
            .field("tool_name", &log_text(&self.result.tool_name))
            .finish_non_exhaustive()
    }
}
