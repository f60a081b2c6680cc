//! [`CallTracker`]: passes the state of tool calls from the hook to the reader of rig's stream.
//!
//! rig's stream contains the results of a step only when all of them are available, and contains
//! none if the run is stopped before. The hook receives each result immediately.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rig_core::effect::EffectId;
use rig_core::message::{CallId, Origin, Text};

use crate::model::{ModelCall, fresh_id};
use ui_message_stream::approval::{IssuedApproval, ToolOutcome};
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;

/// A report of the hook about a tool call or about the model's response.
#[derive(Debug)]
pub(super) enum CallUpdate {
    /// The call is about to be executed or to need approval, with this input.
    Called { id: ToolCallId, tool: String, input: Json },
    /// The input of the call cannot be shown: the text of the input, and the error message.
    InvalidInput { id: ToolCallId, tool: String, input: String, why: String },
    /// The provider requests approval before it executes a tool: the call, and its input, or the
    /// text of an unusable input with the error message.
    ProviderApprovalRequest(Box<ToolCall>, Result<Json, (String, String)>),
    /// Approval was requested from the user.
    ApprovalRequested(ToolCallId, Box<IssuedApproval>),
    /// The call is not permitted.
    Refused(ToolCallId),
    /// The call has this outcome.
    Finished(ToolCallId, ToolOutcome),
    /// The response of this step is complete: the model that produced it, and its texts.
    ResponseCompleted(Box<Origin>, Vec<Text>),
    /// The model that produced the response before this step.
    PreviousOrigin(Box<Origin>),
}

/// Shared by the hook and the reader, which are polled one after the other.
#[derive(Debug, Default)]
pub(super) struct CallTracker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The calls that the model made in this step, in order. Some providers use one id for two
    /// calls.
    calls: HashMap<CallId, Vec<TrackedCall>>,
    /// The ids of the calls that rig dispatched.
    dispatched: HashMap<EffectId, ToolCallId>,
    /// The calls that the provider has sent before.
    repeated: HashSet<ToolCallId>,
    announced: HashSet<ToolCallId>,
    awaiting_approval: HashSet<ToolCallId>,
    updates: VecDeque<CallUpdate>,
}

#[derive(Debug)]
struct TrackedCall {
    id: ToolCallId,
    tool: String,
    /// Also set for a call that rig never dispatches.
    is_dispatched: bool,
    has_result: bool,
}

impl CallTracker {
    /// Removes the calls of the previous step.
    pub(super) fn begin_step(&self) {
        self.state().calls.clear();
    }

    /// Adds a call that the model made.
    pub(super) fn add_call(&self, call: &ModelCall) {
        let id = call.id.clone();
        let function = &call.call.function;
        // rig does not dispatch a call without usable arguments.
        let is_dispatched = function.invalid_arguments.is_some();
        let tool = function.name.to_string();
        let tracked_call = TrackedCall { id, tool, is_dispatched, has_result: false };
        self.state().calls.entry(call.call.id.clone()).or_default().push(tracked_call);
    }

    /// Records that the provider has sent this call before.
    pub(super) fn mark_repeated(&self, id: &ToolCallId) {
        self.state().repeated.insert(id.clone());
    }

    /// Whether the provider has sent this call before.
    pub(super) fn is_repeated(&self, id: &ToolCallId) -> bool {
        self.state().repeated.contains(id)
    }

    /// Returns the id of a call that rig dispatches. A call that the model did not make gets a new
    /// id.
    pub(super) fn dispatched_id(
        &self,
        effect: EffectId,
        call: Option<&CallId>,
        tool: &str,
    ) -> ToolCallId {
        let state = &mut *self.state();
        if let Some(id) = state.dispatched.get(&effect) {
            return id.clone();
        }
        let made = call.and_then(|call| state.calls.get_mut(call));
        let id = made.and_then(|made| {
            let is_open = |made: &TrackedCall| !made.is_dispatched;
            let of_tool = made.iter().position(|made| is_open(made) && made.tool == tool);
            // A hook may have replaced the tool of the call.
            let at = of_tool.or_else(|| made.iter().position(is_open))?;
            let made = made.get_mut(at)?;
            made.is_dispatched = true;
            Some(made.id.clone())
        });
        let id = id.unwrap_or_else(|| ToolCallId::from(fresh_id()));
        state.dispatched.insert(effect, id.clone());
        id
    }

    /// Returns the id of the call whose result rig shows. rig shows results in the order of the
    /// calls.
    pub(super) fn next_result_id(&self, call: &CallId) -> Option<ToolCallId> {
        let mut state = self.state();
        let made = state.calls.get_mut(call)?.iter_mut().find(|made| !made.has_result)?;
        made.has_result = true;
        Some(made.id.clone())
    }

    pub(super) fn push(&self, update: CallUpdate) {
        let mut state = self.state();
        match &update {
            CallUpdate::Called { id, .. } | CallUpdate::InvalidInput { id, .. } => {
                state.announced.insert(id.clone());
            }
            CallUpdate::ApprovalRequested(id, _) => {
                state.awaiting_approval.insert(id.clone());
            }
            CallUpdate::ProviderApprovalRequest(..)
            | CallUpdate::Refused(_)
            | CallUpdate::Finished(..)
            | CallUpdate::ResponseCompleted(..)
            | CallUpdate::PreviousOrigin(_) => {}
        }
        state.updates.push_back(update);
    }

    pub(super) fn next(&self) -> Option<CallUpdate> {
        self.state().updates.pop_front()
    }

    /// Whether the input of the call was reported.
    pub(super) fn is_announced(&self, id: &ToolCallId) -> bool {
        self.state().announced.contains(id)
    }

    /// Whether a call waits for approval.
    pub(super) fn is_awaiting_approval(&self, id: &ToolCallId) -> bool {
        self.state().awaiting_approval.contains(id)
    }

    /// Whether any call waits for approval.
    pub(super) fn has_pending_approvals(&self) -> bool {
        !self.state().awaiting_approval.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
