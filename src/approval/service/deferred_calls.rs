//! [`DeferredCalls`]: the tool calls that an earlier turn left open, after the user's decisions on
//! them were redeemed.

use std::collections::{HashMap, HashSet};
use std::fmt;

use tokio::sync::oneshot;
use tracing::Instrument;

use super::claimed_call::GrantedClaim;
use super::deferred_call::{AfterLease, DeferredCall, InFlightCall};
use super::ledger_requests::send_to_ledger;
use super::settled_call::SettledCall;
use super::{AuditEvent, AuditEventKind, ChatApprovals, Toolbox};
use crate::approval::store::{LedgerStoreError, system_time};
use crate::approval::{
    ApprovalRecord, ClaimResult, DeferredOutcome, DeferredToolResult, DeferredToolResults,
    LedgerAction, LedgerRequest, LedgerResponse, PendingToolCall, RecordId, RejectedResponse,
    ResumePlan, UnixMillis, UnverifiedToolOutput,
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
    /// The responses that the ledger accepted, now or for an earlier request.
    pub(super) accepted: HashSet<ApprovalId>,
    /// Whether the ledger could not store a response.
    pub(super) is_incomplete: bool,
}

impl AnsweredRequests {
    /// Adds the state of a record whose approval id is `id`.
    fn describe(&mut self, record: &ApprovalRecord, id: ApprovalId, now: UnixMillis) {
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
        let Answers { plan, client_executed, unverified, continued, includes_earlier } = self;
        let inner = &approvals.inner;
        let answered: Vec<ApprovalId> =
            plan.unverified_responses().map(|response| response.approval_id.clone()).collect();
        let open = match includes_earlier {
            true => OpenRequest::of_history(&plan, approvals),
            false => Vec::new(),
        };
        let mut redemption = plan.redeem(&inner.keys, system_time());
        if includes_earlier {
            redemption = redemption.including_earlier();
        }
        let open_ids = open.iter().map(|request| request.record);
        let ids: Vec<RecordId> = redemption.records().chain(open_ids).collect();
        let (now, pending) = inner.pending_records(&approvals.pending_list()).await?;
        answered.iter().for_each(|id| inner.other_keys.warn_of_answer(id, &inner.keys));
        // Leases are measured by the clock of the ledger.
        redemption.now = now;
        let mut records = HashMap::new();
        if !ids.is_empty() {
            let loaded = inner.ledger.load(&ids).await?.records.into_iter();
            records.extend(loaded.map(|versioned| (versioned.record.id, versioned.record)));
        }
        if let Some(stateless) = &inner.stateless {
            let unopened = redemption.approvals_without_record(&records);
            let may_have_run = stateless.possible_executions(unopened).await?;
            redemption = redemption.with_possible_executions(may_have_run);
        }
        let forgotten = redemption.calls_without_record(&records).filter_map(|call| {
            let id = redemption.message_of(call.approval_id)?;
            let is_own = approvals.has_sealed(call, id);
            let keys = &inner.keys;
            ApprovalRecord::record_id_from_token(call.approval_id, keys, system_time())
                .filter(|_| is_own)
        });
        let forgotten = forgotten.collect();
        redemption = redemption.with_forgotten(forgotten);
        let chat = (&approvals.owner, &approvals.chat);
        for rejected in redemption.verify(&records, chat, &approvals.principal, |record| {
            inner.can_decide(&approvals.principal, record)
        }) {
            let record = rejected.record.and_then(|id| records.get(&id));
            audit_rejected_response(approvals, now, rejected, record);
        }
        let requests = redemption.ledger_requests();
        let mut unanswered = Vec::new();
        for record in pending {
            let is_answered = requests.iter().any(|request| request.record == record.id);
            let id = record.approval_id(&inner.keys, now);
            unanswered.extend(id.filter(|_| !is_answered).map(|id| (record, id)));
        }
        // Closed before any response is sent, so that a ledger that fails here has approved nothing.
        let superseded = redemption.superseded(unanswered.iter().map(|(record, id)| (record, id)));
        let mut unanswered = spawn_closing(approvals, unanswered, superseded).await?;
        if includes_earlier {
            // A call that this request does not hold is answered on another page.
            unanswered.retain(|(record, id)| !record.is_pending() || redemption.holds_request(id));
        }
        for request in open {
            let is_known = unanswered.iter().any(|(record, _)| record.id == request.record);
            let record = records.get(&request.record).filter(|_| !is_known);
            let record = record.filter(|record| request.is_closed_by(record, approvals));
            unanswered.extend(record.map(|record| (record.clone(), request.id)));
        }
        let mut answered_requests = AnsweredRequests::default();
        let mut unsent = HashMap::new();
        let mut describe = |record: &ApprovalRecord| {
            let Some(id) = record.approval_id(&inner.keys, now) else { return };
            let granted = record.granted().filter(|_| approvals.grants_to_providers);
            unsent.extend(granted.map(|granted| (id.clone(), granted)));
            answered_requests.describe(record, id, now);
        };
        let (mut accepted, mut is_incomplete) = (HashSet::new(), false);
        let mut answered_calls = AnsweredCalls {
            answered: requests.iter().map(|request| (request.record, request.action)).collect(),
            granted: HashMap::new(),
        };
        // Claims come last, so that a ledger that fails before has granted none.
        let (claims, others): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| request.action == LedgerAction::Claim);
        let mut is_claimed = false;
        for requests in [others, claims] {
            let mut lost = None;
            for (request, answer) in spawn_ledger_requests(approvals, requests, &records) {
                if let Ok(LedgerAnswer { record, response, granted }) = answer.await {
                    // Also of a call that the provider executes, for which `granted` is `None`.
                    is_claimed |=
                        matches!(&response, LedgerResponse::Claim(ClaimResult::Granted(_)));
                    answered_calls.granted.extend(granted.map(|granted| (record.id, granted)));
                    describe(&record);
                    if response.is_acceptance() {
                        accepted.extend(answered.get(request.index).cloned());
                    }
                    redemption.handle_response(&request, record, response);
                } else if request.action == LedgerAction::Lapse {
                    let lost = "an approval that lapses could not be stored";
                    return Err(LedgerStoreError::new(lost));
                } else if let Some(record) = records.remove(&request.record) {
                    if !record.is_pending() {
                        describe(&record);
                    }
                    redemption.handle_response(&request, record, LedgerResponse::Unavailable);
                    lost = Some("an answer could not be stored");
                    is_incomplete = true;
                }
            }
            // Without claims the same request can be sent again, and then gets the true outcome.
            if let Some(lost) = lost.filter(|_| includes_earlier && !is_claimed) {
                return Err(LedgerStoreError::new(lost));
            }
        }
        unanswered.iter().for_each(|(record, _)| describe(record));
        let requests = AnsweredRequests { accepted, is_incomplete, ..answered_requests };
        let results = redemption.settle(&unanswered, &client_executed).with_unsent(&unsent);
        let report = |result: &DeferredToolResult| {
            let id = result.approval_id.as_ref().filter(|_| result.is_final);
            let descriptor = id.and_then(|id| requests.descriptors.get(id)).cloned();
            let is_continued = result.message_id.is_some() && result.message_id == continued;
            SettledCall::new(result.clone(), descriptor, is_continued)
        };
        let mut calls: Vec<DeferredCall> = (results.results().iter())
            .map(|result| answered_calls.call(approvals, result, report(result)))
            .collect();
        // The user's own denials come first.
        calls.sort_by_key(|call| !matches!(call, DeferredCall::Denied(_)));
        Ok(DeferredCalls { results, requests, calls, unverified })
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

/// Closes the superseded approval requests, and the expired ones among the others, on a task of its
/// own. Returns all of them as they are afterwards.
///
/// # Errors
/// [`LedgerStoreError`] if a superseded request may still be open. Some of the others may be closed
/// then. An expired request that cannot be closed is no error, because it cannot be approved any
/// more.
async fn spawn_closing(
    approvals: &ChatApprovals,
    unanswered: Vec<(ApprovalRecord, ApprovalId)>,
    superseded: Vec<RecordId>,
) -> Result<Vec<(ApprovalRecord, ApprovalId)>, LedgerStoreError> {
    let (approvals, last_known) = (approvals.clone(), unanswered.clone());
    let is_superseded = !superseded.is_empty();
    let closing =
        tokio::spawn(async move { close_unanswered(&approvals, unanswered, &superseded).await });
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

fn audit_rejected_response(
    approvals: &ChatApprovals,
    at: UnixMillis,
    rejected: RejectedResponse,
    record: Option<&ApprovalRecord>,
) {
    let kind = AuditEventKind::Rejected { cause: rejected.cause };
    let mut event = AuditEvent::new(at, &approvals.principal, kind);
    event.record = rejected.record;
    if let Some(record) = record {
        event = event.with_record(record);
    }
    let event = event.with_call(&approvals.chat, &rejected.tool_call_id, &rejected.tool_name);
    approvals.inner.audit(&event);
}

/// The calls to which a request responded.
struct AnsweredCalls {
    answered: HashMap<RecordId, LedgerAction>,
    granted: HashMap<RecordId, GrantedClaim>,
}

impl AnsweredCalls {
    /// Returns a call by its state.
    fn call(
        &mut self,
        approvals: &ChatApprovals,
        result: &DeferredToolResult,
        report: SettledCall,
    ) -> DeferredCall {
        match &result.outcome {
            DeferredOutcome::Approved { claim, .. } => {
                let granted = claim.as_ref().and_then(|claim| self.granted.remove(&claim.record));
                match granted {
                    Some(granted) => DeferredCall::Approved(granted.reported_as(report)),
                    // Never: each approved result of the ledger has its claim.
                    None => {
                        let unknown = DeferredOutcome::OutcomeUnknown;
                        DeferredCall::Settled(report.with_outcome(unknown))
                    }
                }
            }
            DeferredOutcome::Executing { record } => {
                let after_lease = match self.answered.get(record) {
                    Some(LedgerAction::Claim) => AfterLease::Claim,
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
}

/// The answer of the ledger to a request.
struct LedgerAnswer {
    record: ApprovalRecord,
    response: LedgerResponse,
    /// The claim, if it was granted and the call is executed here.
    granted: Option<GrantedClaim>,
}

/// Sends requests to the ledger, each on its own task.
fn spawn_ledger_requests(
    approvals: &ChatApprovals,
    requests: Vec<LedgerRequest>,
    records: &HashMap<RecordId, ApprovalRecord>,
) -> Vec<(LedgerRequest, oneshot::Receiver<LedgerAnswer>)> {
    let mut sent = Vec::new();
    for request in requests {
        // Always there: `verify` settled the responses without a record.
        if let Some(record) = records.get(&request.record) {
            let answer = spawn_ledger_request(approvals.clone(), request.clone(), record.clone());
            sent.push((request, answer));
        }
    }
    sent
}

/// Sends a request to the ledger. The channel is closed without a value if the ledger fails.
///
/// It is sent on a spawned task, so that a panic of the host's code concerns one call, and so that
/// the lease of a granted claim is renewed from the beginning. If the receiver was dropped, the
/// claim is given up.
fn spawn_ledger_request(
    approvals: ChatApprovals,
    request: LedgerRequest,
    record: ApprovalRecord,
) -> oneshot::Receiver<LedgerAnswer> {
    let (sender, answer) = oneshot::channel();
    let sending = async move {
        match send_to_ledger(&approvals, &request, &record).await {
            Ok((record, response)) => {
                let granted = match &response {
                    LedgerResponse::Claim(ClaimResult::Granted(claim))
                        if !record.provider_executed =>
                    {
                        GrantedClaim::new(&approvals, &record, claim)
                    }
                    _ => None,
                };
                let _ = sender.send(LedgerAnswer { record, response, granted });
            }
            Err(error) => {
                let error = log_causes(&error);
                tracing::error!(record = %record.id, error, "an answer could not be redeemed");
            }
        }
    };
    tokio::spawn(sending.in_current_span());
    answer
}
