//! The state of the tool calls of a message, as the checker tracks it.

use std::collections::{HashMap, HashSet};

use super::{Rule, Violation};
use crate::chunk::{Chunk, InputEncoding};
use crate::id::{ApprovalId, ToolCallId};
use crate::message::{ToolPart, ToolState};

/// The tool calls of the message by id, and the number of the current step.
#[derive(Debug, Default)]
pub(super) struct Calls {
    by_id: HashMap<Box<str>, Call>,
    approval_ids: HashSet<ApprovalId>,
    /// The id of the approval that each part has, by its call and its step.
    approvals: HashMap<(Box<str>, usize), ApprovalId>,
    /// How many parts have an approval with this id.
    parts_by_approval: HashMap<ApprovalId, usize>,
    /// The calls that are made inside other calls: the id of each, and of its outer call.
    inner: Vec<(Box<str>, ToolCallId)>,
    /// The calls whose input began in this step, so that the end of the step does not search all
    /// calls.
    started_in_step: HashSet<Box<str>>,
    step: usize,
    /// The last step that the client shows. A step without content is not shown.
    shown_step: usize,
    /// Whether any part of the continued message holds an incomplete input.
    continues_input: bool,
    /// The call whose approver changed the input in the chunk before. Its output must follow.
    changed: Option<Box<str>>,
    /// The approved calls that the client has to execute: it has just read their inputs.
    handed_over: Vec<Box<str>>,
}

#[derive(Debug, Clone)]
struct Call {
    state: State,
    /// What the call was in an earlier step.
    earlier: Option<Box<Call>>,
    /// The step of the call's last part.
    step: usize,
    is_dynamic: bool,
    is_provider_executed: bool,
    /// Whether a chunk of the stream announced the call.
    is_of_stream: bool,
    /// Whether a chunk of the stream held the whole input.
    has_input: bool,
    /// Whether the input is a text, a number, a boolean or a list. `None` if nothing of it is known.
    is_hidden: Option<bool>,
    /// Whether the input of the call began with `tool-input-start`. In the continued message only
    /// an input of its last step counts: the client continues no other.
    has_started: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InputStreaming,
    InputAvailable,
    ApprovalRequested,
    ApprovalResponded {
        approved: bool,
    },
    Preliminary,
    /// The call has an output or an error.
    Completed,
    Denied,
    /// A state that a later version of the protocol defines.
    Unknown,
}

impl Call {
    /// A chunk of this step has made another part of the call.
    fn enter(&mut self, step: usize) {
        if self.step != step {
            self.earlier = Some(Box::new(Call { earlier: None, ..self.clone() }));
            self.step = step;
        }
    }
}

impl Calls {
    /// Adds a tool part of the message that the stream continues.
    pub(super) fn add_existing(&mut self, part: &ToolPart) {
        self.mark_shown();
        let state = match &part.state {
            ToolState::InputStreaming { .. } => State::InputStreaming,
            ToolState::InputAvailable { .. } => State::InputAvailable,
            ToolState::ApprovalRequested { .. } => State::ApprovalRequested,
            ToolState::ApprovalResponded { approval, .. } => {
                State::ApprovalResponded { approved: approval.approved }
            }
            ToolState::OutputAvailable { preliminary: Some(true), .. } => State::Preliminary,
            ToolState::OutputAvailable { .. } | ToolState::OutputError { .. } => State::Completed,
            ToolState::OutputDenied { .. } => State::Denied,
            ToolState::Unknown { .. } => State::Unknown,
        };
        self.continues_input |= state == State::InputStreaming;
        // A step may hold two parts of one call, and the input of either may be incomplete.
        let id = &part.tool_call_id;
        let in_step = self.by_id.get(id.as_str()).filter(|call| call.step == self.step);
        let has_started = in_step.is_some_and(|call| call.has_started);
        if let Some(asked) = part.held_approval_id() {
            self.record_approval(id.as_str(), self.step, asked);
        }
        let earlier = self.by_id.remove(id.as_str()).filter(|call| call.step != self.step);
        let call = Call {
            state,
            earlier: earlier.map(Box::new),
            step: self.step,
            is_dynamic: part.is_dynamic(),
            is_provider_executed: part.provider_executed == Some(true),
            is_of_stream: false,
            has_input: false,
            is_hidden: part.input().and_then(|input| is_hidden(input.as_str())),
            has_started: has_started || state == State::InputStreaming,
        };
        self.by_id.insert(id.as_str().into(), call);
    }

