//! Every request in every state of a record: the output of the transition, and the next state.

use std::time::Duration;

use super::records::{
    check_listed_if_pending, insert, load_one, new_chat_id, new_principal, new_record, now,
};
use super::{Case, CaseFailure, Store, expect_equal};
use crate::approval::store::{LedgerStore, update};
use crate::approval::{
    ApprovalRecord, ApprovalState, Claim, ClaimResult, DenyResult, LeaseHolderId, LeaseResult,
    Principal, RecordId, RecordedDecision, RejectionReason, RevocationReason, ToolOutcome,
    Transition,
};

pub(super) fn cases() -> Vec<Case> {
    let pairs =
        STATES.iter().flat_map(|state| REQUESTS.iter().map(move |request| (*state, *request)));
    let case = |(state, request): (State, Request)| {
        let (output, next_state) = rule(state, request);
        let name = format!("{state:?}, {request:?}: says {output:?}, becomes {next_state:?}");
        Case::new(name, move |store| run(store, state, request, output, next_state))
    };
    pairs.map(case).collect()
}

/// The state of the record before the request.
#[derive(Debug, Clone, Copy)]
enum State {
    Pending,
    /// The record has expired, but no transition has recorded that.
    PendingPastExpiry,
    Denied,
    Expired,
    Revoked,
    Claimed,
    /// The lease of the claim has ended.
    Abandoned,
    AbandonedButIdempotent,
    /// The lease of the first claim has ended, and another lease holder has claimed the record.
    ClaimedAgain,
    Completed,
    OutcomeUnknown,
}

const STATES: [State; 11] = [
    State::Pending,
    State::PendingPastExpiry,
    State::Denied,
    State::Expired,
    State::Revoked,
    State::Claimed,
    State::Abandoned,
    State::AbandonedButIdempotent,
    State::ClaimedAgain,
    State::Completed,
    State::OutcomeUnknown,
];

/// The request. Every earlier transition of the record was made by the first lease holder and by
/// the requester.
#[derive(Debug, Clone, Copy)]
enum Request {
    Claim,
    ClaimByOtherHolder,
    ClaimByOtherUser,
    Deny,
    DenyByOtherUser,
    Renew,
    RenewSecondClaim,
    Complete,
    CompleteWithOtherOutcome,
    CompleteSecondClaim,
    Revoke,
    Expire,
}

const REQUESTS: [Request; 12] = [
    Request::Claim,
    Request::ClaimByOtherHolder,
    Request::ClaimByOtherUser,
    Request::Deny,
    Request::DenyByOtherUser,
    Request::Renew,
    Request::RenewSecondClaim,
    Request::Complete,
    Request::CompleteWithOtherOutcome,
    Request::CompleteSecondClaim,
    Request::Revoke,
    Request::Expire,
];

/// The output of the transition.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Output {
    /// The claim is granted, with this fence.
    Granted(u64),
    InFlight,
    Completed,
    OutcomeUnknown,
    Denied,
    Refused(RejectionReason),
    Stored,
    Lost,
    Revoked,
    NotRevoked,
    Nothing,
}

/// The state of the record after the request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum NextState {
    Pending,
    Denied(Decider),
    Expired,
    Revoked,
    /// The principal that decided, the number of the lease holder, and the fence.
    Claimed(Decider, u8, u64),
    Completed(u64, Outcome),
    OutcomeUnknown,
}

/// The principal that decided.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decider {
    Requester,
    Other,
}

/// The outcome of the tool.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Outcome {
    First,
    Other,
}

