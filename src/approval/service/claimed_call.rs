//! [`ClaimedCall`]: an approved tool call that was claimed for execution here. A task renews the
//! lease of the claim, stores the outcome, and records the outcome as unknown if the call is dropped.
//!
//! # A claim is a value, and its lease is kept by a task
//!
//! An approved call is a `ClaimedCall`. Behind it, a task renews the lease and waits for a message: the outcome,
//! which it stores, or the end of the channel, after which it records that the outcome is unknown. So a claim that
//! is dropped, on any thread and for any reason, is recorded without a destructor that would need a runtime. A
//! second task runs the tool, so that a tool that blocks or panics does not stop the first. If the response held
//! the claim, a closed tab would lose the claim and the call.
//!
//! There is one way to an execution: `redeem` returns the claims, and `run` executes them. `Approvals::run` does
//! both on a task of its own, because an HTTP server drops the handler of a client that disconnects. The chat
//! server does the same, with the functions of its `Toolbox`. A claim that was granted is never taken back, even if
//! the host's code did not see it: "not executed" is said only of calls whose claim was not granted.

use std::fmt;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::Instrument;

use super::inner::RecordUpdate;
use super::ledger_requests::renew_lease;
use super::outcome::wait_for_outcome;
use super::settled_call::SettledCall;
use super::{ApprovedCall, AuditEventKind, ChatApprovals};
use crate::approval::store::{LedgerStoreError, system_time, update};
use crate::approval::{
    ApprovalRecord, ApprovalState, Claim, DeferredOutcome, LeaseResult, RecordId, ToolOutcome,
};
use crate::id::{ToolCallId, log_causes, log_text};
use crate::json::Json;

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
    call: ApprovedCall,
    /// The call as it is reported. Its outcome is set when the call is settled.
    report: SettledCall,
    lease: Lease,
}

impl ClaimedCall {
    /// Returns the id of the call on the wire.
    pub fn tool_call_id(&self) -> &ToolCallId {
        &self.report.result().tool_call_id
    }

    /// Returns the name of the tool.
    pub fn tool_name(&self) -> &str {
        &self.call.tool_name
    }

    /// Returns the input that the user approved, from the record of the server. In a stateless host
    /// it is the canonical form of the input, verified with the server's key.
    pub fn input(&self) -> &Json {
        &self.call.input
    }

    /// Returns the key of the call, which is the same for every attempt to execute it.
    pub fn idempotency_key(&self) -> RecordId {
        self.call.idempotency_key
    }

    /// Returns the call with its chat and the user's decision.
    pub fn call(&self) -> &ApprovedCall {
        &self.call
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

    pub(super) async fn settle(self, outcome: ToolOutcome) -> SettledCall {
        let outcome = self.lease.end(outcome).await;
        self.report.with_outcome(outcome)
    }

    /// Drops the call, whose outcome is then recorded as unknown.
    pub(super) fn abandon(self) -> SettledCall {
        self.report.with_outcome(DeferredOutcome::OutcomeUnknown)
    }

    pub(super) fn report(&self) -> &SettledCall {
        &self.report
    }
}

impl fmt::Debug for ClaimedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimedCall")
            .field("tool_call_id", self.tool_call_id())
            .field("tool_name", &log_text(&self.call.tool_name))
            .field("idempotency_key", &self.call.idempotency_key)
            .finish_non_exhaustive()
    }
}

/// A granted claim whose lease is renewed, before it is known how the call is reported.
pub(super) struct GrantedClaim {
    call: ApprovedCall,
    lease: Lease,
}

impl GrantedClaim {
    /// Starts to renew the lease of a claim. `record` is the record in its claimed state.
    ///
    /// Returns `None` if the record is not claimed.
    pub(super) fn new(
        approvals: &ChatApprovals,
        record: &ApprovalRecord,
        claim: &Claim,
    ) -> Option<Self> {
        let call = ApprovedCall::new(record, record.decision()?.clone(), Some(claim.clone()));
        let lease = Lease::new(approvals.clone(), record.clone(), claim.clone());
        Some(GrantedClaim { call, lease })
    }

    pub(super) fn reported_as(self, report: SettledCall) -> ClaimedCall {
        ClaimedCall { call: self.call, report, lease: self.lease }
    }
}

/// The lease of a claim. A task renews it until this value is dropped.
struct Lease(oneshot::Sender<EndOfCall>);

/// The outcome of a call, and where to send the outcome that the ledger holds afterwards.
struct EndOfCall {
    outcome: ToolOutcome,
    stored: oneshot::Sender<DeferredOutcome>,
}

impl Lease {
    fn new(approvals: ChatApprovals, record: ApprovalRecord, claim: Claim) -> Self {
        let (sender, ended) = oneshot::channel();
        tokio::spawn(keep(approvals, record, claim, ended).in_current_span());
        Lease(sender)
    }

    /// Stores the outcome of the call, and returns the outcome that the ledger holds afterwards.
    async fn end(self, outcome: ToolOutcome) -> DeferredOutcome {
        let (stored, outcome_stored) = oneshot::channel();
        // If the task has ended, its runtime was shut down, and so the channel is closed as well.
        let _ = self.0.send(EndOfCall { outcome, stored });
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
            let (inner, principal) = (&approvals.inner, &approvals.principal);
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
