//! One decided call, by its state: a [`DeferredCall`] is a [`ClaimedCall`], an [`InFlightCall`] or a [`SettledCall`], and
//! a [`RunningCall`] becomes a [`SettledCall`].
//!
//! The types differ in what is possible. A claimed call is executed or settled once. Only a settled call has the result
//! for the model and the page. The call of another request has to be waited for, and may then be claimed here.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::inner::{LoadedRecord, random_bytes};
use super::lease::{CallState, Lease, Pauses, call_state, close_call, log_failure};
use super::ledger_requests::claim;
use super::progress::Progress;
use super::{ApprovedCall, ChatApprovals};
use crate::UserText;
use crate::approval::judge::Step;
use crate::approval::store::LedgerStoreError;
use crate::approval::{
    DeferredOutcome, DeferredToolResult, LeaseHolderId, RecordId, RecordedDecision, Stepped,
    ToolOutcome,
};
use crate::event::AgentEvent;
use crate::id::{ToolCallId, log_error, log_text};
use crate::json::Json;

/// A tool call that an earlier turn left open, by its state.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum DeferredCall {
    /// The user approved the call, and it was claimed for execution here.
    Approved(ClaimedCall),
    /// The user approved the call, and another request executes it.
    InFlight(InFlightCall),
    /// The user denied the call.
    Denied(SettledCall),
    /// The call has another outcome: it ran for an earlier request, it must not run, or it is not
    /// known whether it ran.
    Settled(SettledCall),
    /// The provider executes the call, and must get the user's decision. See
    /// [`DeferredOutcome::ForwardToProvider`] and [`DeferredOutcome::ForwardedToProvider`].
    OfProvider(SettledCall),
    /// The client executed the call. Returned only if the host has a record of the call.
    OfClient(SettledCall),
}

/// An approved tool call that the ledger granted to this process: the right and the duty to execute
/// the call once.
///
/// While this value lives, a task renews the lease of the claim. The call must be executed with
/// [`input`](Self::input), which is the input that the user approved, and then settled:
///
/// - [`run`](Self::run) executes the call on its own task and settles it. A client that disconnects
///   does not interrupt the call.
/// - [`complete`](Self::complete) and [`fail`](Self::fail) settle a call that the host executed.
/// - If the value is dropped, the outcome of the call is recorded as unknown, and the user and the
///   model read that. A call of an idempotent tool can instead be claimed again.
///
/// After that, every repetition of the approval gets the stored outcome.
///
/// A call is settled once:
///
/// ```compile_fail,E0382
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::ClaimedCall;
///
/// async fn settle(call: ClaimedCall) {
///     call.complete(Json::string("deleted")).await;
///     call.fail("the file is gone").await;
/// }
/// ```
///
/// A call that is not used is a warning, or an error with `deny(unused_must_use)`:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use ui_message_stream::approval::ClaimedCall;
///
/// fn claimed(call: ClaimedCall) -> ClaimedCall {
///     call
/// }
///
/// fn ignore(call: ClaimedCall) {
///     claimed(call);
/// }
/// ```
#[must_use = "a claimed call that is dropped has an unknown outcome"]
pub struct ClaimedCall {
    /// The call as it is reported. Its outcome is set when the call is settled.
    pub(super) report: SettledCall,
    pub(super) lease: Lease,
}

impl ClaimedCall {
    /// Returns the id of the call on the wire.
    pub fn tool_call_id(&self) -> &ToolCallId {
        &self.report.result().tool_call_id
    }

    /// Returns the name of the tool.
    pub fn tool_name(&self) -> &str {
        &self.call().tool_name
    }

    /// Returns the input that the user approved, from the record of the server. In a stateless host
    /// it is the canonical form of the input, verified with the server's key.
    pub fn input(&self) -> &Json {
        &self.call().input
    }

    /// Returns the key of the call, which is the same for every attempt to execute it.
    pub fn idempotency_key(&self) -> RecordId {
        self.call().idempotency_key
    }

    /// Returns the call with its chat and the user's decision.
    pub fn call(&self) -> &ApprovedCall {
        &self.lease.call
    }

    /// Stores the output of the call in the ledger.
    ///
    /// The returned call has the outcome that the ledger holds. It differs from `output` only if the
    /// lease was lost meanwhile or the ledger failed.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the output is stored in any case.
    pub async fn complete(self, output: Json) -> SettledCall {
        self.settle(ToolOutcome::Output(output)).await
    }

    /// Stores the failure of the call in the ledger. The user and the model read `error`.
    ///
    /// Otherwise as [`complete`](Self::complete).
    pub async fn fail(self, error: impl Into<String>) -> SettledCall {
        self.settle(ToolOutcome::Failed(error.into())).await
    }