/// Returns the expected output and the expected next state: a second formulation of the rules.
fn rule(state: State, request: Request) -> (Output, NextState) {
    use Decider::{Other, Requester};
    use RejectionReason::AlreadyDecided;
    use Request::{
        Claim, ClaimByOtherHolder, ClaimByOtherUser, Complete, CompleteSecondClaim,
        CompleteWithOtherOutcome, Deny, DenyByOtherUser, Expire, Renew, RenewSecondClaim, Revoke,
    };
    let unchanged = match state {
        State::Pending | State::PendingPastExpiry => NextState::Pending,
        State::Denied => NextState::Denied(Requester),
        State::Expired => NextState::Expired,
        State::Revoked => NextState::Revoked,
        State::Claimed | State::Abandoned | State::AbandonedButIdempotent => {
            NextState::Claimed(Requester, 1, 1)
        }
        State::ClaimedAgain => NextState::Claimed(Requester, 2, 2),
        State::Completed => NextState::Completed(1, Outcome::First),
        State::OutcomeUnknown => NextState::OutcomeUnknown,
    };
    let final_cause = match state {
        State::Expired => Some(RejectionReason::Expired),
        State::Revoked => Some(RejectionReason::Revoked(RevocationReason::ByHost)),
        _ => None,
    };
    match (request, state) {
        (Claim, State::Pending) => (Output::Granted(1), NextState::Claimed(Requester, 1, 1)),
        (ClaimByOtherHolder, State::Pending) => {
            (Output::Granted(1), NextState::Claimed(Requester, 2, 1))
        }
        (ClaimByOtherUser, State::Pending) => (Output::Granted(1), NextState::Claimed(Other, 2, 1)),
        (Deny, State::Pending) => (Output::Denied, NextState::Denied(Requester)),
        (DenyByOtherUser, State::Pending) => (Output::Denied, NextState::Denied(Other)),
        (
            Claim | ClaimByOtherHolder | ClaimByOtherUser | Deny | DenyByOtherUser,
            State::PendingPastExpiry,
        ) => (Output::Refused(RejectionReason::Expired), NextState::Expired),
        (Deny | DenyByOtherUser, State::Denied) => (Output::Denied, unchanged),
        (Claim | ClaimByOtherHolder | ClaimByOtherUser, State::Denied) => {
            (Output::Refused(AlreadyDecided), unchanged)
        }
        (
            Claim | ClaimByOtherHolder | ClaimByOtherUser | Deny | DenyByOtherUser,
            State::Expired | State::Revoked,
        ) => (Output::Refused(final_cause.unwrap_or(AlreadyDecided)), unchanged),
        (
            ClaimByOtherUser | Deny | DenyByOtherUser,
            State::Claimed
            | State::Abandoned
            | State::AbandonedButIdempotent
            | State::ClaimedAgain
            | State::Completed
            | State::OutcomeUnknown,
        ) => (Output::Refused(AlreadyDecided), unchanged),
        (Claim, State::Claimed) => (Output::Granted(1), unchanged),
        (ClaimByOtherHolder, State::Claimed) => (Output::InFlight, unchanged),
        (Claim, State::ClaimedAgain) => (Output::InFlight, unchanged),
        (ClaimByOtherHolder, State::ClaimedAgain) => (Output::Granted(2), unchanged),
        (Claim | ClaimByOtherHolder, State::Abandoned) => {
            (Output::OutcomeUnknown, NextState::OutcomeUnknown)
        }
        (Claim, State::AbandonedButIdempotent) => {
            (Output::Granted(2), NextState::Claimed(Requester, 1, 2))
        }
        (ClaimByOtherHolder, State::AbandonedButIdempotent) => {
            (Output::Granted(2), NextState::Claimed(Requester, 2, 2))
        }
        (Claim | ClaimByOtherHolder, State::Completed) => (Output::Completed, unchanged),
        (Claim | ClaimByOtherHolder, State::OutcomeUnknown) => (Output::OutcomeUnknown, unchanged),
        // The lease may have ended, as long as no transition has recorded that.
        (Renew, State::Claimed | State::Abandoned | State::AbandonedButIdempotent)
        | (RenewSecondClaim, State::ClaimedAgain) => (Output::Stored, unchanged),
        (Complete, State::Claimed | State::Abandoned | State::AbandonedButIdempotent) => {
            (Output::Stored, NextState::Completed(1, Outcome::First))
        }
        (
            CompleteWithOtherOutcome,
            State::Claimed | State::Abandoned | State::AbandonedButIdempotent,
        ) => (Output::Stored, NextState::Completed(1, Outcome::Other)),
        (CompleteSecondClaim, State::ClaimedAgain) => {
            (Output::Stored, NextState::Completed(2, Outcome::First))
        }
        (Complete, State::Completed) => (Output::Stored, unchanged),
        (
            Renew | RenewSecondClaim | Complete | CompleteWithOtherOutcome | CompleteSecondClaim,
            _,
        ) => (Output::Lost, unchanged),
        (Revoke, State::Pending) => (Output::Revoked, NextState::Revoked),
        (Revoke, State::PendingPastExpiry) => (Output::NotRevoked, NextState::Expired),
        (Revoke, State::Abandoned | State::AbandonedButIdempotent) => {
            (Output::NotRevoked, NextState::OutcomeUnknown)
        }
        (Revoke, _) => (Output::NotRevoked, unchanged),
        (Expire, State::PendingPastExpiry) => (Output::Nothing, NextState::Expired),
        (Expire, State::Abandoned) => (Output::Nothing, NextState::OutcomeUnknown),
        (Expire, _) => (Output::Nothing, unchanged),
    }
}

