//! Every wish in every state: what the record says to it, and what it becomes.

use std::time::Duration;

use super::records::{a_chat, a_person, insert, is_listed_if_pending, kept, now, question};
use super::{Case, Failed, Store, equal};
use crate::approval::{
    ApprovalRecord, ApprovalState, Claim, ClaimAnswer, ClaimantAnswer, ClaimantId, Decision,
    DenyAnswer, Principal, RecordId, RefusalCause, Revocation, ToolOutcome, Transition,
};
use crate::ledger_store::{LedgerStore, change};

pub(super) fn cases() -> Vec<Case> {
    let pairs = STATES.iter().flat_map(|state| WISHES.iter().map(move |wish| (*state, *wish)));
    let case = |(state, wish): (State, Wish)| {
        let (said, becomes) = rule(state, wish);
        let name = format!("{state:?}, {wish:?}: says {said:?}, becomes {becomes:?}");
        Case::new(name, move |store| run(store, state, wish, said, becomes))
    };
    pairs.map(case).collect()
}

/// How a record was left.
#[derive(Debug, Clone, Copy)]
enum State {
    Pending,
    /// Its time is over, and nobody has looked.
    PendingTooLong,
    Denied,
    Expired,
    Revoked,
    Claimed,
    /// The lease is over.
    Abandoned,
    AbandonedButIdempotent,
    /// By another claimant, after the first one was gone.
    ClaimedAgain,
    Done,
    Unknown,
}

const STATES: [State; 11] = [
    State::Pending,
    State::PendingTooLong,
    State::Denied,
    State::Expired,
    State::Revoked,
    State::Claimed,
    State::Abandoned,
    State::AbandonedButIdempotent,
    State::ClaimedAgain,
    State::Done,
    State::Unknown,
];

/// What is asked of it. Whatever was decided before, the first claimant and the person who was asked
/// did.
#[derive(Debug, Clone, Copy)]
enum Wish {
    Claim,
    ClaimByAnotherClaimant,
    ClaimByAnotherPerson,
    Deny,
    DenyByAnotherPerson,
    Renew,
    RenewTheSecondClaim,
    Complete,
    CompleteOtherwise,
    CompleteTheSecondClaim,
    Revoke,
    Expire,
}

const WISHES: [Wish; 12] = [
    Wish::Claim,
    Wish::ClaimByAnotherClaimant,
    Wish::ClaimByAnotherPerson,
    Wish::Deny,
    Wish::DenyByAnotherPerson,
    Wish::Renew,
    Wish::RenewTheSecondClaim,
    Wish::Complete,
    Wish::CompleteOtherwise,
    Wish::CompleteTheSecondClaim,
    Wish::Revoke,
    Wish::Expire,
];

/// What the record says.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Said {
    /// With this fence.
    Won(u64),
    InFlight,
    Done,
    OutcomeUnknown,
    Denied,
    Refused(RefusalCause),
    Stored,
    Lost,
    Revoked,
    NotRevoked,
    Nothing,
}

/// What the record becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Becomes {
    Pending,
    Denied(By),
    Expired,
    Revoked,
    /// By which claimant, and with which fence.
    Claimed(By, u8, u64),
    Done(u64, Ran),
    Unknown,
}

/// Who decided.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Requester,
    Other,
}

/// What came of the tool.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ran {
    Well,
    Otherwise,
}

