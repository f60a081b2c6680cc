//! Calls inside a call: the tool of a call is an agent, which asks the user for calls of its own tools.
//!
//! ```text
//! handler ─ request_approval ─▶ Err(suspend(state)) ─▶ the user answers ─▶ handler, with resumed()
//! ```
//!
//! The ledger keeps the state with the approval requests, so the handler may go on in another process.

use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;

use crate::tool_loop::InnerCall;
use ui_message_stream::BoxError;
use ui_message_stream::approval::{ChangedInput, DeferredOutcome, DeferredToolResult, ToolOutcome};
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::message::{Part, ToolPart, ToolState, UiMessage};
use ui_message_stream::model::ToolResult;
use ui_message_stream_chat::Chat;

/// The calls that the tool of a running call asks for.
#[derive(Debug, Clone)]
pub(super) struct InnerCalls {
    outer: ToolCallId,
    agent: Box<str>,
    asked: Arc<Mutex<Vec<InnerCall>>>,
}

impl InnerCalls {
    /// Creates the empty list of a call of this tool.
    pub(super) fn new(outer: ToolCallId, agent: &str) -> Self {
        InnerCalls { outer, agent: agent.into(), asked: Arc::default() }
    }

    /// Adds a call of a tool of the agent. `agents` are the agents below this one.
    /// Returns the id of the call in the message of the chat.
    pub(super) fn add(
        &self,
        id: &ToolCallId,
        tool: &str,
        agents: &[Box<str>],
        input: Json,
    ) -> ToolCallId {
        let id = inner_id(&self.outer, id);
        let call = ToolCall::new(id.clone(), inner_name(&self.agent, tool).to_string()).dynamic();
        let mut all = vec![self.agent.clone()];
        all.extend_from_slice(agents);
        let inner = InnerCall { call: call.inside(&self.outer), input, agents: all };
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(inner);
        id
    }

    pub(super) fn count(&self) -> usize {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the error with which the handler stops until the calls have results.
    pub(super) fn suspend(&self, state: Json) -> BoxError {
        let calls = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        if calls.is_empty() {
            "the tool waits, and has asked for no approval".into()
        } else {
            Suspended { state, calls }.into()
        }
    }
}

/// A handler has stopped until the user has answered.
#[derive(Debug, thiserror::Error)]
#[error("the tool waits for answers")]
pub(super) struct Suspended {
    pub(super) state: Json,
    pub(super) calls: Vec<InnerCall>,
}

/// What a handler goes on with: its state, and the results of the calls that it has asked for last.
///
/// [`ToolContext::resumed`](super::ToolContext::resumed) returns it, with an example.
#[derive(Debug)]
pub struct Resumed {
    state: Json,
    outer: ToolCallId,
    results: Vec<(DeferredToolResult, ToolResult)>,
    /// How many calls the handler has asked for, in all of its rounds.
    pub(super) asked: usize,
}

impl Resumed {
    pub(super) fn new(
        outer: ToolCallId,
        state: Json,
        results: Vec<DeferredToolResult>,
        asked: usize,
    ) -> Self {
        let results = results.into_iter().map(|result| {
            let read = ToolResult::from(&result);
            (result, read)
        });
        Resumed { state, outer, results: results.collect(), asked }
    }

    /// Returns the state with which the handler has stopped.
    ///
    /// # Errors
    /// An error if the state is of another type, for example one of an older program.
    pub fn state<T: DeserializeOwned>(&self) -> Result<T, BoxError> {
        Ok(self.state.decode()?)
    }

    /// Returns the result of a call, by the id that
    /// [`ToolContext::request_approval`](super::ToolContext::request_approval) has returned.
    pub fn result(&self, id: &ToolCallId) -> Option<&ToolResult> {
        let mut results = self.results.iter();
        results.find(|(result, _)| result.tool_call_id == *id).map(|(_, read)| read)
    }