async fn run(
    store: Store,
    state: State,
    request: Request,
    output: Output,
    next_state: NextState,
) -> Result<(), CaseFailure> {
    let store = &*store;
    let (requester, other) = (new_principal(), new_principal());
    let fixture =
        Fixture { store, id: insert_in_state(store, &requester, state).await?, requester, other };
    let before = load_one(store, fixture.id).await?;
    check_listed_if_pending(store, &before.record).await?;
    let (after, answer) = fixture.apply(request, HOUR).await?;
    expect_equal("the answer", answer, output)?;
    expect_equal("the state", fixture.next_state(&after)?, next_state)?;
    let read = load_one(store, fixture.id).await?;
    expect_equal("the record as it is read afterwards", &read.record, &after)?;
    let is_changed = before.record != after;
    if is_changed && before.revision == read.revision {
        return Err(CaseFailure("the record changed, its revision did not".to_owned()));
    }
    check_listed_if_pending(store, &after).await
}

/// Inserts a new record and brings it into a state.
async fn insert_in_state(
    store: &dyn LedgerStore,
    requester: &Principal,
    state: State,
) -> Result<RecordId, CaseFailure> {
    let mut record = new_record(requester, &new_chat_id(), now(store).await?);
    if matches!(state, State::PendingPastExpiry | State::Expired) {
        record.expires_at = record.requested_at;
    }
    record.idempotent = matches!(state, State::AbandonedButIdempotent | State::ClaimedAgain);
    insert(store, &record).await?;
    let (requester, other) = (requester.clone(), new_principal());
    let fixture = Fixture { store, id: record.id, requester, other };
    let requests: &[(Request, Duration)] = match state {
        State::Pending | State::PendingPastExpiry => &[],
        State::Denied => &[(Request::Deny, HOUR)],
        State::Expired => &[(Request::Expire, HOUR)],
        State::Revoked => &[(Request::Revoke, HOUR)],
        State::Claimed => &[(Request::Claim, HOUR)],
        State::Abandoned | State::AbandonedButIdempotent => &[(Request::Claim, Duration::ZERO)],
        State::ClaimedAgain => {
            &[(Request::Claim, Duration::ZERO), (Request::ClaimByOtherHolder, HOUR)]
        }
        State::Completed => &[(Request::Claim, HOUR), (Request::Complete, HOUR)],
        State::OutcomeUnknown => &[(Request::Claim, Duration::ZERO), (Request::Expire, HOUR)],
    };
    for (request, lease) in requests {
        fixture.apply(*request, *lease).await?;
    }
    Ok(record.id)
}

/// The record and the two principals of a case.
struct Fixture<'s> {
    store: &'s dyn LedgerStore,
    id: RecordId,
    requester: Principal,
    other: Principal,
}

