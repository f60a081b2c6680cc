//! The calls inside calls: a tool that is an agent is suspended until the calls that it asks for have results.
//!
//! ```text
//! RunsLast ─▶ Running ─▶ Suspended ─▶ the calls inside are announced and asked for ─▶ the run ends
//!    └─▶ Finished: another call waits       └─▶ Running: none could be asked for
//! ```

use super::{Action, Call, CallState, Effect, InnerCall, ModelState, ToolLoop};
use ui_message_stream::UserText;
use ui_message_stream::approval::PendingToolCall;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;

impl ToolLoop {
    /// Resumes the tools of these calls before the model is called. The message holds the calls and the
    /// results of all calls inside them.
    #[must_use]
    pub fn with_suspended_calls(
        mut self,
        calls: impl IntoIterator<Item = PendingToolCall>,
    ) -> Self {
        for pending in calls {
            let id = pending.tool_call_id.clone();
            let name = pending.tool_name.to_string();
            self.local_calls.insert(id.clone());
            self.actions.push_back(Action::Start(Effect::ResumeTool(pending.clone())));
            self.calls.push(Call::new(ToolCall::new(id, name), pending, CallState::Running));
            self.model = ModelState::Finished(FinishReason::ToolCalls);
        }
        self
    }

    /// Runs the calls that may ask for calls inside them, unless another call of the step waits.
    pub(super) fn run_last(&mut self) {
        let waits = |call: &Call| {
            matches!(
                call.state,
                CallState::NeedsApproval | CallState::RequestingApproval | CallState::Waiting
            )
        };
        let is_alone = !self.calls.iter().any(waits);
        for call in self.calls.iter_mut().filter(|call| call.state == CallState::RunsLast) {
            let pending = call.pending.clone();
            call.state = if is_alone { CallState::Running } else { CallState::Finished };
            self.actions.push_back(if is_alone {
                Action::Start(Effect::RunTool(pending))
            } else {
                Action::Emit(AgentEvent::tool_failed(pending.tool_call_id, UserText::RunsAlone))
            });
        }
    }

    /// Announces the calls inside calls, in a step of their own: a client sends its answers when all
    /// calls of the last step have one, and the outer calls have none.
    pub(super) fn start_inner_step(&mut self) {
        self.start_step();
        for InnerCall { call, input, .. } in std::mem::take(&mut self.inner_calls) {
            let name: Box<str> = (&*call.tool_name).into();
            let pending = PendingToolCall::client_executed(call.id.clone(), name, input.clone());
            self.local_calls.insert(call.id.clone());
            self.call_ids.reserve([call.id.clone()]);
            self.emit(AgentEvent::tool_input(call.clone(), input));
            self.calls.push(Call::new(call, pending, CallState::NeedsApproval));
        }
    }

    /// Resumes the suspended calls inside which no call waits. Returns whether there are any. A tool that
    /// asks again when none of its calls could be asked for has failed.
    pub(super) fn resume_calls(&mut self) -> bool {
        let waiting = self.calls.iter().filter(|call| call.state == CallState::Waiting);
        let waiting: Vec<ToolCallId> = waiting.filter_map(Call::outer).collect();
        let is_ready = |call: &&mut Call| {
            let id = call.pending.tool_call_id.on_wire();
            call.state == CallState::Suspended && !waiting.contains(&id)
        };
        let mut has_any = false;
        for call in self.calls.iter_mut().filter(is_ready) {
            has_any = true;
            let goes_on = !std::mem::replace(&mut call.went_on, true);
            call.state = if goes_on { CallState::Running } else { CallState::Finished };
            let pending = call.pending.clone();
            self.actions.push_back(if goes_on {
                Action::Start(Effect::ResumeTool(pending))
            } else {
                Action::Emit(AgentEvent::tool_failed(
                    pending.tool_call_id,
                    UserText::InnerCallsNotAsked,
                ))
            });
        }
        has_any
    }
}

impl Call {
    pub(super) fn new(tool_call: ToolCall, pending: PendingToolCall, state: CallState) -> Self {
        Call { tool_call, pending, state, went_on: false }
    }

    /// Returns the id of the call inside which it is made.
    fn outer(&self) -> Option<ToolCallId> {
        self.tool_call.provider_metadata.as_ref()?.outer_call()
    }
}
