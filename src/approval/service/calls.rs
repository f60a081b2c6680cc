//! All answered calls of a request: [`DeferredCalls`] before the approved ones are executed, [`RunningCalls`] while they
//! are.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream::SelectAll;

use super::ApprovedCall;
use super::call::{DeferredCall, RunningCall, SettledCall};
use super::progress::Progress;
use crate::approval::{
    DeferredOutcome, DeferredToolResult, DeferredToolResults, PendingToolCall, ToolOutcome,
    UnverifiedToolOutput,
};
use crate::event::AgentEvent;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;

/// The tool calls that an earlier turn left open, after the user's decisions on them were redeemed:
/// checked, stored, and claimed for execution where the user approved.
///
/// Iterate over the calls to treat each by its state ([`DeferredCall`]), or pass a function that
/// executes the approved ones to [`run`](Self::run). If this value is dropped, the outcome of each
/// claimed call is recorded as unknown. A client that disconnects may cause that while this value is
/// awaited, and before the stream of the response is polled. [`Approvals::run`](super::Approvals::run)
/// avoids it.
///
/// Only [`Approvals::redeem`](super::Approvals::redeem) returns this value. What a client sent is not
/// enough:
///
/// ```compile_fail,E0308
/// use ui_message_stream::ChatRequest;
/// use ui_message_stream::approval::{DeferredCalls, ResumePlan};
///
/// fn answer(deferred: DeferredCalls) {
///     drop(deferred.run(|call, _| async move { call.input }));
/// }
///
/// fn chat(chat: &ChatRequest) {
///     answer(ResumePlan::new(chat.messages(), chat.continued_message()));
/// }
/// ```
#[must_use = "the claimed calls must be executed"]
pub struct DeferredCalls {
    pub(super) answered: AnsweredCalls,
    pub(super) calls: Vec<DeferredCall>,
}

/// What is known of the answered calls: their results, and what the ledger says about their approval requests.
#[derive(Default)]
pub(super) struct AnsweredCalls {
    /// The results as they were when the answers were redeemed.
    pub(super) results: DeferredToolResults,
    /// The outputs of the client for calls of which the host has no record.
    pub(super) unverified: Vec<UnverifiedToolOutput>,
    /// The data that the client shows beside the calls.
    pub(super) descriptors: HashMap<ApprovalId, Json>,
    /// The outcomes of the requests that were denied, or closed without a decision that counts.
    pub(super) refused: HashMap<ApprovalId, DeferredOutcome>,
    /// The responses that the ledger accepted, now or for an earlier request.
    pub(super) accepted: HashSet<ApprovalId>,
    /// Whether the ledger could not store a response.
    pub(super) is_incomplete: bool,
}

impl AnsweredCalls {
    /// Returns the data beside the call of this request.
    fn descriptor(&self, id: Option<&ApprovalId>) -> Option<&Json> {
        self.descriptors.get(id?)
    }

    /// Returns the data that the client shows beside an answered call, if its result is final.
    pub(super) fn descriptor_of(&self, result: &DeferredToolResult) -> Option<Json> {
        self.descriptor(result.approval_id.as_ref().filter(|_| result.is_final)).cloned()
    }
}

impl DeferredCalls {
    /// Returns the calls that still wait for the user or the client, in all messages of the request.
    ///
    /// While there are such calls, the model must not be called, unless the user has sent another
    /// message: end the turn. By default such a message closes the requests before it. With
    /// [`OnNewMessage::Run`](crate::approval::OnNewMessage::Run) they stay pending, and only calls
    /// of the message that the response continues end the turn.
    ///
    /// A call that the request does not hold is not returned. Another page shows it, or an earlier
    /// message if the client posts only the last one.
    pub fn pending(&self) -> &[PendingToolCall] {
        self.answered.results.pending()
    }

    /// Returns the results as they are now, for all calls. A claimed call has the outcome
    /// [`DeferredOutcome::Approved`].
    pub fn results(&self) -> &DeferredToolResults {
        &self.answered.results
    }

    /// Returns the outputs that the client sent for tools that it executes, and that the model has
    /// not read yet. The host has no record of these calls: the client may have invented them.
    ///
    /// The tools are those with [`ToolInfo::client_executed`](super::ToolInfo).
    pub fn unverified_outputs(&self) -> &[UnverifiedToolOutput] {
        &self.answered.unverified
    }

