//! Executes approved tool calls.
//!
//! A call is claimed in the ledger, executed to its end, and its outcome is stored. Only then is
//! the outcome returned.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::Instrument;

use super::claim::{approved_call, claim, renew_lease, send_to_ledger};
use super::inner::{RecordUpdate, random_bytes};
use super::{AuditEventKind, ChatApprovals};
use crate::approval::store::{LedgerStoreError, Snapshot, VersionedRecord, system_time};
use crate::approval::{
    ApprovalRecord, ApprovalState, Claim, ClaimResult, DeferredOutcome, LeaseHolderId, LeaseResult,
    LedgerRequest, LedgerResponse, RecordId, RecordedDecision, RevocationReason, TOOL_FAILED,
    ToolOutcome,
};
use crate::id::log_text;

/// A ledger request on its way, and the tool call that it may start.
pub(super) struct PendingExecution {
    /// The response of the ledger. The channel is closed without a value if the ledger fails.
    pub(super) response: oneshot::Receiver<(ApprovalRecord, LedgerResponse)>,
    /// The outcome of the tool call. The channel is closed without a value unless a claim was
    /// granted and the tool is executed here.
    pub(super) outcome: oneshot::Receiver<DeferredOutcome>,
}

/// Sends a request to the ledger and, if the ledger grants the claim, executes the call.
///
/// Both happen on one spawned task, so that a dropped caller cannot separate them.
pub(super) fn spawn_execution(
    approvals: ChatApprovals,
    request: LedgerRequest,
    record: ApprovalRecord,
) -> PendingExecution {
    let (response_sender, response) = oneshot::channel();
    let (outcome_sender, outcome) = oneshot::channel();
    let execution = async move {
        let (record, response) = match send_to_ledger(&approvals, &request, &record).await {
            Ok(answered) => answered,
            Err(error) => {
                tracing::error!(record = %record.id, %error, "an answer could not be redeemed");
                return;
            }
        };
        let claim = match &response {
            LedgerResponse::Claim(ClaimResult::Granted(claim)) if !record.provider_executed => {
                Some(claim.clone())
            }
            _ => None,
        };
        // The receiver may have been dropped. The call is executed in any case.
        let _ = response_sender.send((record.clone(), response));
        if let Some(claim) = claim {
            let outcome = execute(&approvals, &record, &claim).await;
            let _ = outcome_sender.send(outcome);
        }
    };
    tokio::spawn(execution.in_current_span());
    PendingExecution { response, outcome }
}

/// Executes a claimed call, renews its lease meanwhile, and stores its outcome.
async fn execute(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
    claim: &Claim,
) -> DeferredOutcome {
    let inner = &approvals.inner;
    let Some(decision) = record.decision().cloned() else {
        return DeferredOutcome::Rejected;
    };
    let call = approved_call(record, decision, Some(claim.clone()));
    let toolbox = inner.toolbox.clone();
    let execution = async move { toolbox.run(call).await };
    let mut tool = tokio::spawn(execution.in_current_span());
    // `tokio::time::interval` panics if the period is zero.
    let mut renewal = interval((inner.lease / 3).max(Duration::from_millis(1)));
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The lease has just begun, so the first tick, which is immediate, is not needed.
    renewal.reset();
    let joined = loop {
        tokio::select! {
            joined = &mut tool => break joined,
            _ = renewal.tick() => renew_lease(approvals, claim, inner.lease).await,
        }
    };
    let outcome = joined.unwrap_or_else(|error| {
        let tool = &*log_text(&record.tool_name);
        tracing::error!(tool, %error, "an approved tool panicked");
        ToolOutcome::Failed(TOOL_FAILED.to_owned())
    });
    match store_outcome(approvals, claim, &outcome).await {
        Ok(LeaseResult::Stored) => DeferredOutcome::Executed { outcome },
        Ok(LeaseResult::Lost) => {
            tracing::error!(record = %record.id, "the claim of a call that ran was lost");
            // Other requests may have returned the outcome that the ledger holds. This one must
            // return the same outcome.
            let outcome = await_outcome(approvals.clone(), record.id, false).await;
            outcome.unwrap_or(DeferredOutcome::OutcomeUnknown)
        }
        Err(error) => {
            tracing::error!(record = %record.id, %error, "an outcome is not stored");
            inner.audit_record(
                system_time(),
                record,
                &approvals.principal,
                AuditEventKind::OutcomeUnknown,
            );
            DeferredOutcome::OutcomeUnknown
        }
    }
}

