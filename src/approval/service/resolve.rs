//! From approval responses to outcomes: [`ChatApprovals::resolve`] sends the responses to the
//! ledger, starts the approved tool calls and returns [`ResolvedApprovals`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::claim::{PROVIDER_LEASE, renew_lease};
use super::execute::{PendingExecution, await_outcome, spawn_execution};
use super::{AuditEvent, AuditEventKind, ChatApprovals};
use crate::approval::store::{LedgerStoreError, system_time};
use crate::approval::{
    ApprovalRecord, ClaimResult, DeferredOutcome, DeferredToolResult, DeferredToolResults,
    LedgerAction, LedgerResponse, PendingToolCall, RecordId, RejectedResponse, ResumePlan,
    UnixMillis,
};
use crate::id::ApprovalId;
use crate::json::Json;

/// The outcomes of the open tool calls, and the tool calls that are being executed.
///
/// Returned by [`ChatApprovals::resolve`]. Approved tools are executed even if this value is
/// dropped. [`next`](Self::next) waits for their outcomes.
#[must_use = "the agent needs the outcomes of the calls"]
pub struct ResolvedApprovals {
    results: DeferredToolResults,
    descriptors: HashMap<ApprovalId, Json>,
    /// The outcomes of the requests that were closed without a decision that counts.
    closed: HashMap<ApprovalId, DeferredOutcome>,
    /// The responses that the ledger accepted, now or for an earlier request.
    accepted: HashSet<ApprovalId>,
    /// The results that are known and not yet returned.
    ready: VecDeque<DeferredToolResult>,
    /// The calls that are being executed. The call that ends first is returned first.
    executing: ExecutingCalls,
}

type ExecutingCalls =
    FuturesUnordered<Pin<Box<dyn Future<Output = DeferredToolResult> + Send + Sync>>>;