    /// Records that all parts of the continued message are added.
    pub(super) fn end_existing(&mut self) {
        self.mark_shown();
        for call in self.by_id.values_mut() {
            call.has_started &= call.step == self.step;
        }
    }

    pub(super) fn start_step(&mut self) {
        self.step += 1;
        // A new set instead of `clear`: `clear` costs the capacity that the largest step needed.
        self.started_in_step = HashSet::new();
    }

    /// Records the approval of a part. Returns whether its id is new.
    fn record_approval(&mut self, call: &str, step: usize, id: ApprovalId) -> bool {
        if let Some(replaced) = self.approvals.insert((call.into(), step), id.clone()) {
            self.forget_approval(&replaced);
        }
        *self.parts_by_approval.entry(id.clone()).or_default() += 1;
        self.approval_ids.insert(id)
    }

    fn forget_approval(&mut self, id: &ApprovalId) {
        if let Some(parts) = self.parts_by_approval.get_mut(id) {
            *parts -= 1;
            if *parts == 0 {
                self.parts_by_approval.remove(id);
            }
        }
    }

    /// The client removes the parts of the current step, and continues no input.
    pub(super) fn reset_step(&mut self) {
        let step = self.step;
        self.by_id.retain(|_, call| {
            if call.step == step {
                let Some(earlier) = call.earlier.take() else { return false };
                *call = *earlier;
            }
            call.has_started = false;
            true
        });
        let mut removed = Vec::new();
        self.approvals.retain(|(_, of), id| {
            removed.extend((*of == step).then(|| id.clone()));
            *of != step
        });
        removed.iter().for_each(|id| self.forget_approval(id));
        let known = &self.by_id;
        self.handed_over.retain(|call| known.contains_key(call));
        (self.started_in_step, self.changed) = (HashSet::new(), None);
    }

    /// Records that the client shows the current step.
    pub(super) fn mark_shown(&mut self) {
        self.shown_step = self.step;
    }

