//! What the checker knows of the tool calls of the message.

use std::collections::{HashMap, HashSet};

use super::{Rule, Violation};
use crate::chunk::Chunk;
use crate::id::ApprovalId;
use crate::message::{ToolPart, ToolState};

/// The calls of the message by their id, and the steps.
#[derive(Debug, Default)]
pub(super) struct Calls {
    by_id: HashMap<Box<str>, Call>,
    approval_ids: HashSet<ApprovalId>,
    /// Those whose input was begun in this step, so that its end need not look at all of them.
    begun_in_step: HashSet<Box<str>>,
    step: usize,
    /// The last step that the client shows: one without content is not seen.
    shown_step: usize,
}

#[derive(Debug)]
struct Call {
    state: State,
    /// The step that its part stands in.
    step: usize,
    is_dynamic: bool,
    is_provider_executed: bool,
    /// Its input was begun with `tool-input-start`.
    has_started: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Streaming,
    Ready,
    Asked,
    Answered {
        approved: bool,
    },
    Preliminary,
    /// It has an output or an error.
    Done,
    Denied,
    /// A state of a later version.
    Unknown,
}

impl Calls {
    /// A call of the message that the stream goes on with.
    pub(super) fn hold(&mut self, part: &ToolPart) {
        self.show();
        let state = match &part.state {
            ToolState::InputStreaming { .. } => State::Streaming,
            ToolState::InputAvailable { .. } => State::Ready,
            ToolState::ApprovalRequested { .. } => State::Asked,
            ToolState::ApprovalResponded { approval, .. } => {
                State::Answered { approved: approval.approved }
            }
            ToolState::OutputAvailable { preliminary: Some(true), .. } => State::Preliminary,
            ToolState::OutputAvailable { .. } | ToolState::OutputError { .. } => State::Done,
            ToolState::OutputDenied { .. } => State::Denied,
            ToolState::Unknown { .. } => State::Unknown,
        };
        // One message may hold two parts of a call, of which either may have been cut off.
        let id = &part.tool_call_id;
        let has_started = self.by_id.get(id.as_str()).is_some_and(|call| call.has_started);
        self.approval_ids.extend(part.approval_id().cloned());
        let call = Call {
            state,
            step: self.step,
            is_dynamic: part.is_dynamic(),
            is_provider_executed: part.provider_executed == Some(true),
            has_started: has_started || state == State::Streaming,
        };
        self.by_id.insert(id.as_str().into(), call);
    }

    pub(super) fn start_step(&mut self) {
        self.step += 1;
        // Not cleared: that costs what the largest step has had.
        self.begun_in_step = HashSet::new();
    }

    /// The client shows what it holds.
    pub(super) fn show(&mut self) {
        self.shown_step = self.step;
    }

    pub(super) fn handle_chunk(&mut self, chunk: &Chunk<'_>, found: &mut Vec<Violation>) {
        match chunk {
            Chunk::ToolInputStart { tool_call_id, dynamic, provider_executed, .. } => {
                let call = self.announce(tool_call_id, *dynamic, *provider_executed, chunk, found);
                call.state = State::Streaming;
                call.has_started = true;
                self.begun_in_step.insert(Box::from(&**tool_call_id));
            }
            Chunk::ToolInputDelta { tool_call_id, .. } => {
                let call = self.by_id.get_mut(&**tool_call_id);
                let Some(call) = call.filter(|call| call.has_started) else {
                    found.push(violation(Rule::InputNotStarted, chunk, tool_call_id));
                    return;
                };
                // In another step the client makes a second part of it.
                let rule = match (call.state == State::Streaming, call.step == self.step) {
                    (true, true) => return,
                    (true, false) => Rule::InputLeftOpen,
                    (false, true) => Rule::InputAfterItsEnd,
                    (false, false) => Rule::RepeatedToolCall,
                };
                found.push(violation(rule, chunk, tool_call_id));
                call.state = State::Streaming;
                call.step = self.step;
                self.begun_in_step.insert(Box::from(&**tool_call_id));
            }
            Chunk::ToolInputAvailable { tool_call_id, dynamic, provider_executed, .. } => {
                let call = self.announce(tool_call_id, *dynamic, *provider_executed, chunk, found);
                call.state = State::Ready;
            }
            Chunk::ToolInputError { tool_call_id, dynamic, provider_executed, .. } => {
                let call = self.announce(tool_call_id, *dynamic, *provider_executed, chunk, found);
                call.state = State::Done;
            }
            Chunk::ToolApprovalRequest { approval_id, tool_call_id, .. } => {
                let is_new = self.approval_ids.insert(ApprovalId::new(&**approval_id));
                let Some(call) = self.find(tool_call_id, chunk, found) else {
                    return;
                };
                let can_be_asked = matches!(call.state, State::Ready | State::Answered { .. });
                if !is_new || !can_be_asked {
                    found.push(violation(Rule::UnanswerableApproval, chunk, tool_call_id));
                }
                call.state = State::Asked;
            }
            Chunk::ToolOutputAvailable { tool_call_id, preliminary, provider_executed, .. } => {
                let is_final = *preliminary != Some(true);
                let state = if is_final { State::Done } else { State::Preliminary };
                self.settle(tool_call_id, state, *provider_executed, chunk, found);
            }
            Chunk::ToolOutputError { tool_call_id, provider_executed, .. } => {
                self.settle(tool_call_id, State::Done, *provider_executed, chunk, found);
            }
            Chunk::ToolOutputDenied { tool_call_id } => {
                let asked = self.by_id.get(&**tool_call_id).is_none_or(|call| {
                    matches!(
                        call.state,
                        State::Asked | State::Answered { approved: false } | State::Denied
                    )
                });
                if !asked {
                    found.push(violation(Rule::DenialWithoutQuestion, chunk, tool_call_id));
                }
                self.settle(tool_call_id, State::Denied, None, chunk, found);
            }
            _ => {}
        }
    }

