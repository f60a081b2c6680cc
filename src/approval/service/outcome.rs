//! Waits for the outcome of a call that another request or another server executes.

use std::time::Duration;

use tokio::time::sleep;

use super::ChatApprovals;
use crate::approval::store::{LedgerStoreError, Snapshot, VersionedRecord};
use crate::approval::{ApprovalRecord, ApprovalState, DeferredOutcome, RecordId, RevocationReason};
use crate::id::log_causes;

/// The state of a claimed call.
pub(super) enum CallState {
    /// The call is being executed.
    Executing,
    /// The lease ended without an outcome.
    LeaseEnded(Box<ApprovalRecord>),
    /// The call has this outcome.
    Ended(DeferredOutcome),
}

/// Reads the state of a claimed call.
pub(super) async fn call_state(
    approvals: &ChatApprovals,
    id: RecordId,
) -> Result<CallState, LedgerStoreError> {
    let Snapshot { now, records } = approvals.inner.ledger.load(&[id]).await?;
    let Some(VersionedRecord { record, .. }) = records.into_iter().next() else {
        return Ok(CallState::Ended(DeferredOutcome::OutcomeUnknown));
    };
    Ok(match &record.state {
        ApprovalState::Claimed { lease_until, .. } if now < *lease_until => CallState::Executing,
        ApprovalState::Claimed { .. } => CallState::LeaseEnded(Box::new(record)),
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
pub(super) async fn wait_for_outcome(approvals: &ChatApprovals, id: RecordId) -> DeferredOutcome {
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
