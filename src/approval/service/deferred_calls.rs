//! [`DeferredCalls`]: the tool calls that an earlier turn left open, after the user's decisions on
//! them were redeemed.

use std::collections::{HashMap, HashSet};
use std::fmt;

use tokio::sync::oneshot;
use tracing::Instrument;

use super::claimed_call::GrantedClaim;
use super::deferred_call::{AfterLease, DeferredCall, InFlightCall};
use super::inner::RecordUpdate;
use super::ledger_requests::take_step;
use super::settled_call::SettledCall;
use super::{AuditEvent, AuditEventKind, ChatApprovals, Toolbox};
use crate::approval::judge::{
    Answer, Judge, Step, Stepped, Verdict, approvals_without_record, outcome_of, results_of,
};
use crate::approval::resume::AnsweredCall;
use crate::approval::store::{LedgerStoreError, system_time};
use crate::approval::{
    ApprovalRecord, DeferredOutcome, DeferredToolResult, DeferredToolResults, PendingToolCall,
    RecordId, RejectionReason, ResumePlan, UnixMillis, UnverifiedToolOutput,
};
use crate::id::{ApprovalId, MessageId, log_causes};
use crate::json::Json;
use crate::request::ChatRequest;

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
    pub(super) results: DeferredToolResults,
    pub(super) requests: AnsweredRequests,
    pub(super) calls: Vec<DeferredCall>,
    pub(super) unverified: Vec<UnverifiedToolOutput>,
}

/// What the ledger says about the approval requests of the calls.
#[derive(Default)]
pub(super) struct AnsweredRequests {
    /// The data that the client shows beside the calls.
    pub(super) descriptors: HashMap<ApprovalId, Json>,
    /// The outcomes of the requests that were denied, or closed without a decision that counts.
    pub(super) refused: HashMap<ApprovalId, DeferredOutcome>,
    /// The approvals for a provider that no model call has sent.
    unsent: HashMap<ApprovalId, DeferredOutcome>,
    /// The responses that the ledger accepted, now or for an earlier request.
    pub(super) accepted: HashSet<ApprovalId>,
    /// Whether the ledger could not store a response.
    pub(super) is_incomplete: bool,
}

impl AnsweredRequests {
    /// Adds the state of a record, unless its key is gone.
    fn describe(&mut self, record: &ApprovalRecord, approvals: &ChatApprovals, now: UnixMillis) {
        let Some(id) = record.approval_id(&approvals.inner.keys, now) else { return };
        let granted = record.granted().filter(|_| approvals.grants_to_providers);
        self.unsent.extend(granted.map(|granted| (id.clone(), granted)));
        let outcome = record.outcome().filter(|outcome| {
            outcome.is_closed_undecided() || matches!(outcome, DeferredOutcome::Denied { .. })
        });
        self.refused.extend(outcome.map(|outcome| (id.clone(), outcome)));
        self.descriptors.extend(record.descriptor(now).ok().map(|descriptor| (id, descriptor)));
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
        self.results.pending()
    }

    /// Returns the results as they are now, for all calls. A claimed call has the outcome
    /// [`DeferredOutcome::Approved`].
    pub fn results(&self) -> &DeferredToolResults {
        &self.results
    }

