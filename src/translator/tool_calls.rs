//! The tool calls of the message, each in its state, and what each state allows.
//!
//! ```text
//! Streaming ──▶ Ready ──▶ Asked ──▶ Answered ──▶ Running ──▶ Settled
//!     │           └──────────────────────────────▲              ▲
//!     └── (input error) ────────────────────────────────────────┘
//! ```
//!
//! A call keeps the id that the agent gave it; on the wire it may have another, because within a
//! message the wire's ids are unique.

use std::collections::{HashMap, HashSet};

use crate::chunk::{InputEncoding, Version};
use crate::event::{Executor, Text, ToolCall};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::{ToolPart, ToolState};

use super::TranslateError;

/// How far a call is.
#[derive(Debug)]
pub(super) enum CallState {
    /// Announced, and its input is on its way.
    Streaming(StreamedInput),
    /// A stopped response left its input unfinished in the continued message.
    Abandoned,
    /// Its input is complete.
    Ready,
    /// It waits for a person.
    Asked,
    /// The person answered.
    Answered { approved: bool },
    /// It gave a preliminary output.
    Running,
    /// It has its result.
    Settled(Settled),
}

/// A tool's input so far.
#[derive(Debug)]
pub(super) struct StreamedInput {
    pub(super) text: String,
    /// The pieces are of JSON, not of plain text.
    is_json: bool,
    /// How long the text was when it was last found not to be JSON.
    not_json_at: usize,
}

impl StreamedInput {
    pub(super) fn new(encoding: Option<InputEncoding>) -> Self {
        let is_json = encoding != Some(InputEncoding::Text);
        StreamedInput { text: String::new(), is_json, not_json_at: 0 }
    }

    /// The input, if the text so far is one whole value.
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
pub(super) enum Settled {
    Output,
    InputError,
    Error,
    Denied,
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
    /// The step that its part stands in, counted as the client sees them.
    pub(super) step: u32,
    /// The continued message brought it: the client knows it.
    held: bool,
    /// This response is to give it a result: it announced the call, or began to answer it.
    pub(super) owed: bool,
    /// Another part of the continued message has the same id. Which one a chunk reaches depends on
    /// the client's version.
    has_twin: bool,
    /// Another part of the continued message has the same id, and counts: nothing is said of this
    /// one, for the client would hear it of the other.
    shadowed: bool,
}

impl Call {
    pub(super) fn provider_executed(&self) -> Option<bool> {
        (self.executed_by == Executor::Provider).then_some(true)
    }

    /// Present on every chunk of a dynamic call, absent on every chunk of the others.
    pub(super) fn dynamic_flag(&self) -> Option<bool> {
        self.dynamic.then_some(true)
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, CallState::Settled(_))
    }

    /// Whether a piece of input for it is old news: the client holds the whole.
    pub(super) fn is_held_whole(&self) -> bool {
        self.held && !matches!(self.state, CallState::Abandoned)
    }
}

/// What an announcement means, given what is known of the id.
pub(super) enum Announcement {
    /// A call that was not there before; it is now, at this index.
    New(usize),
    /// A call whose input was streaming.
    Streaming(usize),
    /// A call that the continued message holds: the client knows it, nothing is to be said.
    Held,
}

/// The calls of the message, in its order.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    calls: Vec<Call>,
    /// The agent's id to the call that it means now.
    by_id: HashMap<ToolCallId, usize>,
    wire_ids: HashSet<ToolCallId>,
    /// Ids of questions asked in this message.
    approval_ids: HashSet<ApprovalId>,
}

impl ToolCalls {
    /// Takes over a call of the message being continued. The run goes on in its last step,
    /// which is step 0 of this response.
    pub(super) fn continue_call(&mut self, part: &ToolPart, in_last_step: bool) {
        let state = match &part.state {
            ToolState::InputStreaming { .. } => CallState::Abandoned,
            ToolState::InputAvailable { .. } => CallState::Ready,
            ToolState::ApprovalRequested { .. } => CallState::Asked,
            ToolState::ApprovalResponded { approval, .. } => {
                CallState::Answered { approved: approval.approved }
            }
            ToolState::OutputAvailable { preliminary: Some(true), .. } => CallState::Running,
            ToolState::OutputAvailable { .. } => CallState::Settled(Settled::Output),
            ToolState::OutputError { .. } => CallState::Settled(Settled::Error),
            ToolState::OutputDenied { .. } => CallState::Settled(Settled::Denied),
            ToolState::Unknown { .. } => CallState::Abandoned,
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
            step: if in_last_step { 0 } else { EARLIER },
            held: true,
            owed: false,
            has_twin: false,
            // What is in a state of a later version is nobody's to act on.
            shadowed: matches!(part.state, ToolState::Unknown { .. }),
        };
        self.approval_ids.extend(part.approval_id().cloned());
        self.enter(&part.tool_call_id, call);
    }

    /// Of several parts with one id the settled one counts, or else the last.
    fn enter(&mut self, id: &ToolCallId, mut call: Call) {
        let index = self.calls.len();
        let twin = self.by_id.get(id).and_then(|index| self.calls.get_mut(*index));
        if let Some(twin) = twin {
            call.shadowed |= twin.is_settled();
            twin.shadowed = !call.shadowed;
        }
        if !call.shadowed {
            self.by_id.insert(id.clone(), index);
        }
        if self.wire_ids.contains(&call.wire_id) {
            let twins = self.calls.iter_mut().filter(|twin| twin.wire_id == call.wire_id);
            twins.for_each(|twin| twin.has_twin = true);
            call.has_twin = true;
        }
        self.wire_ids.insert(call.wire_id.clone());
        self.calls.push(call);
    }

