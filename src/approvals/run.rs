//! Running what was approved: claimed, run to its end, stored, and only then told.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{ApprovedCall, ChatApprovals, Happened, random};
use crate::approval::{
    Answered, ApprovalRecord, Claim, ClaimAnswer, ClaimantAnswer, ClaimantId, Decision,
    DeferredOutcome, RecordId, ToolOutcome, Transition, Wish,
};
use crate::ledger_store::{LedgerStoreError, change};

/// An answer on its way through the ledger, and what comes of it.
pub(super) struct Run {
    pub(super) answered: oneshot::Receiver<(ApprovalRecord, Answered)>,
    /// Comes only of a claim that was won.
    pub(super) outcome: oneshot::Receiver<DeferredOutcome>,
}

/// Redeems an answer, and runs the call if that wins it the claim, on one task: nothing comes
/// between.
pub(super) fn begin(approvals: ChatApprovals, wish: Wish, record: ApprovalRecord) -> Run {
    let (tell_answer, answered) = oneshot::channel();
    let (tell_outcome, outcome) = oneshot::channel();
    tokio::spawn(async move {
        let (record, answer) = approvals.ask_ledger(&wish, &record).await;
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
    });
    Run { answered, outcome }
}

impl ChatApprovals {
    async fn run(&self, record: &ApprovalRecord, claim: &Claim) -> DeferredOutcome {
        let desk = &self.desk;
        let Some(decision) = record.decision().cloned() else {
            return DeferredOutcome::Refused;
        };
        let call = approved_call(record, decision, Some(claim.clone()));
        let mut tool = tokio::spawn(desk.toolbox.run(call));
        // tokio panics at none at all.
        let mut alive = interval((desk.lease / 3).max(Duration::from_millis(1)));
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ran = loop {
            tokio::select! {
                ran = &mut tool => break ran,
                _ = alive.tick() => self.renew(claim).await,
            }
        };
        let outcome = ran.unwrap_or_else(|error| {
            tracing::error!(tool = %record.tool_name, %error, "an approved tool panicked");
            ToolOutcome::Failed(FAILED.to_owned())
        });
        match self.store(claim, &outcome).await {
            Ok(ClaimantAnswer::Stored) => {
                let failed = matches!(outcome, ToolOutcome::Failed(_));
                let happened = Happened::Ran { fence: claim.fence, failed };
                desk.tell(record, &self.principal, happened).await;
                DeferredOutcome::Ran { outcome }
            }
            lost => {
                tracing::error!(record = %record.id, ?lost, "the outcome of a call is not stored");
                desk.tell(record, &self.principal, Happened::OutcomeUnknown).await;
                DeferredOutcome::OutcomeUnknown
            }
        }
    }

    async fn renew(&self, claim: &Claim) {
        let lease = self.desk.lease;
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
            let stored = change(&*self.desk.ledger, claim.record, |record, now| {
                record.complete(claim, outcome, now)
            });
            match stored.await {
                Ok(Some((_, answer))) => return Ok(answer),
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

/// Waits for the outcome of a call that another request runs. If that one is gone, a tool that may be
/// run again is run again.
pub(super) fn await_outcome(
    approvals: ChatApprovals,
    id: RecordId,
) -> oneshot::Receiver<DeferredOutcome> {
    let (mut tell, outcome) = oneshot::channel();
    tokio::spawn(async move {
        let desk = &approvals.desk;
        let claimant = ClaimantId::from_bytes(random());
        let mut pause = Duration::from_millis(20);
        let came = loop {
            let looked = change(&*desk.ledger, id, |record, now| {
                let first = record.decision().cloned();
                let again = first.map(|first| Decision { responded_at: now, ..first });
                match again {
                    Some(again) => record.claim(&again, claimant, desk.lease),
                    None => Transition { answer: ClaimAnswer::Unknown, next: None },
                }
            });
            match looked.await {
                Ok(Some((record, ClaimAnswer::Won(claim)))) => {
                    break approvals.run(&record, &claim).await;
                }
                Ok(Some((_, ClaimAnswer::Done(outcome)))) => {
                    break DeferredOutcome::Ran { outcome };
                }
                Ok(Some((_, ClaimAnswer::InFlight))) | Err(_) => {}
                Ok(_) => break DeferredOutcome::OutcomeUnknown,
            }
            tokio::select! {
                () = tell.closed() => return,
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        };
        let _ = tell.send(came);
    });
    outcome
}

/// Said of a tool that panicked.
const FAILED: &str = "The tool failed.";
