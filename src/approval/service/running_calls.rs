//! [`RunningCalls`]: the deferred tool calls while the approved ones are executed.
//!
//! [`Approvals::run`] redeems the approval responses of a request and executes the approved calls.
//! [`ChatApprovals::resolve`] does so for a chat that the host keeps, with the toolbox.

use std::collections::VecDeque;
use std::fmt;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::changed_inputs::check_changed_inputs;
use super::claimed_call::ClaimedCall;
use super::deferred_call::DeferredCall;
use super::deferred_calls::{AnsweredRequests, Answers, DeferredCalls};
use super::ledger_requests::provider_lease;
use super::progress::Progress;
use super::running_call::RunningCall;
use super::settled_call::SettledCall;
use super::{Approvals, ApprovedCall, ChatApprovals};
use crate::approval::store::{LedgerStoreError, RedeemError, update};
use crate::approval::{
    ApprovalRecord, DeferredOutcome, DeferredToolResult, DeferredToolResults, LeaseHolderId,
    LeaseResult, PendingToolCall, Principal, ResumePlan, ToolOutcome, Transition,
    UnverifiedToolOutput,
};
use crate::boxed::BoxFuture;
use crate::event::AgentEvent;
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::request::ChatRequest;

/// The deferred tool calls while the approved ones are executed, each on its own task.
///
/// Returned by [`Approvals::run`], [`DeferredCalls::run`] and [`ChatApprovals::resolve`]. The calls are executed to
/// their end even if this value is dropped. An adapter streams [`next_event`](Self::next_event) and
/// then passes [`into_results`](Self::into_results) to the model.
#[must_use = "the agent needs the outcomes of the calls"]
pub struct RunningCalls {
    results: DeferredToolResults,
    requests: AnsweredRequests,
    /// The calls that had an outcome from the beginning and were not returned yet.
    ready: VecDeque<SettledCall>,
    /// The calls that are being executed. The call that ends first is returned first.
    executing: SelectAll<Execution>,
    events: VecDeque<AgentEvent>,
    settled: Vec<DeferredToolResult>,
    unverified: Vec<UnverifiedToolOutput>,
}

/// Executes an approved call.
type Run = Arc<dyn Fn(ApprovedCall, Progress) -> BoxFuture<'static, ToolOutcome> + Send + Sync>;

impl Approvals {
    /// Redeems the user's decisions in a request, for a host that keeps no chats: checks the
    /// approval responses, stores the denials, and claims the approved calls for execution.
    ///
    /// Most hosts call [`run`](Self::run) instead, which executes the approved calls in any case.
    /// This function is for a host that treats the calls one by one.
    ///
    /// Each returned call has a type for its state. The same request sent again, or at the same
    /// time, never claims a call twice: it waits for the outcome of the first one, or gets it. An
    /// approval response that is not valid becomes a call that was not executed, and changes
    /// nothing. A `ChatServer` does all this itself.
    ///
    /// ```
    /// use ui_message_stream::approval::store::RedeemError;
    /// use ui_message_stream::approval::{Approvals, DeferredCall, Principal};
    /// use ui_message_stream::{ChatRequest, Json, UiMessageStream};
    ///
    /// async fn chat(
    ///     approvals: Approvals,
    ///     user: Principal,
    ///     chat: ChatRequest,
    /// ) -> Result<UiMessageStream, RedeemError> {
    ///     let deferred = approvals.redeem(&user, &chat).await?;
    ///     Ok(UiMessageStream::reply(&chat, async_stream::stream! {
    ///         for call in deferred {
    ///             match call {
    ///                 DeferredCall::Approved(call) => {
    ///                     // Execute `call.tool_name()` with `call.input()`.
    ///                     for event in call.complete(Json::string("done")).await.events() {
    ///                         yield event;
    ///                     }
    ///                 }
    ///                 DeferredCall::Denied(call) | DeferredCall::Settled(call) => {
    ///                     for event in call.events() {
    ///                         yield event;
    ///                     }
    ///                 }
    ///                 _ => {}
    ///             }
    ///         }
    ///     }))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RedeemError::Input`] if the user has changed an input and the tool does not accept it. Nothing
    /// was stored then.
    ///
    /// [`RedeemError::Ledger`] if the ledger or the replay guard fails and no call was claimed here.
    /// The same request can be sent again; the HTTP status for it is 503. If the ledger fails for
    /// some answers after a claim was granted for another, those to pending requests have an unknown
    /// outcome. A request that was decided before keeps its outcome.
    ///
    /// # Cancel safety
    /// If the future or the returned value is dropped, for example because the client disconnects,
    /// decisions are stored nevertheless. **A call that was claimed is then not executed**, now or
    /// later, and its outcome is unknown. [`run`](Self::run) avoids that.
    pub async fn redeem(
        &self,
        principal: &Principal,
        chat: &ChatRequest,
    ) -> Result<DeferredCalls, RedeemError> {
        let approvals = self.for_chat(principal, chat.id());
        let answers = Answers::of_request(chat, &*self.0.toolbox);
        approvals.check_changed_inputs(answers.plan()).await?;
        Ok(answers.redeem(&approvals).await?)
    }