    /// Executes the approved calls, each on its own task, and stores their outcomes.
    ///
    /// A client that disconnects does not interrupt a call. For `run` see
    /// [`ClaimedCall::run`](super::ClaimedCall::run). It
    /// is called once for each approved call.
    pub fn run<F, Fut>(self, run: F) -> RunningCalls
    where
        F: Fn(ApprovedCall, Progress) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Into<ToolOutcome>> + Send + 'static,
    {
        let run = Arc::new(run);
        let run = || {
            let run = Arc::clone(&run);
            move |call, progress| run(call, progress)
        };
        let mut ready = VecDeque::new();
        let mut executing = SelectAll::new();
        for call in self.calls {
            match call {
                DeferredCall::Approved(call) => executing.push(Execution(Some(call.run(run())))),
                DeferredCall::InFlight(call) => executing.push(Execution(Some(call.run(run())))),
                DeferredCall::Denied(call)
                | DeferredCall::Settled(call)
                | DeferredCall::OfProvider(call)
                | DeferredCall::OfClient(call) => ready.push_back(call),
            }
        }
        let answered = self.answered;
        let superseded = answered.results.superseded().iter();
        let events = superseded.filter_map(|call| {
            let descriptor = answered.descriptor(call.approval_id.as_ref())?;
            Some(AgentEvent::approval_data(&call.tool_call_id, descriptor.clone()))
        });
        let events = events.collect();
        RunningCalls { answered, ready, executing, events, settled: Vec::new() }
    }
}

impl IntoIterator for DeferredCalls {
    type Item = DeferredCall;
    type IntoIter = std::vec::IntoIter<DeferredCall>;

    /// Returns the denied calls, then the other calls in the order of the history.
    fn into_iter(self) -> Self::IntoIter {
        self.calls.into_iter()
    }
}

impl fmt::Debug for DeferredCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredCalls").field("calls", &self.calls).finish_non_exhaustive()
    }
}

/// The deferred tool calls while the approved ones are executed, each on its own task.
///
/// Returned by [`Approvals::run`](super::Approvals::run), [`DeferredCalls::run`] and
/// [`ChatApprovals::resolve`](super::ChatApprovals::resolve). The calls are executed to
/// their end even if this value is dropped. An adapter streams [`next_event`](Self::next_event) and
/// then passes [`into_results`](Self::into_results) to the model.
#[must_use = "the agent needs the outcomes of the calls"]
pub struct RunningCalls {
    answered: AnsweredCalls,
    /// The calls that had an outcome from the beginning and were not returned yet.
    ready: VecDeque<SettledCall>,
    /// The calls that are being executed. The call that ends first is returned first.
    executing: SelectAll<Execution>,
    events: VecDeque<AgentEvent>,
    settled: Vec<DeferredToolResult>,
}

impl RunningCalls {
    /// Returns the results as they were when the execution began.
    ///
    /// A call with the outcome [`Approved`](DeferredOutcome::Approved) is already being executed.
    /// The host must not execute it again.
    pub fn results(&self) -> &DeferredToolResults {
        &self.answered.results
    }

    /// Returns the calls that still wait for the user or the client.
    ///
    /// For a host that keeps no chats these are calls of the request, see
    /// [`DeferredCalls::pending`]; for others they are calls of the whole chat.
    pub fn pending(&self) -> &[PendingToolCall] {
        self.answered.results.pending()
    }

    /// Returns the outputs that the client sent for calls of which the host has no record. See
    /// [`DeferredCalls::unverified_outputs`].
    pub fn unverified_outputs(&self) -> &[UnverifiedToolOutput] {
        &self.answered.unverified
    }

    /// Returns the data that the client shows beside an answered call.
    ///
    /// Returns `None` if the result is not final, or if the call had no approval request here.
    pub fn descriptor(&self, result: &DeferredToolResult) -> Option<Json> {
        self.answered.descriptor_of(result)
    }

    /// Returns the data that the client shows beside a [superseded](DeferredToolResults::superseded)
    /// call. Returns `None` if the call had no approval request here.
    pub fn descriptor_of_superseded(&self, call: &PendingToolCall) -> Option<Json> {
        self.answered.descriptor(call.approval_id.as_ref()).cloned()
    }

    /// Returns what a client shows of each approved call that is still being executed: the events that carry the
    /// decision, and the data beside the call.
    pub fn executing(&self) -> impl Iterator<Item = (&ToolCallId, AgentEvent)> {
        let is_settled = |result: &DeferredToolResult| {
            self.settled.iter().any(|settled| settled.approval_id == result.approval_id)
        };
        let executing = self.answered.results.results().iter().filter(move |result| {
            let DeferredToolResult { outcome, .. } = result;
            let is_approved = matches!(
                outcome,
                DeferredOutcome::Approved { .. } | DeferredOutcome::Executing { .. }
            );
            is_approved && !is_settled(result)
        });
        executing.flat_map(|result| {
            let id = &result.tool_call_id;
            let descriptor = self.answered.descriptor(result.approval_id.as_ref());
            let data = descriptor.map(|data| AgentEvent::approval_data(id, data.clone()));
            let decision = AgentEvent::decision(result).filter(|_| data.is_some());
            decision.into_iter().chain(data).map(move |event| (id, event))
        })
    }

    /// Returns the result to record in the history.
    ///
    /// A denial that arrives after the request was closed without a decision is shown as a denial on
    /// the page that sent it. The history holds the reason for which the request was closed, and so
    /// does the data beside the call. An approval that arrives after a denial is shown as rejected, and
    /// the history holds the denial: it may have been stored in the ledger alone.
    pub fn result_in_history(&self, result: &DeferredToolResult) -> DeferredToolResult {
        let id = result.approval_id.as_ref();
        let is_shown_otherwise = result.outcome.is_rejected()
            || matches!(result.outcome, DeferredOutcome::Denied { .. });
        let refused = id.and_then(|id| self.answered.refused.get(id));
        let outcome = refused.filter(|_| is_shown_otherwise).unwrap_or(&result.outcome).clone();
        DeferredToolResult { outcome, ..result.clone() }
    }