/// The rules of the ledger, written down once more.
fn rule(state: State, wish: Wish) -> (Said, Becomes) {
    use By::{Other, Requester};
    use RefusalCause::AlreadyDecided;
    use Wish::{
        Claim, ClaimByAnotherClaimant, ClaimByAnotherPerson, Complete, CompleteOtherwise,
        CompleteTheSecondClaim, Deny, DenyByAnotherPerson, Expire, Renew, RenewTheSecondClaim,
        Revoke,
    };
    let stays = match state {
        State::Pending | State::PendingTooLong => Becomes::Pending,
        State::Denied => Becomes::Denied(Requester),
        State::Expired => Becomes::Expired,
        State::Revoked => Becomes::Revoked,
        State::Claimed | State::Abandoned | State::AbandonedButIdempotent => {
            Becomes::Claimed(Requester, 1, 1)
        }
        State::ClaimedAgain => Becomes::Claimed(Requester, 2, 2),
        State::Done => Becomes::Done(1, Ran::Well),
        State::Unknown => Becomes::Unknown,
    };
    let final_cause = match state {
        State::Expired => Some(RefusalCause::Expired),
        State::Revoked => Some(RefusalCause::Revoked(Revocation::ByHost)),
        _ => None,
    };
    match (wish, state) {
        (Claim, State::Pending) => (Said::Won(1), Becomes::Claimed(Requester, 1, 1)),
        (ClaimByAnotherClaimant, State::Pending) => {
            (Said::Won(1), Becomes::Claimed(Requester, 2, 1))
        }
        (ClaimByAnotherPerson, State::Pending) => (Said::Won(1), Becomes::Claimed(Other, 2, 1)),
        (Deny, State::Pending) => (Said::Denied, Becomes::Denied(Requester)),
        (DenyByAnotherPerson, State::Pending) => (Said::Denied, Becomes::Denied(Other)),
        (
            Claim | ClaimByAnotherClaimant | ClaimByAnotherPerson | Deny | DenyByAnotherPerson,
            State::PendingTooLong,
        ) => (Said::Refused(RefusalCause::Expired), Becomes::Expired),
        (Deny | DenyByAnotherPerson, State::Denied) => (Said::Denied, stays),
        (Claim | ClaimByAnotherClaimant | ClaimByAnotherPerson, State::Denied) => {
            (Said::Refused(AlreadyDecided), stays)
        }
        (
            Claim | ClaimByAnotherClaimant | ClaimByAnotherPerson | Deny | DenyByAnotherPerson,
            State::Expired | State::Revoked,
        ) => (Said::Refused(final_cause.unwrap_or(AlreadyDecided)), stays),
        (
            ClaimByAnotherPerson | Deny | DenyByAnotherPerson,
            State::Claimed
            | State::Abandoned
            | State::AbandonedButIdempotent
            | State::ClaimedAgain
            | State::Done
            | State::Unknown,
        ) => (Said::Refused(AlreadyDecided), stays),
        (Claim, State::Claimed) => (Said::Won(1), stays),
        (ClaimByAnotherClaimant, State::Claimed) => (Said::InFlight, stays),
        (Claim, State::ClaimedAgain) => (Said::InFlight, stays),
        (ClaimByAnotherClaimant, State::ClaimedAgain) => (Said::Won(2), stays),
        (Claim | ClaimByAnotherClaimant, State::Abandoned) => {
            (Said::OutcomeUnknown, Becomes::Unknown)
        }
        (Claim, State::AbandonedButIdempotent) => (Said::Won(2), Becomes::Claimed(Requester, 1, 2)),
        (ClaimByAnotherClaimant, State::AbandonedButIdempotent) => {
            (Said::Won(2), Becomes::Claimed(Requester, 2, 2))
        }
        (Claim | ClaimByAnotherClaimant, State::Done) => (Said::Done, stays),
        (Claim | ClaimByAnotherClaimant, State::Unknown) => (Said::OutcomeUnknown, stays),
        // The claimant is late, and nobody has looked.
        (Renew, State::Claimed | State::Abandoned | State::AbandonedButIdempotent)
        | (RenewTheSecondClaim, State::ClaimedAgain) => (Said::Stored, stays),
        (Complete, State::Claimed | State::Abandoned | State::AbandonedButIdempotent) => {
            (Said::Stored, Becomes::Done(1, Ran::Well))
        }
        (CompleteOtherwise, State::Claimed | State::Abandoned | State::AbandonedButIdempotent) => {
            (Said::Stored, Becomes::Done(1, Ran::Otherwise))
        }
        (CompleteTheSecondClaim, State::ClaimedAgain) => {
            (Said::Stored, Becomes::Done(2, Ran::Well))
        }
        (Complete, State::Done) => (Said::Stored, stays),
        (
            Renew | RenewTheSecondClaim | Complete | CompleteOtherwise | CompleteTheSecondClaim,
            _,
        ) => (Said::Lost, stays),
        (Revoke, State::Pending) => (Said::Revoked, Becomes::Revoked),
        (Revoke, State::PendingTooLong) => (Said::NotRevoked, Becomes::Expired),
        (Revoke, State::Abandoned | State::AbandonedButIdempotent) => {
            (Said::NotRevoked, Becomes::Unknown)
        }
        (Revoke, _) => (Said::NotRevoked, stays),
        (Expire, State::PendingTooLong) => (Said::Nothing, Becomes::Expired),
        (Expire, State::Abandoned) => (Said::Nothing, Becomes::Unknown),
        (Expire, _) => (Said::Nothing, stays),
    }
}