    fn find(&self, id: &ToolCallId) -> Option<&Call> {
        self.by_id.get(id).and_then(|index| self.calls.get(*index))
    }

    /// The call that an event refers to.
    pub(super) fn named(&mut self, id: &ToolCallId) -> Result<&mut Call, TranslateError> {
        let index = self.by_id.get(id).copied();
        index
            .and_then(|index| self.calls.get_mut(index))
            .ok_or_else(|| TranslateError::UnknownCall(id.clone()))
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut Call> {
        self.calls.get_mut(index)
    }

    /// The calls of which something can be said.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.calls.iter_mut().filter(|call| !call.shadowed)
    }

    /// Whether an announcement of this id makes a new part.
    pub(super) fn is_new(&self, id: &ToolCallId) -> bool {
        self.find(id)
            .is_none_or(|call| matches!(call.state, CallState::Settled(_) | CallState::Abandoned))
    }

    /// Enters a call, or recognises it. A new call is `Ready` in step `step` until said otherwise.
    pub(super) fn announce(
        &mut self,
        call: &ToolCall,
        step: u32,
    ) -> Result<Announcement, TranslateError> {
        if !self.is_new(&call.id)
            && let Some(&index) = self.by_id.get(&call.id)
            && let Some(known) = self.calls.get_mut(index)
        {
            return match known.state {
                CallState::Streaming(_) => Ok(Announcement::Streaming(index)),
                _ if known.held => {
                    known.owed = true;
                    // Whether the provider runs it stands in the message; which of the others
                    // does, only the agent says.
                    if known.executed_by != Executor::Provider
                        && call.executed_by != Executor::Provider
                    {
                        known.executed_by = call.executed_by;
                    }
                    Ok(Announcement::Held)
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
            held: false,
            owed: true,
            has_twin: false,
            shadowed: false,
        });
        self.by_id.insert(call.id.clone(), index);
        Ok(Announcement::New(index))
    }

    /// Providers number their calls anew in each turn; old clients write the second over the first.
    fn unused_wire_id(&self, id: &ToolCallId) -> ToolCallId {
        if !self.wire_ids.contains(id) {
            return id.clone();
        }
        let candidates = (self.calls.len()..).map(|n| ToolCallId::from(format!("{id}-{n}")));
        let mut unused = candidates.filter(|candidate| !self.wire_ids.contains(candidate));
        // The numbers do not run out before the calls do.
        unused.next().unwrap_or_else(|| id.clone())
    }

    /// Whether a question was asked under this id.
    pub(super) fn has_approval_id(&self, id: &str) -> bool {
        self.approval_ids.contains(id)
    }

    pub(super) fn use_approval_id(&mut self, id: &str) {
        self.approval_ids.insert(id.into());
    }

    /// Whether what follows in this step is said by another model call: the step's tools have run.
    /// What a provider runs, it runs within one.
    pub(super) fn step_is_over(&self, step: u32) -> bool {
        let in_step = || self.calls.iter().rev().take_while(|call| call.step == step);
        let own = || in_step().filter(|call| call.executed_by != Executor::Provider);
        let is_streaming = |call: &Call| matches!(call.state, CallState::Streaming(_));
        own().next().is_some() && own().all(Call::is_settled) && !in_step().any(is_streaming)
    }

    /// Whether a call waits for the person or for the client.
    pub(super) fn wait_for_somebody(&self) -> bool {
        self.calls.iter().any(|call| match call.state {
            CallState::Asked => true,
            CallState::Ready => call.executed_by == Executor::Client,
            _ => false,
        })
    }

    /// Whether a client's automatic resubmission would fire on these tool calls of the last step.
    ///
    /// Both of the SDK's predicates, in the form of whichever version fires most easily: a response
    /// that ends so would be answered by the same request, for ever.
    /// Wire: `lastAssistantMessageIsCompleteWithApprovalResponses`, `…WithToolCalls`.
    pub(super) fn would_resubmit(&self, last_step: u32, version: Version) -> bool {
        let in_step = || self.calls.iter().filter(|call| call.step == last_step);
        let has_result = |call: &Call| {
            call.has_twin || matches!(call.state, CallState::Running | CallState::Settled(_))
        };
        let answered =
            |call: &Call| call.has_twin || matches!(call.state, CallState::Answered { .. });
        let by_approvals =
            in_step().any(answered) && in_step().all(|call| answered(call) || has_result(call));
        let is_done = |call: &Call| {
            has_result(call) && !matches!(call.state, CallState::Settled(Settled::Denied))
        };
        let are_done = |counts: &dyn Fn(&Call) -> bool| {
            let mut counted = in_step().filter(|call| counts(call)).peekable();
            counted.peek().is_some() && counted.all(is_done)
        };
        let is_own = |call: &Call| call.executed_by != Executor::Provider;
        let by_tool_calls = are_done(&is_own)
            // Some of ai@5 count what the provider ran, too, and some do not count dynamic calls.
            || version < Version::V6
                && (are_done(&|_| true)
                    || are_done(&|call| !call.dynamic)
                    || are_done(&|call| !call.dynamic && is_own(call)));
        by_approvals || by_tool_calls
    }
}

/// A step of the continued message before its last one; no run reaches this number.
const EARLIER: u32 = u32::MAX;