    /// Returns whether the ledger accepted the response to this approval request, now or for an
    /// earlier request.
    pub fn is_accepted(&self, id: &ApprovalId) -> bool {
        self.answered.accepted.contains(id)
    }

    /// Returns whether the ledger could not store a response. It is not known whether it has.
    pub fn is_incomplete(&self) -> bool {
        self.answered.is_incomplete
    }

    /// Waits for the next call that has an outcome and returns its result. Returns `None` if all
    /// results were returned.
    ///
    /// The denied calls come first, then the other calls whose outcome is already known, then the
    /// calls that are being executed, in the order in which they end. What these show before is left out:
    /// [`next_update`](Self::next_update) and [`next_event`](Self::next_event) return it.
    ///
    /// # Cancel safety
    /// No result is lost if the future is dropped. This function can be called again.
    pub async fn next(&mut self) -> Option<DeferredToolResult> {
        loop {
            if let CallUpdate::Settled(result) = self.next_update().await? {
                return Some(result);
            }
        }
    }

    /// Waits for the next update: an event that a call shows before its outcome, or the result of a call.
    /// Returns `None` if all results were returned.
    ///
    /// The calls are in the order of [`next`](Self::next).
    ///
    /// # Cancel safety
    /// No update is lost if the future is dropped. This function can be called again.
    pub async fn next_update(&mut self) -> Option<CallUpdate> {
        Some(match self.next_call_update().await? {
            Update::Progress { event, .. } => CallUpdate::Progress(event),
            Update::Settled(call) => CallUpdate::Settled(call.into_result()),
        })
    }

    /// Waits for the next event to stream: a preliminary output or a part, or the outcome of a call. Returns
    /// `None` if all calls have an outcome and its events were returned.
    ///
    /// The calls are in the order of [`next`](Self::next).
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped. This function can be called again.
    pub async fn next_event(&mut self) -> Option<AgentEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.next_call_update().await? {
                Update::Progress { event, is_shown: true } => return Some(event),
                Update::Progress { is_shown: false, .. } => {}
                Update::Settled(call) => self.events.extend(call.events()),
            }
        }
    }

    /// Returns the results for the model, which converts them with
    /// [`ToModelMessages::with_deferred`](crate::model::ToModelMessages::with_deferred). A denial is
    /// the outcome [`Denied`](DeferredOutcome::Denied), with the user's reason.
    ///
    /// Call this function after [`next_event`](Self::next_event), [`next_update`](Self::next_update) or
    /// [`next`](Self::next) has returned `None`. Before that, a call that is still being executed has the outcome
    /// [`Executing`](DeferredOutcome::Executing).
    pub fn into_results(self) -> DeferredToolResults {
        let mut results = self.answered.results.results().to_vec();
        for result in &mut results {
            let is_same = |other: &&DeferredToolResult| {
                other.tool_call_id == result.tool_call_id && other.approval_id == result.approval_id
            };
            if let Some(settled) = self.settled.iter().find(is_same) {
                *result = settled.clone();
            } else if let DeferredOutcome::Approved { claim: Some(claim), .. } = &result.outcome {
                result.outcome = DeferredOutcome::Executing { record: claim.record };
            }
        }
        self.answered.results.with_results(results)
    }

    async fn next_call_update(&mut self) -> Option<Update> {
        let update = match self.ready.pop_front() {
            Some(call) => Some(Update::Settled(call)),
            None => self.executing.next().await,
        };
        if let Some(Update::Settled(call)) = &update {
            self.settled.push(call.result().clone());
        }
        update
    }
}

impl fmt::Debug for RunningCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningCalls").finish_non_exhaustive()
    }
}

/// An update of an answered call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CallUpdate {
    /// A call that is being executed shows this: its changed input, a preliminary output or a part.
    Progress(AgentEvent),
    /// A call has an outcome.
    Settled(DeferredToolResult),
}

/// What is reported of a call that is being executed.
enum Update {
    /// Whether the response can show the event.
    Progress {
        event: AgentEvent,
        is_shown: bool,
    },
    Settled(SettledCall),
}

/// An approved call until it has an outcome, as a stream of its updates.
struct Execution(Option<RunningCall>);

impl Stream for Execution {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        let Some(call) = &mut self.0 else { return Poll::Ready(None) };
        if let Some(event) = ready!(call.poll_progress(cx)) {
            let is_shown = call.shows(&event);
            return Poll::Ready(Some(Update::Progress { event, is_shown }));
        }
        let settled = ready!(call.poll_settled(cx)).clone();
        self.0 = None;
        Poll::Ready(Some(Update::Settled(settled)))
    }
}