    /// Records the results in the chat of an agent, which holds these calls under their own ids.
    pub(super) fn record_in(&self, chat: &mut Chat) {
        for own in chat.open_approvals() {
            let id = inner_id(&self.outer, &own.tool_call_id);
            let result = self.results.iter().find(|(result, _)| result.tool_call_id == id);
            let (outcome, changed) = match result {
                Some((result, _)) => (result.outcome.clone(), result.changed_input.clone()),
                None => (DeferredOutcome::Revoked, None),
            };
            let mut result = own.with_outcome(outcome);
            let descriptor = changed.as_ref().and_then(|input| Json::from_serialize(input).ok());
            result.changed_input = changed;
            chat.record_result(&result, descriptor.as_ref());
        }
    }
}

/// The calls that a call has asked for last, in the message that holds them.
pub(super) fn last_round<'m>(message: &'m UiMessage, outer: &ToolCallId) -> Vec<&'m ToolPart> {
    let steps = message.parts.rsplit(|part| matches!(part, Part::StepStart { .. }));
    let of_outer = |parts: &'m [Part]| -> Vec<&'m ToolPart> {
        let parts = parts.iter().filter_map(Part::as_tool);
        parts.filter(|part| part.outer_call().as_ref() == Some(outer)).collect()
    };
    steps.map(of_outer).find(|parts| !parts.is_empty()).unwrap_or_default()
}

/// Returns the approval request of a call, also if it was closed without a decision.
pub(super) fn approval_of(
    message: &UiMessage,
    part: &ToolPart,
    outcomes: &[DeferredToolResult],
) -> Option<ApprovalId> {
    let closed = || outcome_of(message, part, outcomes)?.approval_id.clone();
    part.approval_id().cloned().or_else(closed)
}

/// Returns the result of a call as its message holds it. Only a message that the server has written itself is
/// read so.
pub(super) fn result_in(
    message: &UiMessage,
    part: &ToolPart,
    outcomes: &[DeferredToolResult],
) -> Option<DeferredToolResult> {
    let executed = |outcome| DeferredOutcome::Executed { outcome };
    let outcome = match &part.state {
        ToolState::OutputAvailable { output, .. } => {
            executed(ToolOutcome::Output(output.clone().unwrap_or_else(Json::null)))
        }
        ToolState::OutputError { error_text, .. } => match outcome_of(message, part, outcomes) {
            Some(known) => known.outcome.clone(),
            None => executed(ToolOutcome::Failed(error_text.clone())),
        },
        ToolState::OutputDenied { approval, .. } => {
            let reason = approval.as_ref().and_then(|approval| approval.reason.clone());
            let is_automatic = approval.as_ref().is_some_and(|approval| approval.is_automatic());
            match reason {
                Some(refusal) if is_automatic => executed(ToolOutcome::Failed(refusal)),
                reason => DeferredOutcome::Denied { reason },
            }
        }
        _ => return None,
    };
    let id = part.tool_call_id.clone();
    let name = part.tool_name.clone();
    let mut result = DeferredToolResult::new(message.id.clone(), id, name, outcome);
    result.changed_input = ChangedInput::of_call(message, part);
    Some(result)
}

fn outcome_of<'o>(
    message: &UiMessage,
    part: &ToolPart,
    outcomes: &'o [DeferredToolResult],
) -> Option<&'o DeferredToolResult> {
    let mut of_message =
        outcomes.iter().filter(|known| known.message_id.as_ref() == Some(&message.id));
    of_message.find(|known| known.tool_call_id == part.tool_call_id)
}

/// Returns the name by which a tool of an agent is asked for.
pub(super) fn inner_name(agent: &str, tool: &str) -> Box<str> {
    format!("{agent}__{tool}").into()
}

/// Returns the id that a call inside a call has in the message of the chat.
fn inner_id(outer: &ToolCallId, id: &ToolCallId) -> ToolCallId {
    let id = ToolCallId::from(format!("{outer}__{id}"));
    id.on_wire()
}