    async fn settle(self, outcome: ToolOutcome) -> SettledCall {
        let outcome = self.lease.end(outcome).await;
        self.report.with_outcome(outcome)
    }

    /// Executes the call on its own task, stores its outcome, and returns the events of the call.
    ///
    /// The call is executed to its end and its outcome is stored even if the returned value is
    /// dropped, for example because the client disconnected. A panic counts as a failure of the
    /// tool. `run` returns a [`ToolOutcome`], or what can be converted to one: the output as
    /// [`Json`](crate::Json), or a `Result` of it with an error text for the user and the model.
    ///
    /// ```
    /// use ui_message_stream::approval::{ClaimedCall, RunningCall};
    /// use ui_message_stream::Json;
    ///
    /// fn delete(call: ClaimedCall) -> RunningCall {
    ///     call.run(|call, progress| async move {
    ///         progress.emit("looking for the file").map_err(|error| error.to_string())?;
    ///         // Delete the file that `call.input` names.
    ///         Ok::<_, String>(Json::string("deleted"))
    ///     })
    /// }
    /// ```
    pub fn run<F, Fut>(self, run: F) -> RunningCall
    where
        F: FnOnce(ApprovedCall, Progress) -> Fut + Send + 'static,
        Fut: Future<Output: Into<ToolOutcome>> + Send,
    {
        let progress = Progress::default();
        let report = self.report.clone();
        let call = self.call().clone();
        let emitter = progress.clone();
        let tool = async move { run(call, emitter).await.into() };
        let tool = tokio::spawn(tool.in_current_span());
        let settling = tokio::spawn(self.settle_after(tool).in_current_span());
        let changed = AgentEvent::input_changed(report.result());
        RunningCall { progress, changed, ..RunningCall::new(report, Run::Here(settling)) }
    }

    /// Waits for the task of the tool, and stores its outcome.
    async fn settle_after(self, tool: JoinHandle<ToolOutcome>) -> SettledCall {
        let outcome = match tool.await {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => {
                let tool = &*log_text(self.tool_name());
                tracing::error!(tool, error = %log_error(&error), "an approved tool panicked");
                ToolOutcome::Failed(UserText::ToolFailed.to_string())
            }
            // The runtime shuts down. The tool may have done its work.
            Err(_) => return self.report.of_unknown_outcome(),
        };
        self.settle(outcome).await
    }
}

impl fmt::Debug for ClaimedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimedCall")
            .field("tool_call_id", self.tool_call_id())
            .field("tool_name", &log_text(self.tool_name()))
            .field("idempotency_key", &self.idempotency_key())
            .finish_non_exhaustive()
    }
}

/// An approved tool call that another request executes.
#[must_use]
pub struct InFlightCall {
    pub(super) approvals: ChatApprovals,
    pub(super) record: RecordId,
    /// What the request answers, if it does. After the lease of the other request, a claim claims the call of an
    /// idempotent tool, and a denial or a lapse closes it.
    pub(super) answer: Option<Step>,
    pub(super) report: SettledCall,
}

impl InFlightCall {
    /// Returns the result of the call as it is now: it is being executed.
    pub fn result(&self) -> &DeferredToolResult {
        self.report.result()
    }

    /// Waits until the call has an outcome.
    ///
    /// Returns [`DeferredCall::Settled`], or [`DeferredCall::Approved`] if the lease of the other
    /// request ended and the tool is idempotent: the call was then claimed here.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call is not affected.
    pub async fn wait(self) -> DeferredCall {
        let report = self.report.clone();
        let waited = self.spawn_wait(|waited| waited).await;
        match waited {
            Ok(Waited::Claimed(call)) => DeferredCall::Approved(*call),
            Ok(Waited::Settled(call)) => DeferredCall::Settled(call),
            // The runtime is shutting down.
            Err(_) => DeferredCall::Settled(report.of_unknown_outcome()),
        }
    }

    /// Waits for the call, and executes it with `run` if it is claimed here. It is started on the task that waits,
    /// because the reader of the events may have left.
    pub(super) fn run<F, Fut>(self, run: F) -> RunningCall
    where
        F: FnOnce(ApprovedCall, Progress) -> Fut + Send + 'static,
        Fut: Future<Output: Into<ToolOutcome>> + Send,
    {
        let report = self.report.clone();
        let next = self.spawn_wait(|waited| match waited {
            Waited::Claimed(call) => call.run(run),
            Waited::Settled(call) => RunningCall::ended(call),
        });
        RunningCall::new(report, Run::Elsewhere(next))
    }