impl Fixture<'_> {
    async fn apply(
        &self,
        request: Request,
        lease: Duration,
    ) -> Result<(ApprovalRecord, Output), CaseFailure> {
        let changed = update(self.store, self.id, |record, now| {
            let decision = |by: &Principal| RecordedDecision {
                decided_by: by.clone(),
                decided_at: now,
                reason: Some("because of \"this\"\n".to_owned()),
            };
            let claim = |by: &Principal, holder: u8| {
                let lease_holder = LeaseHolderId::from_bytes([holder; 16]);
                record.claim(&decision(by), lease_holder, lease).map_output(claim_output)
            };
            let deny = |by: &Principal| record.deny(&decision(by)).map_output(deny_output);
            let renew =
                |fence| record.renew(&self.claim(fence), lease, now).map_output(lease_output);
            let complete = |fence, outcome| {
                record
                    .complete(&self.claim(fence), &tool_outcome(outcome), now)
                    .map_output(lease_output)
            };
            match request {
                Request::Claim => claim(&self.requester, 1),
                Request::ClaimByOtherHolder => claim(&self.requester, 2),
                Request::ClaimByOtherUser => claim(&self.other, 2),
                Request::Deny => deny(&self.requester),
                Request::DenyByOtherUser => deny(&self.other),
                Request::Renew => renew(1),
                Request::RenewSecondClaim => renew(2),
                Request::Complete => complete(1, Outcome::First),
                Request::CompleteWithOtherOutcome => complete(1, Outcome::Other),
                Request::CompleteSecondClaim => complete(2, Outcome::First),
                Request::Revoke => {
                    record.revoke(RevocationReason::ByHost, now).map_output(|revoked| match revoked
                    {
                        true => Output::Revoked,
                        false => Output::NotRevoked,
                    })
                }
                Request::Expire => record.expire(now).map_output(|()| Output::Nothing),
            }
        });
        changed.await?.ok_or_else(|| CaseFailure("the record is gone".to_owned()))
    }

    fn claim(&self, fence: u64) -> Claim {
        Claim { record: self.id, fence }
    }

    fn next_state(&self, record: &ApprovalRecord) -> Result<NextState, CaseFailure> {
        let by = match record.decision() {
            Some(decision) if decision.decided_by == self.requester => Decider::Requester,
            _ => Decider::Other,
        };
        Ok(match &record.state {
            ApprovalState::Pending => NextState::Pending,
            ApprovalState::Denied { .. } => NextState::Denied(by),
            ApprovalState::Expired => NextState::Expired,
            ApprovalState::Revoked { .. } => NextState::Revoked,
            ApprovalState::Claimed { claimant, fence, .. } => {
                let number = match *claimant == LeaseHolderId::from_bytes([1; 16]) {
                    true => 1,
                    false => 2,
                };
                NextState::Claimed(by, number, *fence)
            }
            ApprovalState::Completed { fence, outcome, .. }
                if *outcome == tool_outcome(Outcome::First) =>
            {
                NextState::Completed(*fence, Outcome::First)
            }
            ApprovalState::Completed { fence, .. } => NextState::Completed(*fence, Outcome::Other),
            ApprovalState::OutcomeUnknown { .. } => NextState::OutcomeUnknown,
        })
    }
}

trait MapOutput<T> {
    /// Returns the same transition with another output.
    fn map_output<U>(self, map: impl FnOnce(T) -> U) -> Transition<U>;
}

impl<T> MapOutput<T> for Transition<T> {
    fn map_output<U>(self, map: impl FnOnce(T) -> U) -> Transition<U> {
        Transition { output: map(self.output), next: self.next }
    }
}

fn claim_output(answer: ClaimResult) -> Output {
    match answer {
        ClaimResult::Granted(claim) => Output::Granted(claim.fence),
        ClaimResult::InFlight => Output::InFlight,
        ClaimResult::Completed(_) => Output::Completed,
        ClaimResult::OutcomeUnknown => Output::OutcomeUnknown,
        ClaimResult::Refused(cause) => Output::Refused(cause),
    }
}

fn deny_output(answer: DenyResult) -> Output {
    match answer {
        DenyResult::Denied => Output::Denied,
        DenyResult::Refused(cause) => Output::Refused(cause),
    }
}

fn lease_output(answer: LeaseResult) -> Output {
    match answer {
        LeaseResult::Stored => Output::Stored,
        LeaseResult::Lost => Output::Lost,
    }
}

fn tool_outcome(outcome: Outcome) -> ToolOutcome {
    ToolOutcome::Failed(match outcome {
        Outcome::First => "as it did".to_owned(),
        Outcome::Other => "otherwise".to_owned(),
    })
}

const HOUR: Duration = Duration::from_secs(60 * 60);
