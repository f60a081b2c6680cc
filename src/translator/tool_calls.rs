//! The tool calls of the message and their states.
//!
//! ```text
//! Streaming ──▶ Ready ──▶ ApprovalRequested ──▶ ApprovalResponded ──▶ Running ──▶ Settled
//!     │           └───────────────────────────────────────────────────▲              ▲
//!     └── (input error) ─────────────────────────────────────────────────────────────┘
//! ```
//!
//! A call keeps the id that the agent gave it. On the wire it may have another one, because the ids
//! on the wire are unique within a message.

use std::collections::{HashMap, HashSet};

use crate::chunk::{InputEncoding, Version};
use crate::event::{Executor, Text, ToolCall};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::{ToolPart, ToolState};
use crate::metadata::ProviderMetadata;

use super::TranslateError;

/// The state of a call.
#[derive(Debug)]
pub(super) enum CallState {
    /// It is announced, and its input is being streamed.
    Streaming(StreamedInput),
    /// Its input is incomplete in the continued message, because an earlier response was stopped.
    #[cfg_attr(
        not(feature = "approvals"),
        expect(dead_code, reason = "only a chat server continues this input")
    )]
    Abandoned(StreamedInput),
    /// Its input is complete.
    Ready,
    /// It waits for the user's approval.
    ApprovalRequested,
    /// The user approved or denied it.
    ApprovalResponded { approved: bool },
    /// It has a preliminary output.
    Running,
    /// It has its result.
    Settled(ResultKind),
}

/// A tool's input so far.
#[derive(Debug)]
pub(super) struct StreamedInput {
    pub(super) text: String,
    /// The text is JSON, not plain text.
    is_json: bool,
    /// The length of the text at the last check that found no JSON.
    not_json_at: usize,
}

impl StreamedInput {
    pub(super) fn new(encoding: Option<InputEncoding>) -> Self {
        let is_json = encoding != Some(InputEncoding::Text);
        StreamedInput { text: String::new(), is_json, not_json_at: 0 }
    }

    /// Returns the input, if the text so far is one whole JSON value.
    pub(super) fn whole(&mut self) -> Option<Json> {
        if !self.is_json || self.not_json_at == self.text.len() {
            return None;
        }
        let whole = Json::parse(&self.text).ok();
        if whole.is_none() {
            self.not_json_at = self.text.len();
        }
        whole
    }
}

/// Which kind of result a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultKind {
    /// An output.
    Output,
    /// An error of the input: the tool was not called.
    InputError,
    /// An error of the tool.
    Error,
    /// The user has denied the call.
    Denied,
    /// The server has refused to run the call, without a question to a user. A client of `ai@7` shows a denial. An
    /// older one shows an error.
    Refused,
    /// The error with the text [`UserText::Refused`](crate::UserText::Refused).
    Rejected,
    /// The error with the text [`UserText::OutcomeUnknown`](crate::UserText::OutcomeUnknown).
    OutcomeUnknown,
}

/// One call of the message.
#[derive(Debug)]
pub(super) struct Call {
    /// The id on the wire.
    pub(super) wire_id: ToolCallId,
    pub(super) tool_name: Text,
    pub(super) dynamic: bool,
    pub(super) executed_by: Executor,
    pub(super) state: CallState,
    /// The step of its part, counted as the client counts.
    pub(super) step: u32,
    /// It is a call of the continued message: the client knows it.
    from_history: bool,
    /// This response must give it a result, because it announced the call or wrote a preliminary
    /// output.
    pub(super) needs_result: bool,
    /// The user has answered it, and its result comes later: its tool is executed, or the next model call
    /// sends the approval.
    pub(super) is_answered: bool,
    /// The input that the approver changed, until it is written.
    pub(super) changed_input: Option<Json>,
    /// The id of its approval request, by which the client finds it.
    approval: Option<ApprovalId>,
    /// The id of the call inside which it is made.
    pub(super) outer: Option<ToolCallId>,
    /// Another part of the continued message has the same id. It depends on the client's version
    /// which of them a chunk changes.
    has_duplicate_id: bool,
    /// Another part of the continued message has the same id and takes precedence, or the state of
    /// this one is unknown. No chunk is written for this call: the client would apply it to the
    /// other.
    is_overridden: bool,
}