impl ChatApprovals {
    /// Redeems the approval responses of a request: stores the denials, claims the approved tool
    /// calls and starts their execution.
    ///
    /// A call without a response stays pending until its approval request expires. If the user sent
    /// a new message instead of a response, the call is superseded, and an approval that arrives with
    /// that message lapses, unless its tool is set to
    /// [`OnNewMessage::Run`](crate::approval::OnNewMessage::Run). An invalid approval response is
    /// rejected and changes nothing in the ledger. `client_executed` are the calls that the client
    /// executes, from the host's own record.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read, if a superseded request cannot be closed,
    /// or if an approval that lapses cannot be stored. The host must then neither call the model nor
    /// record that the call was not executed, because the request may still be approved. In the
    /// first two cases no response of this request was sent to the ledger. The same request can be
    /// sent again.
    ///
    /// If the ledger fails for another response, that response gets a result that is not
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
    ) -> Result<ResolvedApprovals, LedgerStoreError> {
        let inner = &self.inner;
        let answered: Vec<ApprovalId> =
            plan.approvals().map(|response| response.approval_id.clone()).collect();
        let mut redemption = plan.redeem(&inner.keys, system_time());
        let ids: Vec<RecordId> = redemption.records().collect();
        let (now, pending) = inner.pending_records(self.pending_filter()).await?;
        let mut records = HashMap::new();
        if !ids.is_empty() {
            let loaded = inner.ledger.load(&ids).await?.records.into_iter();
            records.extend(loaded.map(|versioned| (versioned.record.id, versioned.record)));
        }
        let chat = (&self.owner, &self.chat);
        for rejected in redemption.verify(&records, chat, &self.principal, |record| {
            inner.can_decide(&self.principal, record)
        }) {
            let record = rejected.record.and_then(|id| records.get(&id));
            self.audit_rejected_response(now, rejected, record);
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
        let unanswered = self.spawn_closing(unanswered, superseded).await?;
        let mut executions = Vec::new();
        for request in requests {
            // Always there: `verify` settled the responses without a record.
            if let Some(record) = records.get(&request.record) {
                let execution = spawn_execution(self.clone(), request.clone(), record.clone());
                executions.push((request, execution));
            }
        }
        let (mut descriptors, mut closed) = (HashMap::new(), HashMap::new());
        let mut accepted = HashSet::new();
        let mut describe = |record: &ApprovalRecord| {
            let Some(id) = record.approval_id(&inner.keys, now) else { return };
            let outcome = record.outcome().filter(DeferredOutcome::is_closed_undecided);
            closed.extend(outcome.map(|outcome| (id.clone(), outcome)));
            descriptors.extend(record.descriptor(now).ok().map(|descriptor| (id, descriptor)));
        };
        let mut approved = ApprovedCalls::default();
        for (request, execution) in executions {
            let PendingExecution { response, outcome } = execution;
            if request.action == LedgerAction::Claim {
                approved.ids.insert(request.record);
            }
            if let Ok((record, response)) = response.await {
                if matches!(response, LedgerResponse::Claim(ClaimResult::Granted(_))) {
                    approved.outcomes.insert(record.id, outcome);
                }
                describe(&record);
                if response.is_acceptance() {
                    accepted.extend(answered.get(request.index).cloned());
                }
                redemption.handle_response(&request, record, response);
            } else if request.action == LedgerAction::Lapse {
                return Err(LedgerStoreError::new("an approval that lapses could not be stored"));
            } else if let Some(record) = records.remove(&request.record) {
                redemption.handle_response(&request, record, LedgerResponse::Unavailable);
            }
        }
        unanswered.iter().for_each(|(record, _)| describe(record));
        let results = redemption.settle(&unanswered, client_executed);
        let (ready, executing) = self.waiting_results(&results, approved);
        Ok(ResolvedApprovals { results, descriptors, closed, accepted, ready, executing })
    }

    /// Renews the leases of approvals that are about to be sent to a provider, because this process
    /// will receive the provider's results.
    pub(crate) async fn renew_for_provider(&self, approved: &[DeferredToolResult]) {
        for result in approved {
            if let DeferredOutcome::ForwardToProvider { claim: Some(claim), .. } = &result.outcome {
                renew_lease(self, claim, self.inner.lease.max(PROVIDER_LEASE)).await;
            }
        }
    }

    /// Closes the superseded approval requests, and the expired ones among the others, on a task of
    /// its own. Returns all of them as they are afterwards.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if a superseded request may still be open. Some of the others may be
    /// closed then. An expired request that cannot be closed is no error, because it cannot be
    /// approved any more.
    async fn spawn_closing(
        &self,
        unanswered: Vec<(ApprovalRecord, ApprovalId)>,
        superseded: Vec<RecordId>,
    ) -> Result<Vec<(ApprovalRecord, ApprovalId)>, LedgerStoreError> {
        let (approvals, last_known) = (self.clone(), unanswered.clone());
        let is_superseded = !superseded.is_empty();
        let closing =
            tokio::spawn(async move { approvals.close_unanswered(unanswered, &superseded).await });
        match closing.await {
            Ok(closed) => closed,
            // The store or the audit sink panicked.
            Err(error) if is_superseded => Err(LedgerStoreError::new(error)),
            Err(error) => {
                tracing::error!(%error, "the expired approvals could not be closed");
                Ok(last_known)
            }
        }
    }

    async fn close_unanswered(
        &self,
        unanswered: Vec<(ApprovalRecord, ApprovalId)>,
        superseded: &[RecordId],
    ) -> Result<Vec<(ApprovalRecord, ApprovalId)>, LedgerStoreError> {
        let (mut closed, mut failure) = (Vec::new(), None);
        for (record, id) in unanswered {
            let is_superseded = superseded.contains(&record.id);
            let rule = |record: &ApprovalRecord, now| {
                if is_superseded { record.supersede(now) } else { record.expire(now) }
            };
            match self.inner.update_record(Some(&self.principal), record.id, rule).await {
                Ok(updated) => closed.extend(updated.map(|updated| (updated.record, id))),
                Err(error) if is_superseded => failure = Some(error),
                Err(error) => {
                    tracing::error!(%error, "an expired approval could not be closed");
                    closed.push((record, id));
                }
            }
        }
        failure.map_or(Ok(closed), Err)
    }

    /// Returns the results that are known, and those of the calls that are being executed.
    fn waiting_results(
        &self,
        results: &DeferredToolResults,
        mut approved: ApprovedCalls,
    ) -> (VecDeque<DeferredToolResult>, ExecutingCalls) {
        let (mut ready, executing) = (VecDeque::new(), FuturesUnordered::new());
        for result in results.results() {
            let outcome = match &result.outcome {
                DeferredOutcome::Approved { claim: Some(claim), .. } => {
                    approved.outcomes.remove(&claim.record)
                }
                DeferredOutcome::Executing { record } => {
                    Some(await_outcome(self.clone(), *record, approved.ids.contains(record)))
                }
                _ => None,
            };
            match outcome {
                Some(outcome) => {
                    let mut result = result.clone();
                    let executed = async move {
                        // Without an outcome, the runtime of the task that executed the call was
                        // shut down.
                        result.outcome = outcome.await.unwrap_or(DeferredOutcome::OutcomeUnknown);
                        result
                    };
                    executing.push(Box::pin(executed) as _);
                }
                None => ready.push_back(result.clone()),
            }
        }
        // The user's own denials come first.
        let is_denied =
            |result: &DeferredToolResult| matches!(result.outcome, DeferredOutcome::Denied { .. });
        ready.make_contiguous().sort_by_key(|result| !is_denied(result));
        (ready, executing)
    }

    fn audit_rejected_response(
        &self,
        at: UnixMillis,
        rejected: RejectedResponse,
        record: Option<&ApprovalRecord>,
    ) {
        let kind = AuditEventKind::Rejected { cause: rejected.cause };
        let mut event = AuditEvent::new(at, &self.principal, kind);
        event.record = rejected.record;
        if let Some(record) = record {
            event = event.with_record(record);
        }
        let event = event.with_call(&self.chat, &rejected.tool_call_id, &rejected.tool_name);
        self.inner.audit.record(&event);
    }
}

