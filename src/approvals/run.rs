//! Running what was approved: claimed, run to its end, stored, and only then told.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::Instrument;

use super::resolve::PROVIDERS_LEASE;
use super::{ApprovedCall, Changed, ChatApprovals, Happened, random};
use crate::approval::{
    Answered, ApprovalRecord, ApprovalState, Claim, ClaimAnswer, ClaimantAnswer, ClaimantId,
    Decision, DeferredOutcome, DeferredToolResult, RecordId, Revocation, TOOL_FAILED, ToolOutcome,
    Wish,
};
use crate::ledger_store::{Kept, LedgerStoreError, Loaded, change, system_time};

/// An answer on its way through the ledger, and what comes of it.
pub(super) struct Run {
    /// Does not come if the ledger does not answer.
    pub(super) answered: oneshot::Receiver<(ApprovalRecord, Answered)>,
    /// Comes only of a claim that was won.
    pub(super) outcome: oneshot::Receiver<DeferredOutcome>,
}

/// Redeems an answer, and runs the call if that wins it the claim, on one task: nothing comes
/// between.
pub(super) fn begin(approvals: ChatApprovals, wish: Wish, record: ApprovalRecord) -> Run {
    let (tell_answer, answered) = oneshot::channel();
    let (tell_outcome, outcome) = oneshot::channel();
    let redeem = async move {
        let (record, answer) = match approvals.ask_ledger(&wish, &record).await {
            Ok(answered) => answered,
            Err(error) => {
                tracing::error!(record = %record.id, %error, "an answer could not be redeemed");
                return;
            }
        };
        let claim = match &answer {
            Answered::Claim(ClaimAnswer::Won(claim)) if !record.provider_executed => {
                Some(claim.clone())
            }
            _ => None,
        };
        // Whoever asked may be gone; the call runs all the same.
        let _ = tell_answer.send((record.clone(), answer));
        if let Some(claim) = claim {
            let outcome = approvals.run(&record, &claim).await;
            let _ = tell_outcome.send(outcome);
        }
    };
    tokio::spawn(redeem.in_current_span());
    Run { answered, outcome }
}

impl ChatApprovals {
    async fn run(&self, record: &ApprovalRecord, claim: &Claim) -> DeferredOutcome {
        let desk = &self.desk;
        let Some(decision) = record.decision().cloned() else {
            return DeferredOutcome::Refused;
        };
        let call = approved_call(record, decision, Some(claim.clone()));
        let toolbox = desk.toolbox.clone();
        let run = async move { toolbox.run(call).await };
        let mut tool = tokio::spawn(run.in_current_span());
        // tokio panics at none at all.
        let mut alive = interval((desk.lease / 3).max(Duration::from_millis(1)));
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The claim has just begun.
        alive.reset();
        let ran = loop {
            tokio::select! {
                ran = &mut tool => break ran,
                _ = alive.tick() => self.renew(claim, desk.lease).await,
            }
        };
        let outcome = ran.unwrap_or_else(|error| {
            tracing::error!(tool = %record.tool_name, %error, "an approved tool panicked");
            ToolOutcome::Failed(TOOL_FAILED.to_owned())
        });
        match self.store(claim, &outcome).await {
            Ok(ClaimantAnswer::Stored) => DeferredOutcome::Ran { outcome },
            Ok(ClaimantAnswer::Lost) => {
                tracing::error!(record = %record.id, "the claim of a call that ran was lost");
                // Others were told what became of it: so is whoever waits here.
                let outcome = await_outcome(self.clone(), record.id, false).await;
                outcome.unwrap_or(DeferredOutcome::OutcomeUnknown)
            }
            Err(error) => {
                tracing::error!(record = %record.id, %error, "an outcome is not stored");
                desk.tell_at(system_time(), record, &self.principal, Happened::OutcomeUnknown);
                DeferredOutcome::OutcomeUnknown
            }
        }
    }