    /// Redeems the user's decisions in a request, as [`redeem`](Self::redeem) does, and executes the
    /// approved calls with `run`, as [`DeferredCalls::run`] does: all on tasks of their own, so that
    /// a client that disconnects interrupts nothing.
    ///
    /// ```
    /// use ui_message_stream::approval::store::RedeemError;
    /// use ui_message_stream::approval::{Approvals, DeferredOutcome, Principal};
    /// use ui_message_stream::{AgentEvent, ChatRequest, Json, UiMessageStream};
    ///
    /// async fn chat(
    ///     approvals: Approvals,
    ///     user: Principal,
    ///     chat: ChatRequest,
    /// ) -> Result<UiMessageStream, RedeemError> {
    ///     let running = approvals.run(&user, &chat, |call, _| async move {
    ///         // Execute `call.tool_name` with `call.input`.
    ///         Json::string("done")
    ///     });
    ///     let mut running = running.await?;
    ///     Ok(UiMessageStream::reply(&chat, async_stream::stream! {
    ///         while let Some(event) = running.next_event().await {
    ///             yield event;
    ///         }
    ///         let results = running.into_results();
    ///         for result in results.results() {
    ///             if let DeferredOutcome::Denied { reason: Some(reason) } = &result.outcome {
    ///                 yield AgentEvent::text(format!("Your reason: {reason}"));
    ///             }
    ///         }
    ///         // If `results.pending()` is empty, call the model with the results.
    ///     }))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RedeemError`] as for [`redeem`](Self::redeem).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, decisions are stored and the approved calls
    /// are executed nevertheless. Before that, nothing was done.
    pub async fn run<F, Fut>(
        &self,
        principal: &Principal,
        chat: &ChatRequest,
        run: F,
    ) -> Result<RunningCalls, RedeemError>
    where
        F: Fn(ApprovedCall, Progress) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Into<ToolOutcome>> + Send + 'static,
    {
        let answers = Answers::of_request(chat, &*self.0.toolbox);
        let approvals = self.for_chat(principal, chat.id());
        let running = async move {
            approvals.check_changed_inputs(answers.plan()).await?;
            Ok(answers.redeem(&approvals).await?.run(run))
        };
        spawned(running).await
    }
}

/// Polls a redemption on a task of its own.
async fn spawned<E: From<LedgerStoreError> + Send + 'static>(
    redeeming: impl Future<Output = Result<RunningCalls, E>> + Send + 'static,
) -> Result<RunningCalls, E> {
    let redeemed = tokio::spawn(redeeming.in_current_span()).await;
    redeemed.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(cancelled) => Err(LedgerStoreError::new(cancelled).into()),
    })
}

impl DeferredCalls {
    /// Executes the approved calls, each on its own task, and stores their outcomes.
    ///
    /// A client that disconnects does not interrupt a call. For `run` see [`ClaimedCall::run`]. It
    /// is called once for each approved call.
    pub fn run<F, Fut>(self, run: F) -> RunningCalls
    where
        F: Fn(ApprovedCall, Progress) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Into<ToolOutcome>> + Send + 'static,
    {
        let run: Run = Arc::new(move |call, progress| {
            let running = run(call, progress);
            Box::pin(async move { running.await.into() })
        });
        let DeferredCalls { results, requests, calls, unverified } = self;
        let (mut ready, mut executing) = (VecDeque::new(), SelectAll::new());
        for call in calls {
            match call {
                DeferredCall::Approved(call) => executing.push(Execution::start(call, &run)),
                DeferredCall::InFlight(call) => {
                    let (report, run) = (call.report().clone(), Arc::clone(&run));
                    // A call that is claimed here is started on the task that waits for it, because
                    // the reader of the events may have left.
                    let next = call.spawn_wait(move |call| match call {
                        DeferredCall::Approved(call) => Execution::start(call, &run),
                        DeferredCall::Settled(call)
                        | DeferredCall::Denied(call)
                        | DeferredCall::OfProvider(call)
                        | DeferredCall::OfClient(call) => Execution::Settled(call),
                        // Never: the wait ends with an outcome or a claim.
                        DeferredCall::InFlight(call) => Execution::Settled(call.report().clone()),
                    });
                    executing.push(Execution::Elsewhere { next, report });
                }
                DeferredCall::Denied(call)
                | DeferredCall::Settled(call)
                | DeferredCall::OfProvider(call)
                | DeferredCall::OfClient(call) => ready.push_back(call),
            }
        }
        let superseded = results.superseded().iter();
        let events = superseded
            .filter_map(|call| {
                let descriptor = requests.descriptors.get(call.approval_id.as_ref()?)?;
                Some(AgentEvent::approval_data(&call.tool_call_id, descriptor.clone()))
            })
            .collect();
        let settled = Vec::new();
        RunningCalls { results, requests, ready, executing, events, settled, unverified }
    }
}