    /// Waits on a spawned task, until there is an outcome or the receiver is dropped. Then calls
    /// `finish` on that task with the call that is claimed here or settled, and sends its result.
    ///
    /// Polls the ledger with pauses from 20 milliseconds to one second.
    fn spawn_wait<T: Send + 'static>(
        self,
        finish: impl FnOnce(Waited) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (mut sender, ended) = oneshot::channel();
        let waiting = async move {
            let lease_holder = LeaseHolderId::from_bytes(random_bytes());
            let mut pauses = Pauses::new();
            loop {
                match self.poll(lease_holder).await {
                    Ok(Some(waited)) => {
                        // If the receiver is gone and `finish` has not used a claim, the claim is
                        // dropped here and given up.
                        let _ = sender.send(finish(waited));
                        return;
                    }
                    Ok(None) => {}
                    Err(error) => log_failure(self.record, &error),
                }
                tokio::select! {
                    () = sender.closed() => return,
                    () = pauses.next() => {}
                }
            }
        };
        tokio::spawn(waiting.in_current_span());
        ended
    }

    /// Returns the call once it has an outcome or was claimed here, or `None` while another request
    /// executes it.
    async fn poll(&self, lease_holder: LeaseHolderId) -> Result<Option<Waited>, LedgerStoreError> {
        let settled = |outcome| Some(Waited::Settled(self.report.clone().with_outcome(outcome)));
        Ok(match (call_state(&self.approvals, self.record).await?, self.answer) {
            (CallState::Executing, _) => None,
            (CallState::Ended(outcome), _) => settled(outcome),
            (CallState::LeaseEnded(loaded), Some(Step::Claim)) => {
                self.claim(&loaded, lease_holder).await?.map(|call| Waited::Claimed(Box::new(call)))
            }
            // Another request may claim it.
            (CallState::LeaseEnded(loaded), None) if loaded.record.idempotent => {
                settled(DeferredOutcome::OutcomeUnknown)
            }
            (CallState::LeaseEnded(_), _) => {
                close_call(&self.approvals, self.record).await?;
                None
            }
        })
    }

    async fn claim(
        &self,
        loaded: &LoadedRecord,
        lease_holder: LeaseHolderId,
    ) -> Result<Option<ClaimedCall>, LedgerStoreError> {
        let Some(first) = loaded.record.decision().cloned() else { return Ok(None) };
        let decide = |now| RecordedDecision { decided_at: now, ..first.clone() };
        let update = claim(&self.approvals, loaded, lease_holder, decide).await?;
        let Stepped::Granted(claim) = &update.output else { return Ok(None) };
        let lease = Lease::new(&self.approvals, &update.record, claim);
        Ok(lease.map(|lease| ClaimedCall { report: self.report.clone(), lease }))
    }
}

/// How the wait for the call of another request ends.
enum Waited {
    /// The call was claimed here.
    Claimed(Box<ClaimedCall>),
    Settled(SettledCall),
}

impl fmt::Debug for InFlightCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightCall").field("call", &self.report).finish_non_exhaustive()
    }
}

/// An approved tool call that is being executed on its own task.
///
/// It is a stream of the events to send: the changed input, the preliminary outputs and the parts, then the
/// events of the outcome.
/// If this value is dropped, the call is executed to its end nevertheless.
pub struct RunningCall {
    report: SettledCall,
    progress: Progress,
    run: Run,
    /// The event of the input that the approver changed, which was not returned yet.
    changed: Option<AgentEvent>,
    /// The events of the outcome that were not returned yet.
    events: VecDeque<AgentEvent>,
}

enum Run {
    /// Another request executes the call, and it may then be claimed here.
    Elsewhere(oneshot::Receiver<RunningCall>),
    Here(JoinHandle<SettledCall>),
    Ended(SettledCall),
}

impl RunningCall {
    fn new(report: SettledCall, run: Run) -> Self {
        let progress = Progress::default();
        RunningCall { report, progress, run, changed: None, events: VecDeque::new() }
    }

    fn ended(call: SettledCall) -> Self {
        let events = call.events().collect();
        RunningCall { events, ..RunningCall::new(call.clone(), Run::Ended(call)) }
    }

    /// Returns the next event, or `None` after the events of the outcome.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn next_event(&mut self) -> Option<AgentEvent> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Waits until the call has an outcome. Its events are left to the caller.
    pub async fn settled(mut self) -> SettledCall {
        poll_fn(|cx| self.poll_settled(cx).map(Clone::clone)).await
    }