impl Call {
    pub(super) fn provider_executed(&self) -> Option<bool> {
        (self.executed_by == Executor::Provider).then_some(true)
    }

    /// Returns the field `dynamic`: `true` on every chunk of a dynamic call, absent on the others.
    pub(super) fn dynamic_flag(&self) -> Option<bool> {
        self.dynamic.then_some(true)
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, CallState::Settled(_))
    }

    /// Returns whether the client already has the whole input, so that pieces of it are ignored.
    pub(super) fn is_complete_in_history(&self) -> bool {
        self.from_history && !matches!(self.state, CallState::Abandoned(_))
    }
}

/// What an announcement refers to.
pub(super) enum Announcement {
    /// A new call, which was added at this index.
    New(usize),
    /// The call at this index, whose input is being streamed.
    Streaming(usize),
    /// A call of the continued message: the client knows it, and no chunk is needed.
    FromHistory,
}

/// The calls of the message, in its order.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    calls: Vec<Call>,
    /// The index of the current call, by the id of the agent.
    by_id: HashMap<ToolCallId, usize>,
    wire_ids: HashSet<ToolCallId>,
    /// The index of the call of each approval request in this message.
    approval_ids: HashMap<ApprovalId, usize>,
    /// No input of a call before this index is being streamed.
    streaming_from: usize,
    /// The last step of which calls were forgotten.
    forgotten_step: Option<u32>,
}

impl ToolCalls {
    /// Adds a call of the message being continued. Its last step is step 0 of this response.
    pub(super) fn continue_call(&mut self, part: &ToolPart, in_last_step: bool) {
        let state = match &part.state {
            ToolState::InputStreaming { raw_input, input_encoding, .. } => {
                let text = raw_input.clone().unwrap_or_default();
                CallState::Abandoned(StreamedInput { text, ..StreamedInput::new(*input_encoding) })
            }
            ToolState::InputAvailable { .. } => CallState::Ready,
            // The client has not read the rest of a refusal.
            ToolState::ApprovalRequested { approval, .. } if approval.details.is_automatic() => {
                CallState::Ready
            }
            ToolState::ApprovalRequested { .. } => CallState::ApprovalRequested,
            ToolState::ApprovalResponded { approval, .. } => {
                CallState::ApprovalResponded { approved: approval.approved }
            }
            ToolState::OutputAvailable { preliminary: Some(true), .. } => CallState::Running,
            ToolState::OutputAvailable { .. } => CallState::Settled(ResultKind::Output),
            ToolState::OutputError { .. } => CallState::Settled(ResultKind::Error),
            ToolState::OutputDenied { approval: Some(approval), .. } if approval.is_automatic() => {
                CallState::Settled(ResultKind::Refused)
            }
            ToolState::OutputDenied { .. } => CallState::Settled(ResultKind::Denied),
            ToolState::Unknown { .. } => CallState::Abandoned(StreamedInput::new(None)),
        };
        let call = Call {
            wire_id: part.tool_call_id.clone(),
            tool_name: part.tool_name.to_string().into(),
            dynamic: part.is_dynamic(),
            executed_by: if part.provider_executed == Some(true) {
                Executor::Provider
            } else {
                Executor::Server
            },
            state,
            step: if in_last_step { 0 } else { EARLIER_STEP },
            from_history: true,
            needs_result: false,
            is_answered: false,
            changed_input: None,
            approval: None,
            outer: part.outer_call(),
            has_duplicate_id: false,
            // A call in a state of a later version is left alone.
            is_overridden: matches!(part.state, ToolState::Unknown { .. }),
        };
        self.insert(&part.tool_call_id, call);
        if let Some(id) = part.approval_id() {
            self.add_approval(id, self.calls.len() - 1);
        }
    }

    /// Gives the call at this index an approval id. If an earlier call has it, it depends on the client which of the
    /// two an answer reaches, so none of them can be found then.
    fn add_approval(&mut self, id: &ApprovalId, index: usize) {
        let earlier = self.approval_ids.insert(id.clone(), index);
        if let Some(earlier) = earlier.and_then(|index| self.calls.get_mut(index)) {
            earlier.approval = None;
        } else if let Some(call) = self.calls.get_mut(index) {
            call.approval = Some(id.clone());
        }
    }