async fn run(
    store: Store,
    state: State,
    wish: Wish,
    said: Said,
    becomes: Becomes,
) -> Result<(), Failed> {
    let store = &*store;
    let (asked, other) = (a_person(), a_person());
    let of = Of { store, id: leave(store, &asked, state).await?, asked, other };
    let before = kept(store, of.id).await?;
    is_listed_if_pending(store, &before.record).await?;
    let (after, answer) = of.wish(wish, HOUR).await?;
    equal("the answer", answer, said)?;
    equal("the state", of.becomes(&after)?, becomes)?;
    let read = kept(store, of.id).await?;
    equal("the record as it is read afterwards", &read.record, &after)?;
    let is_changed = before.record != after;
    if is_changed && before.revision == read.revision {
        return Err(Failed("the record changed, its revision did not".to_owned()));
    }
    is_listed_if_pending(store, &after).await
}

/// Leaves a new record in a state.
async fn leave(
    store: &dyn LedgerStore,
    asked: &Principal,
    state: State,
) -> Result<RecordId, Failed> {
    let mut record = question(asked, &a_chat(), now(store).await?);
    if matches!(state, State::PendingTooLong | State::Expired) {
        record.expires_at = record.requested_at;
    }
    record.idempotent = matches!(state, State::AbandonedButIdempotent | State::ClaimedAgain);
    insert(store, &record).await?;
    let (asked, other) = (asked.clone(), a_person());
    let of = Of { store, id: record.id, asked, other };
    let wishes: &[(Wish, Duration)] = match state {
        State::Pending | State::PendingTooLong => &[],
        State::Denied => &[(Wish::Deny, HOUR)],
        State::Expired => &[(Wish::Expire, HOUR)],
        State::Revoked => &[(Wish::Revoke, HOUR)],
        State::Claimed => &[(Wish::Claim, HOUR)],
        State::Abandoned | State::AbandonedButIdempotent => &[(Wish::Claim, Duration::ZERO)],
        State::ClaimedAgain => {
            &[(Wish::Claim, Duration::ZERO), (Wish::ClaimByAnotherClaimant, HOUR)]
        }
        State::Done => &[(Wish::Claim, HOUR), (Wish::Complete, HOUR)],
        State::Unknown => &[(Wish::Claim, Duration::ZERO), (Wish::Expire, HOUR)],
    };
    for (wish, lease) in wishes {
        of.wish(*wish, *lease).await?;
    }
    Ok(record.id)
}

/// A record, and the two people of a case.
struct Of<'s> {
    store: &'s dyn LedgerStore,
    id: RecordId,
    asked: Principal,
    other: Principal,
}