    /// Returns the event of the changed input, of a part, or of the preliminary output, that was not returned
    /// yet.
    fn next_progress(&mut self, cx: &mut Context<'_>) -> Option<AgentEvent> {
        self.progress.register(cx.waker());
        let is_running = matches!(self.run, Run::Here(_));
        let changed = self.changed.take().filter(|_| is_running);
        changed.or_else(|| self.progress.take_part()).or_else(|| {
            let output = self.progress.take_output().filter(|_| is_running)?;
            let id = self.report.result().tool_call_id.clone();
            Some(AgentEvent::preliminary_output(id, output))
        })
    }

    /// Returns what the call shows next, or `None` if it has an outcome and has shown everything.
    pub(super) fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        ready!(self.poll_begun(cx));
        let progress = self.next_progress(cx);
        if progress.is_some() {
            return Poll::Ready(progress);
        }
        ready!(self.poll_settled(cx));
        // The tool may have emitted parts before it ended.
        Poll::Ready(self.next_progress(cx))
    }

    /// Returns whether a response can show this event of the call.
    pub(super) fn shows(&self, event: &AgentEvent) -> bool {
        self.report.shows(event)
    }

    /// Waits until no other request executes the call.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Run::Elsewhere(next) = &mut self.run {
            *self = ready!(next.poll_unpin(cx)).unwrap_or_else(|_| {
                // The runtime is shutting down.
                RunningCall::ended(self.report.clone().of_unknown_outcome())
            });
        }
        Poll::Ready(())
    }

    pub(super) fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<&SettledCall> {
        ready!(self.poll_begun(cx));
        if let Run::Here(settling) = &mut self.run {
            // The task panics only in the store or in the audit sink, or if the runtime ends.
            let settled = ready!(settling.poll_unpin(cx));
            let settled = settled.unwrap_or_else(|_| self.report.clone().of_unknown_outcome());
            self.events.extend(settled.events());
            self.run = Run::Ended(settled);
        }
        match &self.run {
            Run::Ended(settled) => Poll::Ready(settled),
            Run::Elsewhere(_) | Run::Here(_) => Poll::Pending,
        }
    }
}

impl Stream for RunningCall {
    type Item = AgentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        loop {
            match ready!(self.poll_progress(cx)) {
                Some(event) if self.shows(&event) => return Poll::Ready(Some(event)),
                Some(_) => {}
                None => return Poll::Ready(self.events.pop_front()),
            }
        }
    }
}

impl fmt::Debug for RunningCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningCall").field("call", &self.report).finish_non_exhaustive()
    }
}

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

    pub(super) fn of_unknown_outcome(self) -> Self {
        self.with_outcome(DeferredOutcome::OutcomeUnknown)
    }

    fn with_outcome(mut self, outcome: DeferredOutcome) -> Self {
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::approval::{Approvals, DeferredCall, Principal, ToolList};
    use crate::event::ToolCall;
    use crate::json::Json;
    use crate::request::{ChatRequest, Limits};

    #[tokio::test]
    async fn a_tool_that_the_shutdown_of_the_runtime_cancels_has_an_unknown_outcome() {
        let approvals = Approvals::new(ToolList::new().tool("delete", "Deletes.", &Json::null()));
        let ada = Principal::new("ada");
        let chat = "chat".into();
        let approvals_of_chat = approvals.for_chat(&ada, &chat);
        let requested = approvals_of_chat
            .request_approval_of(&ToolCall::new("call_1", "delete"), &Json::null())
            .await;
        let AgentEvent::ApprovalRequested { approval_id, .. } = requested else {
            panic!("{requested:?}")
        };
        let body = serde_json::json!({"id": "chat", "messageId": "m", "messages": [
            {"id": "m", "role": "assistant", "parts": [{
                "type": "tool-delete", "toolCallId": "call_1", "input": null,
                "state": "approval-responded",
                "approval": {"id": approval_id.as_str(), "approved": true},
            }]},
        ]});
        let request = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
        let mut calls = approvals.redeem(&ada, &request).await.unwrap().into_iter();
        let Some(DeferredCall::Approved(call)) = calls.next() else { panic!("not approved") };

        let tool = tokio::spawn(pending());
        tool.abort();
        let settled = call.settle_after(tool).await;
        assert_eq!(settled.result().outcome, DeferredOutcome::OutcomeUnknown);
        // The ledger learns it from the claim that was dropped.
        let ids = [approval_id];
        for _ in 0..1000 {
            let outcomes = approvals_of_chat.outcomes(&ids).await.unwrap();
            if matches!(outcomes[..], [(_, DeferredOutcome::OutcomeUnknown)]) {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{:?}", approvals_of_chat.outcomes(&ids).await);
    }
}