    /// Requires a result of these calls, unless they wait for an answer of the user.
    #[cfg(feature = "approvals")]
    pub(super) fn require_results(&mut self, ids: &[ToolCallId]) {
        self.streaming_from = 0;
        for call in self.calls.iter_mut().filter(|call| ids.contains(&call.wire_id)) {
            call.needs_result = true;
            if let CallState::Abandoned(input) = &mut call.state {
                let input = std::mem::replace(input, StreamedInput::new(None));
                call.state = CallState::Streaming(input);
            }
        }
    }

    #[cfg(feature = "approvals")]
    pub(super) fn set_answered(&mut self, ids: &[ToolCallId]) {
        for call in &mut self.calls {
            call.is_answered = !call.is_settled() && ids.contains(&call.wire_id);
        }
    }

    /// Marks these calls as executed by the client.
    #[cfg(feature = "approvals")]
    pub(super) fn set_client_executed(&mut self, ids: &[ToolCallId]) {
        for call in self.calls.iter_mut().filter(|call| ids.contains(&call.wire_id)) {
            call.executed_by = Executor::Client;
        }
    }

    /// Adds a call. Of several parts with the same id the settled one takes precedence, or else the
    /// last one.
    fn insert(&mut self, id: &ToolCallId, mut call: Call) {
        let index = self.calls.len();
        let duplicate = self.by_id.get(id).and_then(|index| self.calls.get_mut(*index));
        if let Some(duplicate) = duplicate {
            call.is_overridden |= duplicate.is_settled();
            duplicate.is_overridden = !call.is_overridden;
        }
        if !call.is_overridden {
            self.by_id.insert(id.clone(), index);
        }
        if self.wire_ids.contains(&call.wire_id) {
            let duplicates = self.calls.iter_mut().filter(|other| other.wire_id == call.wire_id);
            duplicates.for_each(|other| other.has_duplicate_id = true);
            call.has_duplicate_id = true;
        }
        self.wire_ids.insert(call.wire_id.clone());
        self.calls.push(call);
    }

    /// Returns the index of the current call with this id. In the continued message a long id is
    /// replaced by a short one.
    fn index_of(&self, id: &ToolCallId) -> Option<usize> {
        let by_short_id = || self.by_id.get(&id.shortened()?);
        self.by_id.get(id).or_else(by_short_id).copied()
    }

    fn find(&self, id: &ToolCallId) -> Option<&Call> {
        self.calls.get(self.index_of(id)?)
    }

    /// Returns the index of the call that an event refers to. If the agent has given no call this id, it is taken
    /// as the id on the wire of a call that was renamed.
    fn index_named(&self, id: &ToolCallId) -> Option<usize> {
        let is_renamed = |call: &Call| call.wire_id == *id && !call.from_history;
        self.index_of(id).or_else(|| self.calls.iter().rposition(is_renamed))
    }

    /// Returns the call that an event refers to.
    pub(super) fn named(&mut self, id: &ToolCallId) -> Result<&mut Call, TranslateError> {
        self.index_named(id)
            .and_then(|index| self.calls.get_mut(index))
            .ok_or_else(|| TranslateError::UnknownCall(id.clone()))
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut Call> {
        self.calls.get_mut(index)
    }

    /// Iterates over the calls for which chunks may be written.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.calls.iter_mut().filter(|call| !call.is_overridden)
    }

    /// Iterates over the calls whose inputs are being streamed, so that they can be ended.
    pub(super) fn streaming_to_end(&mut self) -> impl Iterator<Item = &mut Call> {
        let begin = std::mem::replace(&mut self.streaming_from, self.calls.len());
        let is_streaming = |call: &&mut Call| matches!(call.state, CallState::Streaming(_));
        let calls = self.calls.iter_mut().skip(begin).filter(is_streaming);
        calls.filter(|call| !call.is_overridden)
    }

    /// Iterates over the ids on the wire of the calls that have this kind of result.
    pub(super) fn settled_as(&self, kind: ResultKind) -> impl Iterator<Item = &ToolCallId> {
        let is_settled =
            move |call: &&Call| matches!(call.state, CallState::Settled(result) if result == kind);
        self.calls.iter().filter(is_settled).map(|call| &call.wire_id)
    }