/// Returns the outcome of a call that another request executes, or `None` while the call is
/// being executed.
///
/// If the lease of the call has ended, the call is executed again here, provided that
/// `can_execute_again` is `true`, the tool is idempotent and the call is still permitted. Else
/// the outcome of the call becomes unknown.
async fn poll_outcome(
    approvals: &ChatApprovals,
    id: RecordId,
    lease_holder: LeaseHolderId,
    can_execute_again: bool,
) -> Result<Option<DeferredOutcome>, LedgerStoreError> {
    let Snapshot { now, records } = approvals.inner.ledger.load(&[id]).await?;
    let Some(VersionedRecord { record, .. }) = records.into_iter().next() else {
        return Ok(Some(DeferredOutcome::OutcomeUnknown));
    };
    Ok(Some(match &record.state {
        ApprovalState::Claimed { lease_until, .. } if now < *lease_until => return Ok(None),
        ApprovalState::Claimed { decision: first, .. } if can_execute_again => {
            let decide = |now| RecordedDecision { decided_at: now, ..first.clone() };
            let (record, result) = claim(approvals, &record, lease_holder, decide).await?;
            let ClaimResult::Granted(claim) = result else { return Ok(None) };
            execute(approvals, &record, &claim).await
        }
        ApprovalState::Claimed { .. } => {
            let revoke =
                |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
            approvals.inner.update_record(Some(&approvals.principal), id, revoke).await?;
            return Ok(None);
        }
        ApprovalState::Completed { outcome, .. } => {
            DeferredOutcome::Executed { outcome: outcome.clone() }
        }
        _ => DeferredOutcome::OutcomeUnknown,
    }))
}

/// Stores an outcome. If the ledger fails, tries again with growing pauses until a pause is
/// longer than the lease.
async fn store_outcome(
    approvals: &ChatApprovals,
    claim: &Claim,
    outcome: &ToolOutcome,
) -> Result<LeaseResult, LedgerStoreError> {
    let (inner, principal) = (&approvals.inner, &approvals.principal);
    let mut pause = Duration::from_millis(50);
    loop {
        let stored = inner.update_record(Some(principal), claim.record, |record, now| {
            record.complete(claim, outcome, now)
        });
        match stored.await {
            Ok(Some(RecordUpdate { record, output, at, is_changed })) => {
                // An earlier attempt stored the outcome, but its response was lost, and with it
                // the audit event.
                let was_stored_before = output == LeaseResult::Stored && !is_changed;
                let kind = AuditEventKind::from_state(&record.state);
                if let Some(kind) = kind.filter(|_| was_stored_before) {
                    inner.audit_record(at, &record, principal, kind);
                }
                return Ok(output);
            }
            Ok(None) => return Ok(LeaseResult::Lost),
            Err(error) if pause > inner.lease => return Err(error),
            Err(_) => sleep(pause).await,
        }
        pause *= 2;
    }
}

/// Waits on a spawned task for the outcome of a call that another request executes.
///
/// Polls the ledger with pauses from 20 milliseconds to one second, until there is an outcome or
/// the receiver is dropped. For `can_execute_again` see [`poll_outcome`].
pub(super) fn await_outcome(
    approvals: ChatApprovals,
    id: RecordId,
    can_execute_again: bool,
) -> oneshot::Receiver<DeferredOutcome> {
    let (mut sender, outcome) = oneshot::channel();
    tokio::spawn(async move {
        let lease_holder = LeaseHolderId::from_bytes(random_bytes());
        let mut pause = Duration::from_millis(20);
        loop {
            match poll_outcome(&approvals, id, lease_holder, can_execute_again).await {
                Ok(Some(outcome)) => {
                    let _ = sender.send(outcome);
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(record = %id, %error, "cannot read the state of a running call");
                }
            }
            tokio::select! {
                () = sender.closed() => return,
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    });
    outcome
}