impl ChatApprovals {
    /// Checks the inputs that the user has changed in these answers, so that the user learns what is
    /// wrong before anything is stored. Answers that do not count are left to the redemption, which says
    /// nothing about them.
    ///
    /// # Errors
    /// [`RedeemError::Input`] for the first input that is not accepted, [`RedeemError::Ledger`] if the
    /// records cannot be read.
    pub async fn check_changed_inputs(&self, plan: &ResumePlan) -> Result<(), RedeemError> {
        check_changed_inputs(self, plan).await
    }

    /// Redeems the approval responses of a request: stores the denials, claims the approved tool
    /// calls and starts their execution with [`Toolbox::run`](super::Toolbox::run).
    ///
    /// A call without a response stays pending until its approval request expires. If the user sent
    /// a new message instead of a response, the call is superseded, and an approval that arrives with
    /// that message lapses. Its tool, or [`Approvals::on_new_message`](super::Approvals::on_new_message),
    /// may set that the call is denied, or stays pending. An invalid approval response is
    /// rejected and changes nothing in the ledger. `client_executed` are the calls that the client
    /// executes, from the host's own record.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read, if a superseded request cannot be closed,
    /// or if an approval that lapses cannot be stored. The host must then neither call the model nor
    /// record that the call was not executed, because the request may still be approved. In all
    /// cases no call was claimed, and in the first two no response of this request was sent to the
    /// ledger. The same request can be sent again.
    ///
    /// If the ledger fails for another response, a request that was decided before keeps its outcome.
    /// The response to a pending request gets a result that is not
    /// [final](DeferredToolResult::is_final), and its call stays open in the host's history. It is
    /// then not known whether the ledger stored the response.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work that has begun continues on its own tasks: decisions are
    /// stored, claimed calls are executed, and audit events are written. An approval for a provider
    /// exists only in the returned value. If the future or the value is dropped, the approval is
    /// lost.
    pub async fn resolve(
        &self,
        plan: ResumePlan,
        client_executed: &[PendingToolCall],
    ) -> Result<RunningCalls, LedgerStoreError> {
        let (answers, toolbox) =
            (Answers::new(plan, client_executed.to_vec()), self.inner.toolbox.clone());
        let approvals = self.clone();
        spawned(async move {
            let deferred = answers.redeem(&approvals).await?;
            Ok(deferred.run(move |call, progress| toolbox.run(call, progress)))
        })
        .await
    }

    /// Claims approvals that the next model call sends to the provider. Returns those that no other
    /// sender has claimed, and whose key this server has.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. Some of the approvals may be claimed then. The same
    /// sender can repeat the request, and gets these too.
    pub async fn claim_for_provider(
        &self,
        approved: Vec<DeferredToolResult>,
        sender: LeaseHolderId,
    ) -> Result<Vec<DeferredToolResult>, LedgerStoreError> {
        let lease = provider_lease(&self.inner);
        let mut claimed = Vec::new();
        for result in approved {
            if let DeferredOutcome::ForwardToProvider { claim: Some(claim), .. } = &result.outcome {
                let keys = &self.inner.keys;
                let forward = |record: &ApprovalRecord, now| match record.approval_id(keys, now) {
                    Some(_) => record.forward(sender, lease, now),
                    // A ledger that was restored from a backup may not know that it was sent.
                    None => Transition { output: LeaseResult::Lost, next: None },
                };
                let forwarded = update(&*self.inner.ledger, claim.record, forward).await?;
                if !matches!(forwarded, Some((_, LeaseResult::Stored))) {
                    continue;
                }
            }
            claimed.push(result);
        }
        Ok(claimed)
    }
}