    /// Returns whether an announcement of this id makes a new part.
    pub(super) fn is_new(&self, id: &ToolCallId) -> bool {
        self.find(id).is_none_or(|call| {
            matches!(call.state, CallState::Settled(_) | CallState::Abandoned(_))
        })
    }

    /// Adds a new call, or finds the call that is announced again. A new call is `Ready`, in step
    /// `step`; the caller may change its state.
    pub(super) fn announce(
        &mut self,
        call: &ToolCall,
        step: u32,
    ) -> Result<Announcement, TranslateError> {
        if !self.is_new(&call.id)
            && let Some(index) = self.index_of(&call.id)
            && let Some(known) = self.calls.get_mut(index)
        {
            return match known.state {
                CallState::Streaming(_) => Ok(Announcement::Streaming(index)),
                _ if known.from_history => {
                    known.needs_result = true;
                    // The message shows whether the provider executes the call. Only the agent
                    // knows whether the server or the client does.
                    if known.executed_by != Executor::Provider
                        && call.executed_by != Executor::Provider
                    {
                        known.executed_by = call.executed_by;
                    }
                    Ok(Announcement::FromHistory)
                }
                _ => Err(TranslateError::CallOpen(call.id.clone())),
            };
        }
        let index = self.calls.len();
        let wire_id = self.unused_wire_id(&call.id);
        self.wire_ids.insert(wire_id.clone());
        self.calls.push(Call {
            wire_id,
            tool_name: call.tool_name.clone(),
            dynamic: call.dynamic,
            executed_by: call.executed_by,
            state: CallState::Ready,
            step,
            from_history: false,
            needs_result: true,
            is_answered: false,
            changed_input: None,
            approval: None,
            outer: call.provider_metadata.as_ref().and_then(ProviderMetadata::outer_call),
            has_duplicate_id: false,
            is_overridden: false,
        });
        self.by_id.insert(call.id.clone(), index);
        Ok(Announcement::New(index))
    }

    /// Returns an id of at most 128 bytes that no call in the message has on the wire.
    ///
    /// Some providers number their calls from the start in each turn. Old clients would overwrite
    /// the first call with the second.
    fn unused_wire_id(&self, id: &ToolCallId) -> ToolCallId {
        let id = &id.on_wire();
        if !self.wire_ids.contains(id) {
            return id.clone();
        }
        let candidates = (self.calls.len()..).map(|n| ToolCallId::from(format!("{id}-{n}")));
        let mut unused = candidates.filter(|candidate| !self.wire_ids.contains(candidate));
        // There are more numbers than calls.
        unused.next().unwrap_or_else(|| id.clone())
    }

    /// Returns whether the message has an approval request with this id.
    pub(super) fn has_approval_id(&self, id: &str) -> bool {
        self.approval_ids.contains_key(id)
    }

    /// Returns the approval id for a call that the server refuses. No approval request in the message has this id.
    pub(super) fn unused_approval_id(&self, call: &ToolCallId) -> ApprovalId {
        let mut id = format!("refused-{call}");
        // A call of a step that was reset may have had the id.
        while self.has_approval_id(&id) {
            id.push('+');
        }
        ApprovalId::new(id)
    }

    pub(super) fn use_approval_id(&mut self, id: &ApprovalId, call: &ToolCallId) {
        if let Some(index) = self.index_named(call) {
            self.add_approval(id, index);
        }
    }

    /// Returns the call with this approval request, for which chunks may be written.
    pub(super) fn asked_with(&mut self, id: &ApprovalId) -> Option<&mut Call> {
        let call = self.calls.get_mut(*self.approval_ids.get(id)?)?;
        Some(call).filter(|call| call.approval.as_ref() == Some(id) && !call.is_overridden)
    }

    /// Forgets the calls of the last step, which the client has removed. All ids stay in use: an older client
    /// that reads the same run still has the calls.
    pub(super) fn forget_step(&mut self, step: u32) {
        let kept = self.calls.iter().position(|call| call.step == step).unwrap_or(self.calls.len());
        if kept < self.calls.len() {
            self.forgotten_step = Some(step);
        }
        self.calls.truncate(kept);
        self.by_id.retain(|_, index| *index < kept);
        self.streaming_from = self.streaming_from.min(kept);
    }