    /// Returns the outputs that the client sent for tools that it executes, and that the model has
    /// not read yet. The host has no record of these calls: the client may have invented them.
    ///
    /// The tools are those with [`ToolInfo::client_executed`](super::ToolInfo).
    pub fn unverified_outputs(&self) -> &[UnverifiedToolOutput] {
        &self.unverified
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

/// The answers of a request, before they are redeemed.
pub(super) struct Answers {
    plan: ResumePlan,
    /// The calls that the client executes, from the host's own record.
    client_executed: Vec<PendingToolCall>,
    /// The outputs of the client for calls of which the host has no record.
    unverified: Vec<UnverifiedToolOutput>,
    /// The message that the response continues.
    continued: Option<MessageId>,
    /// Whether the host keeps no history, so that the outcomes of earlier answers are needed, too.
    includes_earlier: bool,
}

impl Answers {
    /// The answers to the calls of a history that the host keeps.
    pub(super) fn new(plan: ResumePlan, client_executed: Vec<PendingToolCall>) -> Self {
        let (unverified, continued) = (Vec::new(), None);
        Answers { plan, client_executed, unverified, continued, includes_earlier: false }
    }

    /// The answers of a request, for a host that keeps no chats.
    pub(super) fn of_request(chat: &ChatRequest, toolbox: &dyn Toolbox) -> Self {
        let continued = chat.continued_message();
        let plan =
            ResumePlan::new(chat.messages(), continued).with_changed_inputs(chat.approval_inputs());
        let is_of_client = |output: &&UnverifiedToolOutput| {
            let tool = output.tool_name.as_ref().and_then(|name| toolbox.tool(name));
            tool.is_some_and(|tool| tool.client_executed)
        };
        Answers {
            unverified: plan.unverified_outputs().filter(is_of_client).cloned().collect(),
            client_executed: Vec::new(),
            continued: continued.map(|message| message.id.clone()),
            plan,
            includes_earlier: true,
        }
    }
}

impl Answers {
    pub(super) fn plan(&self) -> &ResumePlan {
        &self.plan
    }

    /// Stores the denials, and claims the approved calls.
    pub(super) async fn redeem(
        self,
        approvals: &ChatApprovals,
    ) -> Result<DeferredCalls, LedgerStoreError> {
        match &approvals.inner.stateless {
            Some(stateless) => {
                let approvals = approvals.with_records_of(&self.plan, stateless);
                self.redeem_in_ledger(&approvals).await
            }
            None => self.redeem_in_ledger(approvals).await,
        }
    }

    async fn redeem_in_ledger(
        self,
        approvals: &ChatApprovals,
    ) -> Result<DeferredCalls, LedgerStoreError> {
        let (inner, plan) = (&approvals.inner, &self.plan);
        let answers = Answer::all(plan, &inner.keys, system_time());
        let open = match self.includes_earlier {
            true => OpenRequest::of_history(plan, approvals),
            false => Vec::new(),
        };
        // Leases are measured by the clock of the ledger.
        let (now, pending) = inner.pending_records(&approvals.pending_list()).await?;
        let ids = answers.iter().filter_map(Answer::record);
        let ids: Vec<RecordId> = ids.chain(open.iter().map(|request| request.record)).collect();
        let records = inner.records(&ids).await?;
        let verdicts = self.judge(approvals, &answers, &records, now).await?;

        let asked = answers.iter().zip(&verdicts).filter_map(|(answer, verdict)| match verdict {
            Verdict::Takes(step) => Some((answer.record()?, *step)),
            _ => None,
        });
        let mut asked: Vec<_> = asked.collect();
        // If a call was approved and denied, the approval counts.
        asked.sort_by_key(|(_, step)| *step == Step::Claim);
        let steps: HashMap<RecordId, Step> = asked.into_iter().collect();
        let unanswered = pending.into_iter().filter(|record| !steps.contains_key(&record.id));
        let unanswered = unanswered.filter_map(|record| {
            let id = record.approval_id(&inner.keys, now)?;
            Some((record, id))
        });
        // Closed before any answer is sent, so that a ledger that fails here has approved nothing.
        let mut unanswered = self.spawn_closing(approvals, unanswered.collect()).await?;
        if self.includes_earlier {
            // A call that this request does not hold is answered on another page.
            unanswered.retain(|(record, id)| !record.is_pending() || plan.holds_request(id));
        }
        for request in open {
            let is_known = unanswered.iter().any(|(record, _)| record.id == request.record);
            let record = records.get(&request.record).filter(|_| !is_known);
            let record = record.filter(|record| request.is_closed_by(record, approvals));
            unanswered.extend(record.map(|record| (record.clone(), request.id)));
        }

        let mut requests = AnsweredRequests::default();
        let mut answered: Vec<Option<AnsweredCall>> = verdicts.iter().map(refused_call).collect();
        let mut granted = HashMap::new();
        let mut is_claimed = false;
        for step in [Step::Deny, Step::Lapse, Step::Claim] {
            let takers = answers.iter().zip(&verdicts).zip(&mut answered);
            let takers = takers.filter(|((_, verdict), _)| **verdict == Verdict::Takes(step));
            let sent = takers.filter_map(|((answer, _), call)| {
                let record = records.get(&answer.record()?)?;
                Some((answer.response, record, call, spawn_step(approvals, step, answer, record)))
            });
            let sent: Vec<_> = sent.collect();
            let mut is_lost = false;
            for (response, last_known, call, taken) in sent {
                let (record, stepped, at) = match taken.await {
                    Ok(taken) => {
                        // Also of a call that the provider executes, which is not executed here.
                        is_claimed |= matches!(taken.stepped, Stepped::Granted(_));
                        granted.extend(taken.granted.map(|granted| (taken.record.id, granted)));
                        (taken.record, taken.stepped, taken.at)
                    }
                    Err(_) if step == Step::Lapse => {
                        let lost = "an approval that lapses could not be stored";
                        return Err(LedgerStoreError::new(lost));
                    }
                    Err(_) => {
                        is_lost = true;
                        (last_known.clone(), Stepped::Unknown, now)
                    }
                };
                if stepped != Stepped::Unknown || !record.is_pending() {
                    requests.describe(&record, approvals, now);
                }
                if matches!(stepped, Stepped::Granted(_) | Stepped::Counts) {
                    requests.accepted.insert(response.approval_id.clone());
                }
                let outcome = outcome_of(response, &record, stepped, at);
                *call = Some(AnsweredCall::of_record(&record, outcome));
            }
            requests.is_incomplete |= is_lost;
            // Without claims the same request can be sent again, and then gets the true outcome.
            if is_lost && self.includes_earlier && !is_claimed {
                return Err(LedgerStoreError::new("an answer could not be stored"));
            }
        }
        unanswered.iter().for_each(|(record, _)| requests.describe(record, approvals, now));
        let results = results_of(plan, answered, &unanswered, &self.client_executed);
        let results = results.with_unsent(&requests.unsent);
        let report = |result: &DeferredToolResult| {
            let id = result.approval_id.as_ref().filter(|_| result.is_final);
            let descriptor = id.and_then(|id| requests.descriptors.get(id)).cloned();
            let is_continued = result.message_id.is_some() && result.message_id == self.continued;
            SettledCall::new(result.clone(), descriptor, is_continued)
        };
        let mut calls: Vec<DeferredCall> = (results.results().iter())
            .map(|result| call_of(approvals, result, report(result), &steps, &mut granted))
            .collect();
        // The user's own denials come first.
        calls.sort_by_key(|call| !matches!(call, DeferredCall::Denied(_)));
        Ok(DeferredCalls { results, requests, calls, unverified: self.unverified })
    }

    /// Judges the answers, and writes those that do not count to the audit.
    async fn judge(
        &self,
        approvals: &ChatApprovals,
        answers: &[Answer<'_>],
        records: &HashMap<RecordId, ApprovalRecord>,
        now: UnixMillis,
    ) -> Result<Vec<Verdict>, LedgerStoreError> {
        let inner = &approvals.inner;
        let may_have_run = match &inner.stateless {
            Some(stateless) => {
                stateless.possible_executions(approvals_without_record(answers, records)).await?
            }
            None => HashSet::new(),
        };
        let forgotten = answers.iter().filter_map(|answer| {
            let id = answer.record().filter(|id| !records.contains_key(id))?;
            let message = self.plan.message_of_request(&answer.response.approval_id)?;
            approvals.has_sealed(answer.call(), message).then_some(id)
        });
        let judge = Judge {
            plan: &self.plan,
            owner: &approvals.owner,
            chat: &approvals.chat,
            principal: &approvals.principal,
            may_decide: &|record| inner.can_decide(&approvals.principal, record),
            includes_earlier: self.includes_earlier,
            may_have_run,
            forgotten: forgotten.collect(),
        };
        let verdicts = answers.iter().map(|answer| {
            inner.other_keys.warn_of_answer(&answer.response.approval_id, &inner.keys);
            let record = answer.record().and_then(|id| records.get(&id));
            let verdict = judge.judge(answer, record);
            if let Verdict::Refused { cause, .. } = verdict {
                audit_refused(approvals, now, cause, answer, record);
            }
            verdict
        });
        Ok(verdicts.collect())
    }

    /// Closes the requests that a newer message closes, and the expired ones among the others, on a task of its own.
    /// Returns all of them as they are afterwards.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if a request that a message closes may still be open. Some of the others may be closed
    /// then. An expired request that cannot be closed is no error, because it cannot be approved any more.
    async fn spawn_closing(
        &self,
        approvals: &ChatApprovals,
        unanswered: Vec<(ApprovalRecord, ApprovalId)>,
    ) -> Result<Vec<(ApprovalRecord, ApprovalId)>, LedgerStoreError> {
        let superseded = unanswered.iter();
        let superseded =
            superseded.filter(|(record, id)| self.plan.is_closed_by_message(record, id));
        let superseded: Vec<RecordId> = superseded.map(|(record, _)| record.id).collect();
        let (approvals, last_known) = (approvals.clone(), unanswered.clone());
        let is_superseded = !superseded.is_empty();
        let closing =
            tokio::spawn(
                async move { close_unanswered(&approvals, unanswered, &superseded).await },
            );
        match closing.await {
            Ok(closed) => closed,
            // The store or the audit sink panicked.
            Err(error) if is_superseded => Err(LedgerStoreError::new(error)),
            Err(error) => {
                tracing::error!(
                    error = log_causes(&error),
                    "the expired approvals could not be closed"
                );
                Ok(last_known)
            }
        }
    }
}

/// An approval request that has no response in the history of a request, or a call that has only a
/// preliminary output there. It may have been answered, closed or executed for another request.
struct OpenRequest {
    record: RecordId,
    id: ApprovalId,
    /// Whether a user message follows it in the history.
    is_superseded: bool,
}

impl OpenRequest {
    fn of_history(plan: &ResumePlan, approvals: &ChatApprovals) -> Vec<Self> {
        let now = system_time();
        let open = plan.open_calls().filter_map(|(id, is_superseded)| {
            let (keys, id) = (&approvals.inner.keys, id.clone());
            let record = ApprovalRecord::record_id_from_token(&id, keys, now)?;
            Some(OpenRequest { record, id, is_superseded })
        });
        open.collect()
    }

    /// Returns whether the record of this request has an outcome that the history does not show.
    fn is_closed_by(&self, record: &ApprovalRecord, approvals: &ChatApprovals) -> bool {
        let Some(outcome) = record.outcome() else { return false };
        // The model reads of a superseded request that nobody answered it.
        let is_answered = !outcome.is_closed_undecided() || outcome == DeferredOutcome::Lapsed;
        (is_answered || !self.is_superseded)
            && approvals.is_own_request(record, &self.id, system_time())
    }
}

async fn close_unanswered(
    approvals: &ChatApprovals,
    unanswered: Vec<(ApprovalRecord, ApprovalId)>,
    superseded: &[RecordId],
) -> Result<Vec<(ApprovalRecord, ApprovalId)>, LedgerStoreError> {
    let (mut closed, mut failure) = (Vec::new(), None);
    for (record, id) in unanswered {
        let is_superseded = superseded.contains(&record.id);
        let rule = |record: &ApprovalRecord, now| {
            if is_superseded { record.supersede(now) } else { record.expire(now) }
        };
        match approvals.inner.update_record(Some(&approvals.principal), record.id, rule).await {
            Ok(updated) => closed.extend(updated.map(|updated| (updated.record, id))),
            Err(error) if is_superseded => failure = Some(error),
            Err(error) => {
                tracing::error!(
                    error = log_causes(&error),
                    "an expired approval could not be closed"
                );
                closed.push((record, id));
            }
        }
    }
    failure.map_or(Ok(closed), Err)
}

fn audit_refused(
    approvals: &ChatApprovals,
    at: UnixMillis,
    cause: RejectionReason,
    answer: &Answer<'_>,
    record: Option<&ApprovalRecord>,
) {
    let kind = AuditEventKind::Rejected { cause };
    let mut event = AuditEvent::new(at, &approvals.principal, kind);
    event.record = answer.record();
    if let Some(record) = record {
        event = event.with_record(record);
    }
    let (call, tool) = (&answer.response.tool_call_id, &answer.response.tool_name);
    approvals.inner.audit(&event.with_call(&approvals.chat, call, tool));
}

/// Returns the result of an answer that is refused. The host does not know its call.
fn refused_call(verdict: &Verdict) -> Option<AnsweredCall> {
    match verdict {
        Verdict::Refused { outcome: Some(outcome), .. } => {
            Some(AnsweredCall { tool_name: None, outcome: outcome.clone(), is_final: false })
        }
        _ => None,
    }
}

/// Returns a call by its state. `steps` are those of the answers, and `granted` the claims.
fn call_of(
    approvals: &ChatApprovals,
    result: &DeferredToolResult,
    report: SettledCall,
    steps: &HashMap<RecordId, Step>,
    granted: &mut HashMap<RecordId, GrantedClaim>,
) -> DeferredCall {
    match &result.outcome {
        DeferredOutcome::Approved { claim, .. } => {
            let granted = claim.as_ref().and_then(|claim| granted.remove(&claim.record));
            match granted {
                Some(granted) => DeferredCall::Approved(granted.reported_as(report)),
                // Never: each approved result of the ledger has its claim.
                None => DeferredCall::Settled(report.with_outcome(DeferredOutcome::OutcomeUnknown)),
            }
        }
        DeferredOutcome::Executing { record } => {
            let after_lease = match steps.get(record) {
                Some(Step::Claim) => AfterLease::Claim,
                Some(_) => AfterLease::Close,
                None => AfterLease::Leave,
            };
            let call = InFlightCall::new(approvals.clone(), *record, after_lease, report);
            DeferredCall::InFlight(call)
        }
        DeferredOutcome::Denied { .. } => DeferredCall::Denied(report),
        DeferredOutcome::ForwardToProvider { .. } | DeferredOutcome::ForwardedToProvider => {
            DeferredCall::OfProvider(report)
        }
        DeferredOutcome::Output { .. } | DeferredOutcome::OutputError { .. } => {
            DeferredCall::OfClient(report)
        }
        _ => DeferredCall::Settled(report),
    }
}

/// A step that the ledger has taken.
struct TakenStep {
    /// The record after the step.
    record: ApprovalRecord,
    stepped: Stepped,
    /// The time of the ledger at the step.
    at: UnixMillis,
    /// The claim, if it was granted and the call is executed here.
    granted: Option<GrantedClaim>,
}

/// Sends the step of an answer to the ledger. The channel is closed without a value if the ledger fails.
///
/// It is sent on a spawned task, so that a panic of the host's code concerns one call, and so that
/// the lease of a granted claim is renewed from the beginning. If the receiver was dropped, the
/// claim is given up.
fn spawn_step(
    approvals: &ChatApprovals,
    step: Step,
    answer: &Answer<'_>,
    record: &ApprovalRecord,
) -> oneshot::Receiver<TakenStep> {
    let (sender, taken) = oneshot::channel();
    let (approvals, record) = (approvals.clone(), record.clone());
    let response = answer.response.clone();
    let sending = async move {
        match take_step(&approvals, step, &response, &record).await {
            Ok(RecordUpdate { record, output: stepped, at, .. }) => {
                let granted = match &stepped {
                    Stepped::Granted(claim) if !record.provider_executed => {
                        GrantedClaim::new(&approvals, &record, claim)
                    }
                    _ => None,
                };
                let _ = sender.send(TakenStep { record, stepped, at, granted });
            }
            Err(error) => {
                let error = log_causes(&error);
                tracing::error!(record = %record.id, error, "an answer could not be redeemed");
            }
        }
    };
    tokio::spawn(sending.in_current_span());
    taken
}
