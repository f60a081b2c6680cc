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
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::message::{Part, ToolPart, UiMessage};
use ui_message_stream::model::{ToolResult, sanitize_tool_name};

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
        match calls.is_empty() {
            true => "the tool waits, and has asked for no approval".into(),
            false => Suspended { state, calls }.into(),
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

/// What a handler goes on with: its state, and the results of the calls that it has asked for.
///
/// [`ToolContext::resumed`](super::ToolContext::resumed) returns it, with an example.
#[derive(Debug)]
pub struct Resumed {
    state: Json,
    outer: ToolCallId,
    calls: Vec<AnsweredCall>,
}

/// A call that has a result.
#[derive(Debug)]
struct AnsweredCall {
    part: ToolPart,
    result: Option<ToolResult>,
    outcome: Option<DeferredToolResult>,
    /// The `data-approval` part of the call.
    descriptor: Option<Part>,
}

impl Resumed {
    /// Collects the results of the calls inside this call.
    pub(super) fn new(
        outer: &ToolCallId,
        state: Json,
        message: &UiMessage,
        outcomes: &[DeferredToolResult],
    ) -> Self {
        let parts = message.tool_parts();
        let inner = parts.filter(|part| part.outer_call().as_ref() == Some(outer));
        let calls = inner.map(|part| {
            let id = &part.tool_call_id;
            let is_it = |known: &&DeferredToolResult| {
                known.message_id.as_ref() == Some(&message.id) && known.tool_call_id == *id
            };
            let outcome = outcomes.iter().find(is_it);
            let is_descriptor = |part: &&Part| {
                matches!(part, Part::Data(data) if data.id.as_deref() == Some(id.as_str()))
            };
            AnsweredCall {
                result: ToolResult::in_message(message, part, outcome.map(|known| &known.outcome)),
                outcome: outcome.cloned(),
                descriptor: message.parts.iter().find(is_descriptor).cloned(),
                part: part.clone(),
            }
        });
        Resumed { state, outer: outer.clone(), calls: calls.collect() }
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
        self.calls.iter().find(|call| call.part.tool_call_id == *id)?.result.as_ref()
    }

    /// Returns how many calls the handler has asked for, in all of its rounds.
    pub(super) fn count(&self) -> usize {
        self.calls.len()
    }

    /// Writes the results into the message of the agent, which holds these calls under their own ids.
    pub(super) fn record_in(
        &self,
        message: &mut UiMessage,
        outcomes: &mut Vec<DeferredToolResult>,
    ) {
        let id = message.id.clone();
        let mut descriptors = Vec::new();
        for own in message.tool_parts_mut().filter(|part| part.awaits_approval()) {
            let outer_id = inner_id(&self.outer, &own.tool_call_id);
            let mut calls = self.calls.iter();
            let Some(call) = calls.find(|call| call.part.tool_call_id == outer_id) else {
                continue;
            };
            own.state = call.part.state.clone();
            outcomes.extend(call.outcome.clone().map(|mut known| {
                known.message_id = Some(id.clone());
                known.tool_call_id = own.tool_call_id.clone();
                known
            }));
            if let Some(Part::Data(data)) = &call.descriptor {
                let mut data = data.clone();
                data.id = Some(own.tool_call_id.to_string().into());
                descriptors.push(Part::Data(data));
            }
        }
        message.parts.extend(descriptors);
    }
}

/// Returns the approval requests of the calls that this call has asked for last.
pub(super) fn last_approvals(
    message: &UiMessage,
    outcomes: &[DeferredToolResult],
    outer: &ToolCallId,
) -> Vec<ApprovalId> {
    let steps = message.parts.rsplit(|part| matches!(part, Part::StepStart { .. }));
    let inner = |parts: &[Part]| -> Vec<ToolPart> {
        let parts = parts.iter().filter_map(Part::as_tool);
        parts.filter(|part| part.outer_call().as_ref() == Some(outer)).cloned().collect()
    };
    let last = steps.map(inner).find(|parts| !parts.is_empty()).unwrap_or_default();
    let approvals = last.iter().filter_map(|part| {
        // A call that was closed without a decision has no approval any more.
        let closed = || {
            let mut known =
                outcomes.iter().filter(|known| known.message_id.as_ref() == Some(&message.id));
            known.find(|known| known.tool_call_id == part.tool_call_id)?.approval_id.clone()
        };
        part.approval_id().cloned().or_else(closed)
    });
    approvals.collect()
}

/// Returns the name by which a tool of an agent is asked for.
pub(super) fn inner_name(agent: &str, tool: &str) -> Box<str> {
    sanitize_tool_name(&format!("{agent}__{tool}"))
}

/// Returns the id that a call inside a call has in the message of the chat.
fn inner_id(outer: &ToolCallId, id: &ToolCallId) -> ToolCallId {
    let id = ToolCallId::from(format!("{outer}__{id}"));
    id.shortened().unwrap_or(id)
}