impl RunningCalls {
    /// Returns the results as they were when the execution began.
    ///
    /// A call with the outcome [`Approved`](DeferredOutcome::Approved) is already being executed.
    /// The host must not execute it again.
    pub fn results(&self) -> &DeferredToolResults {
        &self.results
    }

    /// Returns the calls that still wait for the user or the client.
    ///
    /// For a host that keeps no chats these are calls of the request, see
    /// [`DeferredCalls::pending`]; for others they are calls of the whole chat.
    pub fn pending(&self) -> &[PendingToolCall] {
        self.results.pending()
    }

    /// Returns the outputs that the client sent for calls of which the host has no record. See
    /// [`DeferredCalls::unverified_outputs`].
    pub fn unverified_outputs(&self) -> &[UnverifiedToolOutput] {
        &self.unverified
    }

    /// Returns the data that the client shows beside an answered call.
    ///
    /// Returns `None` if the result is not final, or if the call had no approval request here.
    pub fn descriptor(&self, result: &DeferredToolResult) -> Option<Json> {
        self.requests
            .descriptors
            .get(result.approval_id.as_ref().filter(|_| result.is_final)?)
            .cloned()
    }

    /// Returns the data that the client shows beside a [superseded](DeferredToolResults::superseded)
    /// call. Returns `None` if the call had no approval request here.
    pub fn descriptor_of_superseded(&self, call: &PendingToolCall) -> Option<Json> {
        self.requests.descriptors.get(call.approval_id.as_ref()?).cloned()
    }

    /// Returns what a client shows of each approved call that is still being executed: the events that carry the
    /// decision, and the data beside the call.
    pub fn executing(&self) -> impl Iterator<Item = (&ToolCallId, AgentEvent)> {
        let is_settled = |result: &DeferredToolResult| {
            self.settled.iter().any(|settled| settled.approval_id == result.approval_id)
        };
        let executing = self.results.results().iter().filter(move |result| {
            let DeferredToolResult { outcome, .. } = result;
            let is_approved = matches!(
                outcome,
                DeferredOutcome::Approved { .. } | DeferredOutcome::Executing { .. }
            );
            is_approved && !is_settled(result)
        });
        executing.flat_map(|result| {
            let id = &result.tool_call_id;
            let descriptor =
                result.approval_id.as_ref().and_then(|id| self.requests.descriptors.get(id));
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
        let refused = id.and_then(|id| self.requests.refused.get(id));
        let outcome = refused.filter(|_| is_shown_otherwise).unwrap_or(&result.outcome).clone();
        DeferredToolResult { outcome, ..result.clone() }
    }

    /// Returns whether the ledger accepted the response to this approval request, now or for an
    /// earlier request.
    pub fn is_accepted(&self, id: &ApprovalId) -> bool {
        self.requests.accepted.contains(id)
    }

    /// Returns whether the ledger could not store a response. It is not known whether it has.
    pub fn is_incomplete(&self) -> bool {
        self.requests.is_incomplete
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
        let mut results = self.results.results().to_vec();
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
        self.results.with_results(results)
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

/// A call that is being executed, as a stream of its updates.
enum Execution {
    /// By another request, until that ends.
    Elsewhere {
        next: oneshot::Receiver<Execution>,
        report: SettledCall,
    },
    Here(Box<RunningCall>),
    Settled(SettledCall),
    Ended,
}

impl Execution {
    fn start(call: ClaimedCall, run: &Run) -> Self {
        let run = Arc::clone(run);
        Execution::Here(Box::new(call.run(move |call, progress| run(call, progress))))
    }
}

impl Stream for Execution {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        loop {
            let settled = match &mut *self {
                Execution::Elsewhere { next, report } => {
                    let next = ready!(Pin::new(next).poll(cx));
                    *self = next.unwrap_or_else(|_| {
                        // The runtime is shutting down.
                        let unknown = DeferredOutcome::OutcomeUnknown;
                        Execution::Settled(report.clone().with_outcome(unknown))
                    });
                    continue;
                }
                Execution::Here(call) => {
                    if let Some(event) = ready!(call.poll_progress(cx)) {
                        let is_shown = call.shows(&event);
                        return Poll::Ready(Some(Update::Progress { event, is_shown }));
                    }
                    ready!(call.poll_settled(cx)).clone()
                }
                Execution::Settled(call) => call.clone(),
                Execution::Ended => return Poll::Ready(None),
            };
            *self = Execution::Ended;
            return Poll::Ready(Some(Update::Settled(settled)));
        }
    }
}
