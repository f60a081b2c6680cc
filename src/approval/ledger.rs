//! The ledger's rules: what a record says to a wish, and what it becomes.
//!
//! Each rule looks at a record and the time, and answers at once; it changes nothing. If it gives a
//! [`next`](Transition::next) state, whoever keeps the record replaces it, provided that it is
//! still the one that was looked at; else the rule is asked again about the new one. So a store
//! needs no more than to compare and replace, and every store keeps the same rules.
//!
//! To approve and to claim is one transition: there is no approved record that nobody runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::{
    ApprovalRecord, ApprovalState, ClaimantId, Decision, RecordId, Revocation, ToolOutcome,
};
use super::{RefusalCause, UnixMillis};

/// What a record says to a wish, and what it becomes by it.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Transition<T> {
    /// What it says.
    pub answer: T,
    /// What it becomes, if it changes.
    pub next: Option<ApprovalRecord>,
}

/// The right to run an approved tool, once. Whoever holds it has stored who ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Claim {
    /// Which record.
    pub record: RecordId,
    /// Which attempt.
    pub fence: u64,
}

impl Claim {
    /// The same on every attempt to run this call: what an idempotent tool recognises it by.
    pub fn idempotency_key(&self) -> RecordId {
        self.record
    }
}

/// What a record says to a yes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ClaimAnswer {
    /// The tool is yours to run.
    Won(Claim),
    /// Somebody else runs it for this answer, right now.
    InFlight,
    /// It ran for this answer.
    Done(ToolOutcome),
    /// Somebody claimed it for this answer and is gone: nobody knows whether it ran.
    Unknown,
    /// It does not run.
    Refused(RefusalCause),
}

/// What a record says to a no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenyAnswer {
    /// The no counts, now or already before.
    Denied,
    /// It does not: the call was decided on.
    Refused(RefusalCause),
}

/// What a record says to whoever runs the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimantAnswer {
    /// So be it.
    Stored,
    /// The claim is not yours any more: others have been told that the outcome is unknown, or run
    /// the tool anew.
    Lost,
}

impl ApprovalRecord {
    /// A yes: the record is claimed, and the tool runs, unless it was decided on before.
    ///
    /// The same yes again, by the same person, gets what the first one got. A claimant that asks
    /// again, because the answer was lost, wins again. What the provider runs stays claimed: its outcome
    /// does not come here, and the lease is renewed once, when the provider is told.
    pub fn claim(
        &self,
        decision: &Decision,
        claimant: ClaimantId,
        lease: Duration,
    ) -> Transition<ClaimAnswer> {
        let now = decision.responded_at;
        let claimed = |decision: &Decision, fence| {
            let decision = decision.clone();
            let lease_until = now.after(lease);
            self.to(
                ClaimAnswer::Won(Claim { record: self.id, fence }),
                ApprovalState::Claimed { decision, claimant, fence, lease_until },
            )
        };
        let refused = |cause| self.stay(ClaimAnswer::Refused(cause));
        match &self.state {
            ApprovalState::Pending if self.expires_at <= now => {
                self.to(ClaimAnswer::Refused(RefusalCause::Expired), ApprovalState::Expired)
            }
            ApprovalState::Pending => claimed(decision, 1),
            ApprovalState::Denied { .. } => refused(RefusalCause::AlreadyDecided),
            ApprovalState::Expired => refused(RefusalCause::Expired),
            ApprovalState::Revoked { cause, .. } => refused(RefusalCause::Revoked(*cause)),
            ApprovalState::Claimed { decision: first, .. }
            | ApprovalState::Done { decision: first, .. }
            | ApprovalState::Unknown { decision: first }
                if first.approved_by != decision.approved_by =>
            {
                refused(RefusalCause::AlreadyDecided)
            }
            ApprovalState::Claimed { claimant: by, fence, lease_until, .. }
                if now < *lease_until =>
            {
                self.stay(match *by == claimant {
                    true => ClaimAnswer::Won(Claim { record: self.id, fence: *fence }),
                    false => ClaimAnswer::InFlight,
                })
            }
            ApprovalState::Claimed { .. } if self.provider_executed => {
                self.stay(ClaimAnswer::Unknown)
            }
            ApprovalState::Claimed { decision: first, fence, .. } if self.idempotent => {
                claimed(first, fence + 1)
            }
            ApprovalState::Claimed { decision: first, .. } => {
                let decision = first.clone();
                self.to(ClaimAnswer::Unknown, ApprovalState::Unknown { decision })
            }
            ApprovalState::Done { outcome, .. } => self.stay(ClaimAnswer::Done(outcome.clone())),
            ApprovalState::Unknown { .. } => self.stay(ClaimAnswer::Unknown),
        }
    }