impl ResolvedApprovals {
    /// Returns the results as they were when [`ChatApprovals::resolve`] returned.
    ///
    /// A call with the outcome [`Approved`](DeferredOutcome::Approved) is already being executed.
    /// The host must not execute it again.
    pub fn results(&self) -> &DeferredToolResults {
        &self.results
    }

    /// Returns the data that the client shows beside an answered call.
    ///
    /// Returns `None` if the result is not final, or if the call had no approval request here.
    pub fn descriptor(&self, result: &DeferredToolResult) -> Option<Json> {
        self.descriptors.get(result.approval_id.as_ref().filter(|_| result.is_final)?).cloned()
    }

    /// Returns the data that the client shows beside a [superseded](DeferredToolResults::superseded)
    /// call. Returns `None` if the call had no approval request here.
    pub fn descriptor_of_superseded(&self, call: &PendingToolCall) -> Option<Json> {
        self.descriptors.get(call.approval_id.as_ref()?).cloned()
    }

    /// Returns the result to record in the history.
    ///
    /// A denial that arrives after the request was closed without a decision is shown as a denial on
    /// the page that sent it. The history holds the reason for which the request was closed, and so
    /// does the data beside the call.
    pub(crate) fn result_in_history(&self, result: &DeferredToolResult) -> DeferredToolResult {
        let id = result.approval_id.as_ref();
        let is_denied = matches!(result.outcome, DeferredOutcome::Denied { .. });
        let closed = id.and_then(|id| self.closed.get(id)).filter(|_| is_denied);
        let outcome = closed.unwrap_or(&result.outcome).clone();
        DeferredToolResult { outcome, ..result.clone() }
    }

    /// Returns whether the ledger accepted the response to this approval request, now or for an
    /// earlier request.
    pub(crate) fn is_accepted(&self, id: &ApprovalId) -> bool {
        self.accepted.contains(id)
    }

    /// Waits for the next call that has an outcome and returns its result. Returns `None` if all
    /// results were returned.
    ///
    /// The denied calls come first, then the other calls whose outcome is already known, then the
    /// calls that are being executed, in the order in which they end.
    ///
    /// # Cancel safety
    /// No result is lost if the future is dropped. This function can be called again.
    pub async fn next(&mut self) -> Option<DeferredToolResult> {
        if let Some(result) = self.ready.pop_front() {
            return Some(result);
        }
        self.executing.next().await
    }
}

impl fmt::Debug for ResolvedApprovals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolvedApprovals").field("results", &self.results).finish_non_exhaustive()
    }
}

/// The calls that this request approved.
#[derive(Default)]
struct ApprovedCalls {
    ids: HashSet<RecordId>,
    /// The future outcomes of the calls whose claim was granted.
    outcomes: HashMap<RecordId, oneshot::Receiver<DeferredOutcome>>,
}
