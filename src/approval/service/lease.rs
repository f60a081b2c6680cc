//! [`Lease`]: a claim that was granted here, which a task keeps until the call ends, and what others read of a claim
//! meanwhile.
//!
//! # A claim is a value, and its lease is kept by a task
//!
//! An approved call is a [`ClaimedCall`](super::ClaimedCall). Behind it, a task renews the lease and waits for a
//! message: the outcome, which it stores, or the end of the channel, after which it records that the outcome is
//! unknown. So a claim that is dropped, on any thread and for any reason, is recorded without a destructor that would
//! need a runtime. A second task runs the tool, so that a tool that blocks or panics does not stop the first. If the
//! response held the claim, a closed tab would lose the claim and the call.
//!
//! There is one way to an execution: `redeem` returns the claims, and `run` executes them. `Approvals::run` does
//! both on a task of its own, because an HTTP server drops the handler of a client that disconnects. The chat
//! server does the same, with the functions of its `Toolbox`. A claim that was granted is never taken back, even if
//! the host's code did not see it: "not executed" is said only of calls whose claim was not granted.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::Instrument;

use super::inner::{LoadedRecord, RecordUpdate};
use super::{ApprovedCall, AuditEventKind, ChatApprovals};
use crate::approval::store::{LedgerStoreError, system_time, update};
use crate::approval::{
    ApprovalRecord, ApprovalState, Claim, DeferredOutcome, LeaseResult, RecordId, RevocationReason,
    ToolOutcome,
};
use crate::id::log_causes;

/// An approved call that is claimed here. A task renews the lease until this value is dropped.
pub(super) struct Lease {
    pub(super) call: ApprovedCall,
    end: oneshot::Sender<EndOfCall>,
}

/// The outcome of a call, and where to send the outcome that the ledger holds afterwards.
struct EndOfCall {
    outcome: ToolOutcome,
    stored: oneshot::Sender<DeferredOutcome>,
}

impl Lease {
    /// Starts to renew the lease of a claim. `record` is the record in its claimed state.
    ///
    /// Returns `None` if the record is not claimed.
    pub(super) fn new(
        approvals: &ChatApprovals,
        record: &ApprovalRecord,
        claim: &Claim,
    ) -> Option<Self> {
        let call = ApprovedCall::new(record, record.decision()?.clone(), Some(claim.clone()));
        let (end, ended) = oneshot::channel();
        let kept = keep(approvals.clone(), record.clone(), claim.clone(), ended);
        tokio::spawn(kept.in_current_span());
        Some(Lease { call, end })
    }

    /// Stores the outcome of the call, and returns the outcome that the ledger holds afterwards.
    pub(super) async fn end(self, outcome: ToolOutcome) -> DeferredOutcome {
        let (stored, outcome_stored) = oneshot::channel();
        // If the task has ended, its runtime was shut down, and so the channel is closed as well.
        let _ = self.end.send(EndOfCall { outcome, stored });
        outcome_stored.await.unwrap_or(DeferredOutcome::OutcomeUnknown)
    }
}

/// Renews the lease of a claim until the call ends or is dropped, and records its end.
async fn keep(
    approvals: ChatApprovals,
    record: ApprovalRecord,
    claim: Claim,
    mut ended: oneshot::Receiver<EndOfCall>,
) {
    let lease = approvals.inner.lease;
    // `tokio::time::interval` panics if the period is zero.
    let mut renewal = interval((lease / 3).max(Duration::from_millis(1)));
    renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The lease has just begun, so the first tick, which is immediate, is not needed.
    renewal.reset();
    let ended = loop {
        tokio::select! {
            ended = &mut ended => break ended,
            _ = renewal.tick() => renew_lease(&approvals, &claim, lease).await,
        }
    };
    match ended {
        Ok(EndOfCall { outcome, stored }) => {
            let outcome = stored_outcome(&approvals, &record, &claim, outcome).await;
            // The call may have been dropped while it was settled. Its outcome is stored.
            let _ = stored.send(outcome);
        }
        Err(_) => abandon(&approvals, &claim).await,
    }
}

/// Renews the lease of a claim. A failure is logged.
async fn renew_lease(approvals: &ChatApprovals, claim: &Claim, lease: Duration) {
    let renewed = update(&*approvals.inner.ledger, claim.record, |record, now| {
        record.renew(claim, lease, now)
    });
    if let Err(error) = renewed.await {
        let error = log_causes(&error);
        tracing::warn!(record = %claim.record, error, "the lease of a running call is not renewed");
    }
}