    /// A no: final for this call.
    pub fn deny(&self, decision: &Decision) -> Transition<DenyAnswer> {
        let refused = |cause| self.stay(DenyAnswer::Refused(cause));
        match &self.state {
            ApprovalState::Pending if self.expires_at <= decision.responded_at => {
                self.to(DenyAnswer::Refused(RefusalCause::Expired), ApprovalState::Expired)
            }
            ApprovalState::Pending => {
                let decision = decision.clone();
                self.to(DenyAnswer::Denied, ApprovalState::Denied { decision })
            }
            ApprovalState::Denied { .. } => self.stay(DenyAnswer::Denied),
            ApprovalState::Expired => refused(RefusalCause::Expired),
            ApprovalState::Revoked { cause, .. } => refused(RefusalCause::Revoked(*cause)),
            ApprovalState::Claimed { .. }
            | ApprovalState::Done { .. }
            | ApprovalState::Unknown { .. } => refused(RefusalCause::AlreadyDecided),
        }
    }

    /// Whoever runs the tool is still alive.
    pub fn renew(
        &self,
        claim: &Claim,
        lease: Duration,
        now: UnixMillis,
    ) -> Transition<ClaimantAnswer> {
        match &self.state {
            ApprovalState::Claimed { decision, claimant, fence, .. } if *fence == claim.fence => {
                let state = ApprovalState::Claimed {
                    decision: decision.clone(),
                    claimant: *claimant,
                    fence: *fence,
                    lease_until: now.after(lease),
                };
                self.to(ClaimantAnswer::Stored, state)
            }
            _ => self.stay(ClaimantAnswer::Lost),
        }
    }

    /// The tool ran. Its outcome is stored before anybody is told of it.
    pub fn complete(
        &self,
        claim: &Claim,
        outcome: &ToolOutcome,
        now: UnixMillis,
    ) -> Transition<ClaimantAnswer> {
        match &self.state {
            ApprovalState::Claimed { decision, fence, .. } if *fence == claim.fence => {
                let state = ApprovalState::Done {
                    decision: decision.clone(),
                    fence: *fence,
                    outcome: outcome.clone(),
                    at: now,
                };
                self.to(ClaimantAnswer::Stored, state)
            }
            // The answer to the first one was lost.
            ApprovalState::Done { fence, outcome: stored, .. }
                if *fence == claim.fence && stored == outcome =>
            {
                self.stay(ClaimantAnswer::Stored)
            }
            _ => self.stay(ClaimantAnswer::Lost),
        }
    }

    /// Takes the question back. `false` if it does not wait for an answer any more.
    ///
    /// A call whose claimant is gone is not run again then, even if its tool could be.
    pub fn revoke(&self, cause: Revocation, at: UnixMillis) -> Transition<bool> {
        match &self.state {
            ApprovalState::Pending if self.expires_at <= at => {
                self.to(false, ApprovalState::Expired)
            }
            ApprovalState::Pending => self.to(true, ApprovalState::Revoked { cause, at }),
            ApprovalState::Claimed { decision, lease_until, .. }
                if *lease_until <= at && !self.provider_executed =>
            {
                self.to(false, ApprovalState::Unknown { decision: decision.clone() })
            }
            _ => self.stay(false),
        }
    }

    /// Lets time pass: an unanswered question expires, and a claim whose claimant is gone becomes
    /// unknown, unless the tool may be run again.
    pub fn expire(&self, now: UnixMillis) -> Transition<()> {
        match &self.state {
            ApprovalState::Pending if self.expires_at <= now => self.to((), ApprovalState::Expired),
            ApprovalState::Claimed { decision, lease_until, .. }
                if *lease_until <= now && !self.idempotent && !self.provider_executed =>
            {
                self.to((), ApprovalState::Unknown { decision: decision.clone() })
            }
            _ => self.stay(()),
        }
    }

    fn to<T>(&self, answer: T, state: ApprovalState) -> Transition<T> {
        Transition { answer, next: Some(ApprovalRecord { state, ..self.clone() }) }
    }

    fn stay<T>(&self, answer: T) -> Transition<T> {
        Transition { answer, next: None }
    }
}