    /// What came of a call that somebody runs; `None` while it runs. If that one is gone, a tool that
    /// may be run again is run again, unless what is waited for is no yes.
    async fn look(
        &self,
        id: RecordId,
        claimant: ClaimantId,
        may_run_again: bool,
    ) -> Result<Option<DeferredOutcome>, LedgerStoreError> {
        let Loaded { now, records } = self.desk.ledger.load(&[id]).await?;
        let Some(Kept { record, .. }) = records.into_iter().next() else {
            return Ok(Some(DeferredOutcome::OutcomeUnknown));
        };
        Ok(Some(match &record.state {
            ApprovalState::Claimed { lease_until, .. } if now < *lease_until => return Ok(None),
            ApprovalState::Claimed { decision: first, .. } if may_run_again => {
                let again = |now| Decision { responded_at: now, ..first.clone() };
                let (record, answer) = self.claim(&record, claimant, again).await?;
                let ClaimAnswer::Won(claim) = answer else { return Ok(None) };
                self.run(&record, &claim).await
            }
            ApprovalState::Claimed { .. } => {
                let revoke = |record: &ApprovalRecord, now| record.revoke(Revocation::ByHost, now);
                self.desk.change(Some(&self.principal), id, revoke).await?;
                return Ok(None);
            }
            ApprovalState::Done { outcome, .. } => {
                DeferredOutcome::Ran { outcome: outcome.clone() }
            }
            _ => DeferredOutcome::OutcomeUnknown,
        }))
    }

    /// Says of yeses that a provider is about to be told that somebody listens for what comes of them.
    pub(crate) async fn renew_for_provider(&self, yeses: &[DeferredToolResult]) {
        for yes in yeses {
            if let DeferredOutcome::ForProvider { claim: Some(claim), .. } = &yes.outcome {
                self.renew(claim, self.desk.lease.max(PROVIDERS_LEASE)).await;
            }
        }
    }

    async fn renew(&self, claim: &Claim, lease: Duration) {
        let renewed =
            change(&*self.desk.ledger, claim.record, |record, now| record.renew(claim, lease, now));
        if let Err(error) = renewed.await {
            tracing::warn!(record = %claim.record, %error, "the lease of a running call is not renewed");
        }
    }

    /// Stores an outcome, trying again for as long as the lease may last.
    async fn store(
        &self,
        claim: &Claim,
        outcome: &ToolOutcome,
    ) -> Result<ClaimantAnswer, LedgerStoreError> {
        let mut pause = Duration::from_millis(50);
        loop {
            let (desk, by) = (&self.desk, &self.principal);
            let stored = desk
                .change(Some(by), claim.record, |record, now| record.complete(claim, outcome, now));
            match stored.await {
                Ok(Some(Changed { record, answer, at, is_new })) => {
                    let happened = Happened::to_become(&record.state);
                    // Stored when the answer was lost.
                    if let Some(happened) =
                        happened.filter(|_| answer == ClaimantAnswer::Stored && !is_new)
                    {
                        desk.tell_at(at, &record, by, happened);
                    }
                    return Ok(answer);
                }
                Ok(None) => return Ok(ClaimantAnswer::Lost),
                Err(error) if pause > self.desk.lease => return Err(error),
                Err(_) => sleep(pause).await,
            }
            pause *= 2;
        }
    }
}

pub(super) fn approved_call(
    record: &ApprovalRecord,
    decision: Decision,
    claim: Option<Claim>,
) -> ApprovedCall {
    ApprovedCall {
        requester: record.requester.clone(),
        chat_id: record.chat_id.clone(),
        tool_call_id: record.tool_call_id.clone(),
        tool_name: record.tool_name.clone(),
        input: record.input.clone(),
        decision,
        idempotency_key: record.id,
        claim,
    }
}

/// Waits for the outcome of a call that another request runs.
pub(super) fn await_outcome(
    approvals: ChatApprovals,
    id: RecordId,
    may_run_again: bool,
) -> oneshot::Receiver<DeferredOutcome> {
    let (mut tell, outcome) = oneshot::channel();
    tokio::spawn(async move {
        let claimant = ClaimantId::from_bytes(random());
        let mut pause = Duration::from_millis(20);
        loop {
            match approvals.look(id, claimant, may_run_again).await {
                Ok(Some(outcome)) => {
                    let _ = tell.send(outcome);
                    return;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(record = %id, %error, "a running call is not seen"),
            }
            tokio::select! {
                () = tell.closed() => return,
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    });
    outcome
}