impl Of<'_> {
    async fn wish(&self, wish: Wish, lease: Duration) -> Result<(ApprovalRecord, Said), Failed> {
        let changed = change(self.store, self.id, |record, now| {
            let decision = |by: &Principal| Decision {
                approved_by: by.clone(),
                responded_at: now,
                reason: Some("because of \"this\"\n".to_owned()),
            };
            let claim = |by: &Principal, claimant: u8| {
                let claimant = ClaimantId::from_bytes([claimant; 16]);
                record.claim(&decision(by), claimant, lease).map(said_to_claim)
            };
            let deny = |by: &Principal| record.deny(&decision(by)).map(said_to_deny);
            let renew = |fence| record.renew(&self.claim(fence), lease, now).map(said_to_claimant);
            let complete = |fence, ran| {
                record.complete(&self.claim(fence), &outcome(ran), now).map(said_to_claimant)
            };
            match wish {
                Wish::Claim => claim(&self.asked, 1),
                Wish::ClaimByAnotherClaimant => claim(&self.asked, 2),
                Wish::ClaimByAnotherPerson => claim(&self.other, 2),
                Wish::Deny => deny(&self.asked),
                Wish::DenyByAnotherPerson => deny(&self.other),
                Wish::Renew => renew(1),
                Wish::RenewTheSecondClaim => renew(2),
                Wish::Complete => complete(1, Ran::Well),
                Wish::CompleteOtherwise => complete(1, Ran::Otherwise),
                Wish::CompleteTheSecondClaim => complete(2, Ran::Well),
                Wish::Revoke => {
                    record.revoke(Revocation::ByHost, now).map(|revoked| match revoked {
                        true => Said::Revoked,
                        false => Said::NotRevoked,
                    })
                }
                Wish::Expire => record.expire(now).map(|()| Said::Nothing),
            }
        });
        changed.await?.ok_or_else(|| Failed("the record is gone".to_owned()))
    }

    fn claim(&self, fence: u64) -> Claim {
        Claim { record: self.id, fence }
    }

    fn becomes(&self, record: &ApprovalRecord) -> Result<Becomes, Failed> {
        let by = match record.decision() {
            Some(decision) if decision.approved_by == self.asked => By::Requester,
            _ => By::Other,
        };
        Ok(match &record.state {
            ApprovalState::Pending => Becomes::Pending,
            ApprovalState::Denied { .. } => Becomes::Denied(by),
            ApprovalState::Expired => Becomes::Expired,
            ApprovalState::Revoked { .. } => Becomes::Revoked,
            ApprovalState::Claimed { claimant, fence, .. } => {
                let number = match *claimant == ClaimantId::from_bytes([1; 16]) {
                    true => 1,
                    false => 2,
                };
                Becomes::Claimed(by, number, *fence)
            }
            ApprovalState::Done { fence, outcome: ran, .. } if *ran == outcome(Ran::Well) => {
                Becomes::Done(*fence, Ran::Well)
            }
            ApprovalState::Done { fence, .. } => Becomes::Done(*fence, Ran::Otherwise),
            ApprovalState::Unknown { .. } => Becomes::Unknown,
        })
    }
}

trait Map<T> {
    /// The same with another answer.
    fn map<U>(self, say: impl FnOnce(T) -> U) -> Transition<U>;
}

impl<T> Map<T> for Transition<T> {
    fn map<U>(self, say: impl FnOnce(T) -> U) -> Transition<U> {
        Transition { answer: say(self.answer), next: self.next }
    }
}

fn said_to_claim(answer: ClaimAnswer) -> Said {
    match answer {
        ClaimAnswer::Won(claim) => Said::Won(claim.fence),
        ClaimAnswer::InFlight => Said::InFlight,
        ClaimAnswer::Done(_) => Said::Done,
        ClaimAnswer::Unknown => Said::OutcomeUnknown,
        ClaimAnswer::Refused(cause) => Said::Refused(cause),
    }
}

fn said_to_deny(answer: DenyAnswer) -> Said {
    match answer {
        DenyAnswer::Denied => Said::Denied,
        DenyAnswer::Refused(cause) => Said::Refused(cause),
    }
}

fn said_to_claimant(answer: ClaimantAnswer) -> Said {
    match answer {
        ClaimantAnswer::Stored => Said::Stored,
        ClaimantAnswer::Lost => Said::Lost,
    }
}

fn outcome(ran: Ran) -> ToolOutcome {
    ToolOutcome::Failed(match ran {
        Ran::Well => "as it did".to_owned(),
        Ran::Otherwise => "otherwise".to_owned(),
    })
}

const HOUR: Duration = Duration::from_secs(60 * 60);