    pub(super) fn handle_chunk(&mut self, chunk: &Chunk<'_>, found: &mut Vec<Violation>) {
        self.check_changed_input(chunk, found);
        match chunk {
            Chunk::StartStep {} => {
                // The model is called although the client has not answered.
                for id in std::mem::take(&mut self.handed_over) {
                    found.push(violation(Rule::RepeatedToolCall, chunk, &id));
                }
                self.start_step();
            }
            Chunk::ToolInputStart {
                tool_call_id,
                dynamic,
                provider_executed,
                input_encoding,
                ..
            } => {
                let call = self.announce(tool_call_id, *dynamic, *provider_executed, chunk, found);
                call.state = State::InputStreaming;
                call.is_hidden = (*input_encoding == Some(InputEncoding::Text)).then_some(true);
                call.has_started = true;
                self.started_in_step.insert(Box::from(&**tool_call_id));
            }
            Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
                let call = self.by_id.get_mut(&**tool_call_id);
                let Some(call) = call.filter(|call| call.has_started) else {
                    found.push(violation(Rule::InputNotStarted, chunk, tool_call_id));
                    return;
                };
                call.is_hidden = call.is_hidden.or_else(|| is_hidden(input_text_delta));
                // In another step the client creates a second part of the call.
                let rule = match (call.state == State::InputStreaming, call.step == self.step) {
                    (true, true) => return,
                    (true, false) => Rule::InputLeftOpen,
                    (false, true) => Rule::InputAfterItsEnd,
                    (false, false) => Rule::RepeatedToolCall,
                };
                found.push(violation(rule, chunk, tool_call_id));
                call.enter(self.step);
                call.state = State::InputStreaming;
                self.started_in_step.insert(Box::from(&**tool_call_id));
            }
            Chunk::ToolInputAvailable { tool_call_id, dynamic, .. }
                if self.is_approved(tool_call_id, *dynamic) =>
            {
                let id = Box::from(&**tool_call_id);
                match self.by_id.get_mut(&**tool_call_id) {
                    // The client has read the input before, so it would execute the call twice.
                    Some(call) if call.has_input => self.changed = Some(id),
                    Some(call) => {
                        call.state = State::InputAvailable;
                        self.handed_over.push(id);
                    }
                    None => {}
                }
            }
            Chunk::ToolInputAvailable {
                tool_call_id,
                dynamic,
                provider_executed,
                provider_metadata,
                input,
                ..
            } => {
                let outer = provider_metadata.as_ref().and_then(|metadata| metadata.outer_call());
                self.inner.extend(outer.map(|outer| (Box::from(&**tool_call_id), outer)));
                let call = self.announce(tool_call_id, *dynamic, *provider_executed, chunk, found);
                (call.state, call.has_input) = (State::InputAvailable, true);
                call.is_hidden = input.as_deref().and_then(|input| is_hidden(input.as_str()));
            }
            Chunk::ToolInputError { tool_call_id, dynamic, provider_executed, .. } => {
                let call = self.announce(tool_call_id, *dynamic, *provider_executed, chunk, found);
                call.state = State::Completed;
            }
            Chunk::ToolApprovalRequest { approval_id, tool_call_id, is_automatic, .. } => {
                let Some(step) = self.by_id.get(&**tool_call_id).map(|call| call.step) else {
                    self.approval_ids.insert(ApprovalId::new(&**approval_id));
                    found.push(violation(Rule::UnknownToolCall, chunk, tool_call_id));
                    return;
                };
                let id = ApprovalId::new(&**approval_id);
                let is_again = self.approvals.get(&((&**tool_call_id).into(), step)) == Some(&id);
                let is_new = self.record_approval(tool_call_id, step, id);
                let Some(call) = self.by_id.get_mut(&**tool_call_id) else { return };
                // The client executes a call of its own when its input is available, so such a call may
                // still have a streamed one.
                let can_request = matches!(
                    call.state,
                    State::InputStreaming | State::InputAvailable | State::ApprovalResponded { .. }
                );
                // The question waits again: its answer did not count. A page may not have answered it.
                let is_asked_again = is_again
                    && matches!(
                        call.state,
                        State::ApprovalRequested | State::ApprovalResponded { .. }
                    );
                if !(is_asked_again || is_new && can_request) {
                    found.push(violation(Rule::UnanswerableApproval, chunk, tool_call_id));
                }
                if call.is_hidden == Some(true) && *is_automatic != Some(true) {
                    found.push(violation(Rule::HiddenInput, chunk, tool_call_id));
                }
                call.state = State::ApprovalRequested;
            }
            Chunk::ToolApprovalResponse { approval_id, approved, .. } => {
                let id = ApprovalId::new(&**approval_id);
                if !self.parts_by_approval.contains_key(&id) {
                    let subject = format!("{} without a request", chunk.kind());
                    found.push(Violation { rule: Rule::UnknownToolCall, subject });
                }
                for (call_id, call) in &mut self.by_id {
                    if self.approvals.get(&(call_id.clone(), call.step)) == Some(&id) {
                        call.state = State::ApprovalResponded { approved: *approved };
                    }
                }
            }
            Chunk::ToolOutputAvailable { tool_call_id, preliminary, provider_executed, .. } => {
                let is_final = *preliminary != Some(true);
                let state = if is_final { State::Completed } else { State::Preliminary };
                self.record_result(tool_call_id, state, *provider_executed, chunk, found);
            }
            Chunk::ToolOutputError { tool_call_id, provider_executed, .. } => {
                self.record_result(
                    tool_call_id,
                    State::Completed,
                    *provider_executed,
                    chunk,
                    found,
                );
            }
            Chunk::ToolOutputDenied { tool_call_id } => {
                let is_deniable = self.by_id.get(&**tool_call_id).is_none_or(|call| {
                    matches!(
                        call.state,
                        State::ApprovalRequested
                            | State::ApprovalResponded { approved: false }
                            | State::Denied
                    )
                });
                if !is_deniable {
                    found.push(violation(Rule::DenialWithoutQuestion, chunk, tool_call_id));
                }
                self.record_result(tool_call_id, State::Denied, None, chunk, found);
            }
            _ => {}
        }
    }

    /// A changed input alone leaves the call without its approval: the output follows it.
    fn check_changed_input(&mut self, chunk: &Chunk<'_>, found: &mut Vec<Violation>) {
        let Some(changed) = self.changed.take() else { return };
        match chunk {
            Chunk::ToolOutputAvailable { tool_call_id, .. }
            | Chunk::ToolOutputError { tool_call_id, .. }
                if **tool_call_id == *changed => {}
            _ => found.push(violation(Rule::RepeatedToolCall, chunk, &changed)),
        }
    }

    /// Whether the input of this call may come again: as its approver has changed it, or for the client
    /// that executes the approved call.
    fn is_approved(&self, id: &str, dynamic: Option<bool>) -> bool {
        self.by_id.get(id).is_some_and(|call| {
            let is_approved = State::ApprovalResponded { approved: true };
            let can_run = call.state == State::ApprovalRequested || call.state == is_approved;
            can_run && call.step == self.step && call.is_dynamic == (dynamic == Some(true))
        })
    }

    /// Handles a chunk that creates a part, or updates the part of this call and kind in the
    /// current step.
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
            state: State::InputAvailable,
            step,
            earlier: None,
            is_dynamic,
            is_provider_executed: false,
            has_input: false,
            is_hidden: None,
            is_of_stream: true,
            has_started: false,
        });
        // The client reports an invalid input in the part that exists, whichever kind it has.
        if call.step == step
            && call.is_dynamic != is_dynamic
            && !matches!(chunk, Chunk::ToolInputError { .. })
        {
            found.push(violation(Rule::DynamicMismatch, chunk, id));
        }
        let ends_input = match chunk {
            Chunk::ToolInputStart { .. } => false,
            Chunk::ToolInputError { .. } => {
                matches!(call.state, State::InputStreaming | State::InputAvailable)
            }
            _ => call.state == State::InputStreaming,
        };
        if is_known && (call.step != step || !ends_input) {
            found.push(violation(Rule::RepeatedToolCall, chunk, id));
        }
        call.enter(step);
        call.is_of_stream = true;
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

    fn record_result(
        &mut self,
        id: &str,
        state: State,
        provider_executed: Option<bool>,
        chunk: &Chunk<'_>,
        found: &mut Vec<Violation>,
    ) {
        self.handed_over.retain(|handed| **handed != *id);
        let Some(call) = self.find(id, chunk, found) else {
            return;
        };
        // For a call with invalid input, the SDK sends `tool-input-error` and `tool-output-error`.
        let is_second_report = matches!(chunk, Chunk::ToolOutputError { .. });
        if matches!(call.state, State::Completed | State::Denied) && !is_second_report {
            found.push(violation(Rule::AlreadySettled, chunk, id));
        }
        call.state = state;
        call.is_provider_executed = provider_executed.unwrap_or(call.is_provider_executed);
    }

    fn ids_where(&self, matches: impl Fn(&Call) -> bool) -> Vec<Box<str>> {
        let found = self.by_id.iter().filter(|(_, call)| matches(call));
        let mut ids: Vec<Box<str>> = found.map(|(id, _)| id.clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns whether any part of the continued message holds an incomplete input.
    pub(super) fn continues_input(&self) -> bool {
        self.continues_input
    }

    pub(super) fn streaming_ids(&self) -> Vec<Box<str>> {
        self.ids_where(|call| call.state == State::InputStreaming)
    }

    /// Removes and returns the calls of the current step whose input is still streaming. Each call
    /// is returned once, because a stream may end more steps than it begins.
    pub(super) fn take_streaming_ids_in_step(&mut self) -> Vec<Box<str>> {
        // `take` instead of `drain`: `drain` costs the capacity that the largest step needed.
        let started = std::mem::take(&mut self.started_in_step).into_iter();
        let is_streaming = |call: &Call| call.state == State::InputStreaming;
        let mut ids: Vec<Box<str>> =
            started.filter(|id| self.by_id.get(id).is_some_and(is_streaming)).collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn preliminary_ids(&self) -> Vec<Box<str>> {
        self.ids_where(|call| call.state == State::Preliminary)
    }

    /// Returns the calls of the stream that have no result, although a later step has content. In
    /// the last step, the page may execute the tool. A call waits for the calls inside it that wait for
    /// an approval.
    pub(super) fn ids_without_output(&self) -> Vec<Box<str>> {
        let mut ids = self.ids_where(|call| {
            call.state == State::InputAvailable
                && call.step < self.shown_step
                && call.is_of_stream
                && !call.is_provider_executed
        });
        ids.retain(|id| {
            let mut inner = self.inner.iter().filter(|(_, outer)| **outer == **id);
            let asked = |call: &Call| call.state == State::ApprovalRequested;
            !inner.any(|(inner, _)| self.by_id.get(inner).is_some_and(asked))
        });
        ids
    }

    /// Returns the calls of the last step that the page has to execute and whose outputs it does not send: another
    /// call was denied. An approval that the user answers in the step makes the page send them.
    pub(super) fn ids_never_resubmitted(&self) -> Vec<Box<str>> {
        let in_step = || self.by_id.values().filter(|call| call.step == self.shown_step);
        let is_denied = |call: &Call| call.state == State::Denied && !call.is_provider_executed;
        let is_asked = |call: &Call| {
            matches!(call.state, State::ApprovalRequested | State::ApprovalResponded { .. })
        };
        if !in_step().any(is_denied) || in_step().any(is_asked) {
            return Vec::new();
        }
        self.ids_where(|call| {
            call.step == self.shown_step
                && call.state == State::InputAvailable
                && !call.is_provider_executed
        })
    }

    /// Returns whether one of the SDK's `sendAutomaticallyWhen` predicates holds for the last step.
    pub(super) fn would_resubmit(&self) -> bool {
        let in_step = || self.by_id.values().filter(|call| call.step == self.shown_step);
        let is_answered = |call: &Call| matches!(call.state, State::ApprovalResponded { .. });
        let by_approvals = in_step().any(is_answered)
            && in_step().all(|call| {
                is_answered(call) || matches!(call.state, State::Completed | State::Denied)
            });
        let host_executed = || in_step().filter(|call| !call.is_provider_executed);
        let by_tool_calls = host_executed().next().is_some()
            && host_executed().all(|call| call.state == State::Completed);
        by_approvals || by_tool_calls
    }
}

/// Returns whether a page that draws the fields of an object shows nothing of an input, by its beginning. `None` if there
/// is nothing to show.
fn is_hidden(input: &str) -> Option<bool> {
    let first = input.trim_start().bytes().next()?;
    Some(!matches!(first, b'{' | b'n'))
}

fn violation(rule: Rule, chunk: &Chunk<'_>, id: &str) -> Violation {
    Violation { rule, subject: format!("{} of tool call {id:?}", chunk.kind()) }
}
