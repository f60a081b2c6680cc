//! [`DeferredCall`]: a tool call that an earlier turn left open, by its state. [`InFlightCall`] is a
//! call that another request executes.

use std::fmt;

use tokio::sync::oneshot;
use tracing::Instrument;

use super::ChatApprovals;
use super::claimed_call::{ClaimedCall, GrantedClaim};
use super::inner::random_bytes;
use super::ledger_requests::claim;
use super::outcome::{CallState, Pauses, call_state, close_call, log_failure};
use super::settled_call::SettledCall;
use crate::approval::store::LedgerStoreError;
use crate::approval::{
    ApprovalRecord, ClaimResult, DeferredOutcome, DeferredToolResult, LeaseHolderId, RecordId,
    RecordedDecision,
};

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

/// An approved tool call that another request executes.
#[must_use]
pub struct InFlightCall {
    approvals: ChatApprovals,
    record: RecordId,
    after_lease: AfterLease,
    report: SettledCall,
}

/// What a request does with a call of an idempotent tool whose lease ends without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterLease {
    /// The request approved the call: it claims the call.
    Claim,
    /// The request denied the call: the call is not executed again.
    Close,
    /// The request has no response to the call: another one may claim the call.
    Leave,
}

impl InFlightCall {
    pub(super) fn new(
        approvals: ChatApprovals,
        record: RecordId,
        after_lease: AfterLease,
        report: SettledCall,
    ) -> Self {
        InFlightCall { approvals, record, after_lease, report }
    }

    /// Returns the result of the call as it is now: it is being executed.
    pub fn result(&self) -> &DeferredToolResult {
        self.report.result()
    }

    pub(super) fn report(&self) -> &SettledCall {
        &self.report
    }

    /// Waits until the call has an outcome.
    ///
    /// Returns [`DeferredCall::Settled`], or [`DeferredCall::Approved`] if the lease of the other
    /// request ended and the tool is idempotent: the call was then claimed here.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call is not affected.
    pub async fn wait(self) -> DeferredCall {
        let unknown = self.report.clone();
        self.spawn_wait(|call| call).await.unwrap_or_else(|_| {
            // The runtime is shutting down.
            DeferredCall::Settled(unknown.with_outcome(DeferredOutcome::OutcomeUnknown))
        })
    }

    /// Waits on a spawned task, until there is an outcome or the receiver is dropped. Then calls
    /// `finish` on that task, and sends its result.
    ///
    /// Polls the ledger with pauses from 20 milliseconds to one second.
    pub(super) fn spawn_wait<T: Send + 'static>(
        self,
        finish: impl FnOnce(DeferredCall) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (mut sender, ended) = oneshot::channel();
        let waiting = async move {
            let lease_holder = LeaseHolderId::from_bytes(random_bytes());
            let mut pauses = Pauses::new();
            loop {
                match self.poll(lease_holder).await {
                    Ok(Some(call)) => {
                        // If the receiver is gone and `finish` has not used a claim, the claim is
                        // dropped here and given up.
                        let _ = sender.send(finish(call));
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
    async fn poll(
        &self,
        lease_holder: LeaseHolderId,
    ) -> Result<Option<DeferredCall>, LedgerStoreError> {
        let approvals = &self.approvals;
        let settled = |outcome| DeferredCall::Settled(self.report.clone().with_outcome(outcome));
        Ok(match (call_state(approvals, self.record).await?, self.after_lease) {
            (CallState::Executing, _) => None,
            (CallState::Ended(outcome), _) => Some(settled(outcome)),
            (CallState::LeaseEnded(record), AfterLease::Claim) => {
                self.claim(&record, lease_holder).await?.map(DeferredCall::Approved)
            }
            (CallState::LeaseEnded(record), AfterLease::Leave) if record.idempotent => {
                Some(settled(DeferredOutcome::OutcomeUnknown))
            }
            (CallState::LeaseEnded(_), AfterLease::Close | AfterLease::Leave) => {
                close_call(approvals, self.record).await?;
                None
            }
        })
    }

    async fn claim(
        &self,
        record: &ApprovalRecord,
        lease_holder: LeaseHolderId,
    ) -> Result<Option<ClaimedCall>, LedgerStoreError> {
        let Some(first) = record.decision().cloned() else { return Ok(None) };
        let decide = |now| RecordedDecision { decided_at: now, ..first.clone() };
        let update = claim(&self.approvals, record, lease_holder, decide).await?;
        let ClaimResult::Granted(claim) = &update.output else { return Ok(None) };
        let granted = GrantedClaim::new(&self.approvals, &update.record, claim);
        Ok(granted.map(|granted| granted.reported_as(self.report.clone())))
    }
}

impl fmt::Debug for InFlightCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightCall").field("call", &self.report).finish_non_exhaustive()
    }
}