    /// A chunk that makes a part, or updates the one of this step and kind.
    fn announce(
        &mut self,
        id: &str,
        dynamic: Option<bool>,
        provider_executed: Option<bool>,
        chunk: &Chunk<'_>,
        found: &mut Vec<Violation>,
    ) -> &mut Call {
        let is_dynamic = dynamic == Some(true);
        let step = self.step;
        let is_known = self.by_id.contains_key(id);
        let call = self.by_id.entry(id.into()).or_insert(Call {
            state: State::Ready,
            step,
            is_dynamic,
            is_provider_executed: false,
            has_started: false,
        });
        // A rejected input is reported by the kind that the part already has.
        if call.step == step
            && call.is_dynamic != is_dynamic
            && !matches!(chunk, Chunk::ToolInputError { .. })
        {
            found.push(violation(Rule::DynamicMismatch, chunk, id));
        }
        let is_its_end = match chunk {
            Chunk::ToolInputStart { .. } => false,
            Chunk::ToolInputError { .. } => {
                matches!(call.state, State::Streaming | State::Ready)
            }
            _ => call.state == State::Streaming,
        };
        if is_known && (call.step != step || !is_its_end) {
            found.push(violation(Rule::RepeatedToolCall, chunk, id));
        }
        call.step = step;
        call.is_dynamic = is_dynamic;
        call.is_provider_executed = provider_executed.unwrap_or(call.is_provider_executed);
        call
    }

    fn find(
        &mut self,
        id: &str,
        chunk: &Chunk<'_>,
        found: &mut Vec<Violation>,
    ) -> Option<&mut Call> {
        let call = self.by_id.get_mut(id);
        if call.is_none() {
            found.push(violation(Rule::UnknownToolCall, chunk, id));
        }
        call
    }

    fn settle(
        &mut self,
        id: &str,
        state: State,
        provider_executed: Option<bool>,
        chunk: &Chunk<'_>,
        found: &mut Vec<Violation>,
    ) {
        let Some(call) = self.find(id, chunk, found) else {
            return;
        };
        // The SDK says of a call with invalid input both that and that it failed.
        let says_the_same = matches!(chunk, Chunk::ToolOutputError { .. });
        if matches!(call.state, State::Done | State::Denied) && !says_the_same {
            found.push(violation(Rule::AlreadySettled, chunk, id));
        }
        call.state = state;
        call.is_provider_executed = provider_executed.unwrap_or(call.is_provider_executed);
    }

    fn ids_where(&self, is_it: impl Fn(&Call) -> bool) -> Vec<Box<str>> {
        let found = self.by_id.iter().filter(|(_, call)| is_it(call));
        let mut ids: Vec<Box<str>> = found.map(|(id, _)| id.clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// Whether the input of a call was begun.
    pub(super) fn any_has_started(&self) -> bool {
        self.by_id.values().any(|call| call.has_started)
    }

    pub(super) fn left_streaming(&self) -> Vec<Box<str>> {
        self.ids_where(|call| call.state == State::Streaming)
    }

    /// Those that the step that ends leaves open. They are asked about once, for steps may end more
    /// often than they begin.
    pub(super) fn take_left_streaming_in_step(&mut self) -> Vec<Box<str>> {
        // Taken, not drained: that costs what the largest step has had.
        let begun = std::mem::take(&mut self.begun_in_step).into_iter();
        let is_left = |call: &Call| call.state == State::Streaming;
        let mut left: Vec<Box<str>> =
            begun.filter(|id| self.by_id.get(id).is_some_and(is_left)).collect();
        left.sort_unstable();
        left
    }

    pub(super) fn left_preliminary(&self) -> Vec<Box<str>> {
        self.ids_where(|call| call.state == State::Preliminary)
    }

    /// Whether one of the SDK's `sendAutomaticallyWhen` predicates is true of the last step.
    pub(super) fn would_resubmit(&self) -> bool {
        let in_step = || self.by_id.values().filter(|call| call.step == self.shown_step);
        let is_answered = |call: &Call| matches!(call.state, State::Answered { .. });
        let by_approvals = in_step().any(is_answered)
            && in_step()
                .all(|call| is_answered(call) || matches!(call.state, State::Done | State::Denied));
        let of_server = || in_step().filter(|call| !call.is_provider_executed);
        let by_tool_calls =
            of_server().next().is_some() && of_server().all(|call| call.state == State::Done);
        by_approvals || by_tool_calls
    }
}

fn violation(rule: Rule, chunk: &Chunk<'_>, id: &str) -> Violation {
    Violation { rule, subject: format!("{} of tool call {id:?}", chunk.kind()) }
}