    /// Returns whether content that follows belongs to the next model call: all tool calls of the
    /// step have their results. Calls that the provider runs are within one model call and do not
    /// count.
    pub(super) fn step_is_over(&self, step: u32) -> bool {
        let in_step = || self.calls.iter().rev().take_while(|call| call.step == step);
        let own = || in_step().filter(|call| call.executed_by != Executor::Provider);
        let is_streaming = |call: &Call| matches!(call.state, CallState::Streaming(_));
        own().next().is_some() && own().all(Call::is_settled) && !in_step().any(is_streaming)
    }

    /// Returns whether a call waits for the user's approval or for a result of the client.
    pub(super) fn has_pending_calls(&self) -> bool {
        self.calls.iter().any(|call| match call.state {
            CallState::ApprovalRequested => true,
            CallState::Ready => call.executed_by == Executor::Client,
            _ => false,
        })
    }

    /// Returns whether the client has to execute another call in the step of this one.
    pub(super) fn client_executes_beside(&self, id: &ToolCallId) -> bool {
        let Some(index) = self.index_named(id) else { return false };
        let step = self.calls.get(index).map(|call| call.step);
        self.calls.iter().enumerate().any(|(at, call)| {
            let is_open = call.executed_by == Executor::Client && !call.is_settled();
            at != index && is_open && Some(call.step) == step && call.step != EARLIER_STEP
        })
    }

    /// Returns the ids on the wire of the calls inside which other calls wait for the user's approval.
    pub(super) fn waiting_outer_calls(&self) -> HashSet<ToolCallId> {
        let asked = |call: &&Call| matches!(call.state, CallState::ApprovalRequested);
        let outer = self.calls.iter().filter(asked).filter_map(|call| call.outer.as_ref());
        // A long id is named as it is on the wire.
        let named =
            |outer: &ToolCallId| self.find(outer).map_or(outer, |call| &call.wire_id).clone();
        outer.map(named).collect()
    }

    /// Returns whether a client would resubmit automatically because of the tool calls in the last
    /// step. The client would answer such a response with the same request, again and again.
    ///
    /// Evaluates both predicates of the SDK, the second one also for pages that leave out denied calls, as
    /// `docs/front-end.md` shows. Where versions differ, or read different chunks of the same run, it takes the
    /// version that resubmits most easily.
    ///
    /// Source: `lastAssistantMessageIsCompleteWithApprovalResponses`, `…WithToolCalls`.
    pub(super) fn would_resubmit(&self, last_step: u32, version: Version) -> bool {
        let in_step = || self.calls.iter().filter(|call| call.step == last_step);
        let has_result = |call: &Call| {
            call.has_duplicate_id
                || matches!(call.state, CallState::Running | CallState::Settled(_))
        };
        let answered = |call: &Call| {
            call.has_duplicate_id
                || call.is_answered
                || matches!(call.state, CallState::ApprovalResponded { .. })
        };
        let by_approvals =
            in_step().any(answered) && in_step().all(|call| answered(call) || has_result(call));
        let is_denied = |call: &Call| matches!(call.state, CallState::Settled(ResultKind::Denied));
        let are_done = |is_relevant: &dyn Fn(&Call) -> bool| {
            let is_counted = |call: &&Call| is_relevant(call) && !is_denied(call);
            let mut counted = in_step().filter(is_counted).peekable();
            counted.peek().is_some() && counted.all(has_result)
        };
        let is_own = |call: &Call| call.executed_by != Executor::Provider;
        let by_tool_calls = are_done(&is_own)
            // Some versions of ai@5 also count calls that the provider ran, and some do not count
            // dynamic calls.
            || version == Version::V5
                && (are_done(&|_| true)
                    || are_done(&|call| !call.dynamic)
                    || are_done(&|call| !call.dynamic && is_own(call)));
        by_approvals || by_tool_calls || self.forgotten_step == Some(last_step)
    }
}

/// The number of all steps of the continued message before its last one. No response reaches it.
const EARLIER_STEP: u32 = u32::MAX;