/// Stores an outcome and returns the outcome that the ledger holds afterwards.
async fn stored_outcome(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
    claim: &Claim,
    outcome: ToolOutcome,
) -> DeferredOutcome {
    match store_outcome(approvals, claim, &outcome).await {
        Ok(LeaseResult::Stored) => DeferredOutcome::Executed { outcome },
        Ok(LeaseResult::Lost) => {
            tracing::error!(record = %claim.record, "the claim of a call that ran was lost");
            // Other requests may have returned the outcome that the ledger holds. This one must
            // return the same outcome.
            wait_for_outcome(approvals, claim.record).await
        }
        Err(error) => {
            let error = log_causes(&error);
            tracing::error!(record = %claim.record, error, "an outcome is not stored");
            let inner = &approvals.inner;
            let principal = &approvals.principal;
            let unknown = AuditEventKind::OutcomeUnknown;
            inner.audit_record(system_time(), record, principal, unknown);
            DeferredOutcome::OutcomeUnknown
        }
    }
}

/// Stores an outcome. If the ledger fails, tries again with growing pauses until a pause is
/// longer than the lease.
async fn store_outcome(
    approvals: &ChatApprovals,
    claim: &Claim,
    outcome: &ToolOutcome,
) -> Result<LeaseResult, LedgerStoreError> {
    let inner = &approvals.inner;
    let principal = &approvals.principal;
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

/// Records that a claimed call was dropped without an outcome.
async fn abandon(approvals: &ChatApprovals, claim: &Claim) {
    tracing::warn!(record = %claim.record, "a claimed call was dropped without an outcome");
    let inner = &approvals.inner;
    match update(&*inner.ledger, claim.record, |record, now| record.abandon(claim, now)).await {
        Ok(Some((record, LeaseResult::Stored))) => {
            // The record of an idempotent tool is still claimed, and the audit holds its claim.
            if matches!(record.state, ApprovalState::OutcomeUnknown { .. }) {
                let unknown = AuditEventKind::OutcomeUnknown;
                inner.audit_record(system_time(), &record, &approvals.principal, unknown);
            }
        }
        Ok(_) => {}
        // The lease is not renewed any more, and with its end the outcome becomes unknown.
        Err(error) => {
            tracing::warn!(record = %claim.record, error = log_causes(&error), "the end is not recorded")
        }
    }
}

/// The state of a claimed call.
pub(super) enum CallState {
    /// The call is being executed.
    Executing,
    /// The lease ended without an outcome.
    LeaseEnded(Box<LoadedRecord>),
    /// The call has this outcome.
    Ended(DeferredOutcome),
}

/// Reads the state of a claimed call.
pub(super) async fn call_state(
    approvals: &ChatApprovals,
    id: RecordId,
) -> Result<CallState, LedgerStoreError> {
    let (now, records) = approvals.inner.records(&[id]).await?;
    let Some(loaded) = records.into_iter().next() else {
        return Ok(CallState::Ended(DeferredOutcome::OutcomeUnknown));
    };
    Ok(match &loaded.record.state {
        ApprovalState::Claimed { lease_until, .. } if now < *lease_until => CallState::Executing,
        ApprovalState::Claimed { .. } => CallState::LeaseEnded(Box::new(loaded)),
        ApprovalState::Completed { outcome, .. } => {
            CallState::Ended(DeferredOutcome::Executed { outcome: outcome.clone() })
        }
        _ => CallState::Ended(DeferredOutcome::OutcomeUnknown),
    })
}

/// Records that the outcome of a call is unknown, because its lease ended. The call is not executed
/// again, even if its tool is idempotent.
pub(super) async fn close_call(
    approvals: &ChatApprovals,
    id: RecordId,
) -> Result<(), LedgerStoreError> {
    let revoke = |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
    approvals.inner.update_record(Some(&approvals.principal), id, revoke).await?;
    Ok(())
}

/// Waits until a claimed call has an outcome. The call is not executed here.
async fn wait_for_outcome(approvals: &ChatApprovals, id: RecordId) -> DeferredOutcome {
    let mut pauses = Pauses::new();
    loop {
        match call_state(approvals, id).await {
            Ok(CallState::Ended(outcome)) => return outcome,
            Ok(CallState::Executing) => {}
            Ok(CallState::LeaseEnded(_)) => {
                if let Err(error) = close_call(approvals, id).await {
                    log_failure(id, &error);
                }
            }
            Err(error) => log_failure(id, &error),
        }
        pauses.next().await;
    }
}

pub(super) fn log_failure(id: RecordId, error: &LedgerStoreError) {
    tracing::warn!(record = %id, error = log_causes(error), "cannot read the state of a running call");
}

/// The pauses between two reads of a record: from 20 milliseconds to one second.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Self {
        Pauses(Duration::from_millis(20))
    }

    /// Waits for the next pause.
    pub(super) async fn next(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
    }
}
