//! The rules of the ledger as a table: the output and the next state, for every rule in every state
//! of a record.
//!
//! Each row is checked against the rules themselves, in the unit test below, and through a store, as
//! a case of the suite.

use std::fmt::Debug;
use std::time::Duration;

use super::case::{Case, CaseFailure, Store, expect_equal};
use super::records::{check_listed, insert, load_one, new_chat_id, new_principal, new_record, now};
use crate::UserText;
use crate::approval::store::update;
use crate::approval::{
    self, ApprovalRecord, ApprovalState, DeferredOutcome, EditableInput, LeaseHolderId,
    OnNewMessage, Principal, RecordedDecision, RevocationReason, Stepped, ToolOutcome, Transition,
    UnixMillis,
};
use crate::json::Json;

use By::{Editor, Message, Other, Requester};
use Rule::{Claim, Complete, Deny, Expire, Lapse, Renew, Revoke, Supersede};
use State::{
    Claimed, Completed, Denied, Expired, Granted, Lapsed, OutcomeUnknown, Pending, Revoked,
    Superseded,
};

/// A record and a rule, the output of the rule as it is [printed], and the next state, or `None` if
/// the record does not change.
type Row = (Given, Rule, &'static str, Option<State>);

/// Rows that differ only in their rules.
type Rows = (Given, &'static [Rule], &'static str, Option<State>);

const TABLE: &[Rows] = &[
    (PENDING, &[Claim(Requester, 1)], "Granted(1)", Some(Claimed(Requester, 59, 1, 1, 69))),
    (PENDING, &[Claim(Requester, 2)], "Granted(1)", Some(Claimed(Requester, 59, 2, 1, 69))),
    (PENDING, &[Claim(Other, 2)], "Granted(1)", Some(Claimed(Other, 59, 2, 1, 69))),
    (PENDING, &[Deny(Requester)], "Denied", Some(Denied(Requester, 59))),
    (PENDING, &[Deny(Other)], "Denied", Some(Denied(Other, 59))),
    (PENDING, OF_LEASE_HOLDERS, "Lost", None),
    (PENDING, &[Revoke], "true", Some(Revoked(59))),
    (PENDING, &[Expire], "()", None),
    (PENDING, &[Lapse], "Rejected(Lapsed)", Some(Lapsed(Requester, 59))),
    (PENDING, &[Supersede], "()", Some(Superseded(59))),
    (PAST_EXPIRY, DECISIONS, "Rejected(Expired)", Some(Expired)),
    (PAST_EXPIRY, OF_LEASE_HOLDERS, "Lost", None),
    (PAST_EXPIRY, &[Revoke], "false", Some(Expired)),
    (PAST_EXPIRY, &[Expire, Supersede], "()", Some(Expired)),
    (PAST_EXPIRY, &[Lapse], "Rejected(Expired)", Some(Expired)),
    (DENIED, CLAIMS, "Rejected(AlreadyDecided)", None),
    (DENIED, DENIALS, "Denied", None),
    (DENIED, OF_LEASE_HOLDERS, "Lost", None),
    (DENIED, &[Revoke], "false", None),
    (DENIED, &[Expire, Supersede], "()", None),
    (DENIED, &[Lapse], "Rejected(AlreadyDecided)", None),
    (EXPIRED, DECISIONS, "Rejected(Expired)", None),
    (EXPIRED, OF_LEASE_HOLDERS, "Lost", None),
    (EXPIRED, &[Revoke], "false", None),
    (EXPIRED, &[Expire, Supersede], "()", None),
    (EXPIRED, &[Lapse], "Rejected(Expired)", None),
    (REVOKED, DECISIONS, "Rejected(Revoked(ByHost))", None),
    (REVOKED, OF_LEASE_HOLDERS, "Lost", None),
    (REVOKED, &[Revoke], "false", None),
    (REVOKED, &[Expire, Supersede], "()", None),
    (REVOKED, &[Lapse], "Rejected(AlreadyDecided)", None),
    (CLAIMED, &[Claim(Requester, 1)], "Granted(1)", None),
    (CLAIMED, &[Claim(Requester, 2)], "InFlight", None),
    (CLAIMED, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (CLAIMED, &[Renew(1)], "Stored", Some(Claimed(Requester, 10, 1, 1, 29))),
    (CLAIMED, &[Complete(1, "a")], "Stored", Some(Completed(Requester, 10, 1, "a", 19))),
    (CLAIMED, &[Complete(1, "b")], "Stored", Some(Completed(Requester, 10, 1, "b", 19))),
    (CLAIMED, OF_SECOND_CLAIM, "Lost", None),
    (CLAIMED, &[Revoke], "false", None),
    (CLAIMED, &[Expire, Supersede], "()", None),
    (CLAIMED, &[Lapse], "Rejected(AlreadyDecided)", None),
    // The lease may have ended, as long as no rule has recorded that.
    (ABANDONED, REPEATED_CLAIMS, "OutcomeUnknown", Some(OutcomeUnknown(Requester, 10))),
    (ABANDONED, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (ABANDONED, &[Renew(1)], "Stored", Some(Claimed(Requester, 10, 1, 1, 30))),
    (ABANDONED, &[Complete(1, "a")], "Stored", Some(Completed(Requester, 10, 1, "a", 20))),
    (ABANDONED, &[Complete(1, "b")], "Stored", Some(Completed(Requester, 10, 1, "b", 20))),
    (ABANDONED, OF_SECOND_CLAIM, "Lost", None),
    (ABANDONED, &[Revoke], "false", Some(OutcomeUnknown(Requester, 10))),
    (ABANDONED, &[Expire], "()", Some(OutcomeUnknown(Requester, 10))),
    (ABANDONED, &[Supersede], "()", None),
    (ABANDONED, &[Lapse], "Rejected(AlreadyDecided)", None),
    (IDEMPOTENT, &[Claim(Requester, 1)], "Granted(2)", Some(Claimed(Requester, 10, 1, 2, 30))),
    (IDEMPOTENT, &[Claim(Requester, 2)], "Granted(2)", Some(Claimed(Requester, 10, 2, 2, 30))),
    (IDEMPOTENT, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (IDEMPOTENT, &[Renew(1)], "Stored", Some(Claimed(Requester, 10, 1, 1, 30))),
    (IDEMPOTENT, &[Complete(1, "a")], "Stored", Some(Completed(Requester, 10, 1, "a", 20))),
    (IDEMPOTENT, &[Complete(1, "b")], "Stored", Some(Completed(Requester, 10, 1, "b", 20))),
    (IDEMPOTENT, OF_SECOND_CLAIM, "Lost", None),
    (IDEMPOTENT, &[Revoke], "false", Some(OutcomeUnknown(Requester, 10))),
    (IDEMPOTENT, &[Expire, Supersede], "()", None),
    (IDEMPOTENT, &[Lapse], "Rejected(AlreadyDecided)", None),
    (CLAIMED_AGAIN, &[Claim(Requester, 1)], "InFlight", None),
    (CLAIMED_AGAIN, &[Claim(Requester, 2)], "Granted(2)", None),
    (CLAIMED_AGAIN, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (CLAIMED_AGAIN, OF_FIRST_CLAIM, "Lost", None),
    (CLAIMED_AGAIN, &[Renew(2)], "Stored", Some(Claimed(Requester, 10, 2, 2, 39))),
    (CLAIMED_AGAIN, &[Complete(2, "a")], "Stored", Some(Completed(Requester, 10, 2, "a", 29))),
    (CLAIMED_AGAIN, &[Revoke], "false", None),
    (CLAIMED_AGAIN, &[Expire, Supersede], "()", None),
    (CLAIMED_AGAIN, &[Lapse], "Rejected(AlreadyDecided)", None),
    (BY_PROVIDER, REPEATED_CLAIMS, "OutcomeUnknown", None),
    (BY_PROVIDER, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (BY_PROVIDER, &[Renew(1)], "Stored", Some(Claimed(Requester, 10, 1, 1, 30))),
    (BY_PROVIDER, &[Complete(1, "a")], "Stored", Some(Completed(Requester, 10, 1, "a", 20))),
    (BY_PROVIDER, &[Complete(1, "b")], "Stored", Some(Completed(Requester, 10, 1, "b", 20))),
    (BY_PROVIDER, OF_SECOND_CLAIM, "Lost", None),
    (BY_PROVIDER, &[Revoke], "false", None),
    (BY_PROVIDER, &[Expire, Supersede], "()", None),
    (BY_PROVIDER, &[Lapse], "Rejected(AlreadyDecided)", None),
    (GRANTED, &[Claim(Requester, 1)], "Granted(1)", Some(Claimed(Requester, 10, 1, 1, 30))),
    (GRANTED, &[Claim(Requester, 2)], "Granted(1)", Some(Claimed(Requester, 10, 2, 1, 30))),
    (GRANTED, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (GRANTED, OF_LEASE_HOLDERS, "Lost", None),
    (GRANTED, &[Revoke], "false", None),
    (GRANTED, &[Expire, Supersede], "()", None),
    (GRANTED, &[Lapse], "Rejected(AlreadyDecided)", None),
    (COMPLETED, REPEATED_CLAIMS, r#"Completed(Failed("a"))"#, None),
    (COMPLETED, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (COMPLETED, &[Complete(1, "a")], "Stored", None),
    (COMPLETED, &[Renew(1), Complete(1, "b")], "Lost", None),
    (COMPLETED, OF_SECOND_CLAIM, "Lost", None),
    (COMPLETED, &[Revoke], "false", None),
    (COMPLETED, &[Expire, Supersede], "()", None),
    (COMPLETED, &[Lapse], "Rejected(AlreadyDecided)", None),
    (SUPERSEDED, DECISIONS, "Rejected(Superseded)", None),
    (SUPERSEDED, OF_LEASE_HOLDERS, "Lost", None),
    (SUPERSEDED, &[Revoke], "false", None),
    (SUPERSEDED, &[Expire, Supersede], "()", None),
    (SUPERSEDED, &[Lapse], "Rejected(AlreadyDecided)", None),
    (LAPSED, CLAIMS, "Rejected(Lapsed)", None),
    (LAPSED, DENIALS, "Rejected(AlreadyDecided)", None),
    (LAPSED, OF_LEASE_HOLDERS, "Lost", None),
    (LAPSED, &[Revoke], "false", None),
    (LAPSED, &[Expire, Supersede], "()", None),
    (LAPSED, &[Lapse], "Rejected(AlreadyDecided)", None),
    (UNKNOWN, REPEATED_CLAIMS, "OutcomeUnknown", None),
    (UNKNOWN, OTHER_DECISIONS, "Rejected(AlreadyDecided)", None),
    (UNKNOWN, OF_LEASE_HOLDERS, "Lost", None),
    (UNKNOWN, &[Revoke], "false", None),
    (UNKNOWN, &[Expire, Supersede], "()", None),
    (UNKNOWN, &[Lapse], "Rejected(AlreadyDecided)", None),
];

/// The approver changes the input.
const CHANGED_INPUTS: &[Rows] = &[
    (PENDING, &[Claim(Editor, 1)], "Rejected(InputNotAccepted)", None),
    (EDITABLE, &[Claim(Editor, 1)], "Granted(1)", Some(Claimed(Editor, 59, 1, 1, 69))),
    (EDITABLE, &[Claim(Requester, 1)], "Granted(1)", Some(Claimed(Requester, 59, 1, 1, 69))),
    (PAST_EXPIRY, &[Claim(Editor, 1)], "Rejected(Expired)", Some(Expired)),
    // The first input stands.
    (CLAIMED, &[Claim(Editor, 1)], "Granted(1)", None),
    (CHANGED, &[Claim(Requester, 1)], "Granted(1)", None),
    (CHANGED, &[Claim(Requester, 2), Claim(Editor, 2)], "InFlight", None),
    (CHANGED, &[Complete(1, "a")], "Stored", Some(Completed(Editor, 10, 1, "a", 19))),
];

/// Each attempt to execute has a fence of its own.
const LATER_ATTEMPTS: &[Rows] = &[
    (LOST_AGAIN, &[Claim(Requester, 1)], "Granted(3)", Some(Claimed(Requester, 10, 1, 3, 40))),
    (CLAIMED_A_THIRD_TIME, OF_FIRST_CLAIM, "Lost", None),
    (CLAIMED_A_THIRD_TIME, OF_SECOND_CLAIM, "Lost", None),
];

/// A newer message of the requester denies the request.
const DENYING_MESSAGES: &[Rows] = &[
    (DENIABLE, &[Claim(Requester, 1)], "Granted(1)", Some(Claimed(Requester, 59, 1, 1, 69))),
    (DENIABLE, &[Deny(Requester)], "Denied", Some(Denied(Requester, 59))),
    (DENIABLE, &[Supersede], "()", Some(Denied(Message, 59))),
    (DENIABLE, &[Lapse], "Rejected(AlreadyDecided)", Some(Denied(Message, 59))),
    (DENIABLE_PAST_EXPIRY, &[Supersede], "()", Some(Expired)),
    (DENIABLE_PAST_EXPIRY, &[Lapse], "Rejected(Expired)", Some(Expired)),
    (DENIED_BEFORE, CLAIMS, "Rejected(AlreadyDecided)", None),
    (DENIED_BEFORE, DENIALS, "Denied", None),
    (DENIED_BEFORE, &[Supersede], "()", None),
    (DENIED_BEFORE, &[Lapse], "Rejected(AlreadyDecided)", None),
];

const CLAIMS: &[Rule] = &[Claim(Requester, 1), Claim(Requester, 2), Claim(Other, 2)];
const DENIALS: &[Rule] = &[Deny(Requester), Deny(Other)];
const DECISIONS: &[Rule] =
    &[Claim(Requester, 1), Claim(Requester, 2), Claim(Other, 2), Deny(Requester), Deny(Other)];
/// The requester approved the call. It approves the call once more.
const REPEATED_CLAIMS: &[Rule] = &[Claim(Requester, 1), Claim(Requester, 2)];
/// The requester approved the call. Another principal approves it, or it is denied.
const OTHER_DECISIONS: &[Rule] = &[Claim(Other, 2), Deny(Requester), Deny(Other)];
const OF_FIRST_CLAIM: &[Rule] = &[Renew(1), Complete(1, "a"), Complete(1, "b")];
const OF_SECOND_CLAIM: &[Rule] = &[Renew(2), Complete(2, "a")];
const OF_LEASE_HOLDERS: &[Rule] =
    &[Renew(1), Renew(2), Complete(1, "a"), Complete(1, "b"), Complete(2, "a")];

const PENDING: Given = Given::new("pending", Pending, 59);
const EDITABLE: Given = Given { name: "pending, editable", editable: true, ..PENDING };
const PAST_EXPIRY: Given = Given::new("pending, past its expiry", Pending, 60);
const DENIABLE: Given =
    Given { name: "pending, denied by a message", on_new_message: OnNewMessage::Deny, ..PENDING };
const DENIABLE_PAST_EXPIRY: Given = Given {
    name: "pending, denied by a message, past its expiry",
    on_new_message: OnNewMessage::Deny,
    ..PAST_EXPIRY
};
const DENIED_BEFORE: Given = Given {
    on_new_message: OnNewMessage::Deny,
    ..Given::new("denied by a message", Denied(Message, 10), 20)
};
const DENIED: Given = Given::new("denied", Denied(Requester, 10), 20);
const EXPIRED: Given = Given::new("expired", Expired, 70);
const REVOKED: Given = Given::new("revoked", Revoked(10), 20);
const SUPERSEDED: Given = Given::new("superseded", Superseded(10), 20);
const LAPSED: Given = Given::new("lapsed", Lapsed(Requester, 10), 20);
const CLAIMED: Given = Given::new("claimed", Claimed(Requester, 10, 1, 1, 20), 19);
const CHANGED: Given = Given {
    name: "claimed with a changed input",
    state: Claimed(Editor, 10, 1, 1, 20),
    editable: true,
    ..CLAIMED
};
const ABANDONED: Given = Given { name: "claimed, lease ended", minute: 20, ..CLAIMED };
const IDEMPOTENT: Given =
    Given { name: "claimed, lease ended, idempotent", idempotent: true, ..ABANDONED };
const CLAIMED_AGAIN: Given = Given {
    name: "claimed again",
    state: Claimed(Requester, 10, 2, 2, 30),
    minute: 29,
    ..IDEMPOTENT
};
const LOST_AGAIN: Given = Given { name: "claimed again, lease ended", minute: 30, ..CLAIMED_AGAIN };
const CLAIMED_A_THIRD_TIME: Given = Given {
    name: "claimed a third time",
    state: Claimed(Requester, 10, 1, 3, 40),
    minute: 39,
    ..IDEMPOTENT
};
const BY_PROVIDER: Given =
    Given { name: "claimed, lease ended, by provider", provider_executed: true, ..ABANDONED };
const GRANTED: Given = Given {
    name: "granted, not sent to the provider",
    state: Granted(Requester, 10),
    ..BY_PROVIDER
};
const COMPLETED: Given = Given::new("completed", Completed(Requester, 10, 1, "a", 15), 20);
const UNKNOWN: Given = Given::new("outcome unknown", OutcomeUnknown(Requester, 10), 30);

/// A record, and the minute at which a rule is applied to it. Minutes are counted from the approval
/// request, which expires in minute 60.
#[derive(Debug, Clone, Copy)]
struct Given {
    name: &'static str,
    state: State,
    minute: u64,
    idempotent: bool,
    provider_executed: bool,
    editable: bool,
    on_new_message: OnNewMessage,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Pending,
    /// The decider, and the minute of the decision.
    Denied(By, u64),
    Expired,
    /// The minute of the message.
    Superseded(u64),
    /// The decider, and the minute of the decision.
    Lapsed(By, u64),
    /// The minute of the revocation.
    Revoked(u64),
    /// The decider, and the minute of the decision.
    Granted(By, u64),
    /// The decider, the minute of the decision, the lease holder, the fence, and the minute at
    /// which the lease ends.
    Claimed(By, u64, u8, u64, u64),
    /// The decider, the minute of the decision, the fence, the outcome, and the minute at which the
    /// outcome was stored.
    Completed(By, u64, u64, &'static str, u64),
    /// The decider, and the minute of the decision.
    OutcomeUnknown(By, u64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    /// The principal that approves, and the lease holder.
    Claim(By, u8),
    Deny(By),
    /// The fence.
    Renew(u64),
    /// The fence, and the outcome.
    Complete(u64, &'static str),
    Revoke,
    Expire,
    /// An approval of the requester.
    Lapse,
    Supersede,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Requester,
    Other,
    /// The requester, with a changed input.
    Editor,
    /// The requester, who sent a message instead of an answer.
    Message,
}

pub(super) fn cases() -> Vec<Case> {
    let case = |row: Row| {
        let (given, rule, output, after) = row;
        let next = after.map_or("does not change".to_owned(), |state| format!("becomes {state:?}"));
        let name = format!("{}, {rule:?}: says {output}, {next}", given.name);
        Case::new(name, move |store| run(store, row))
    };
    rows().map(case).collect()
}

fn rows() -> impl Iterator<Item = Row> {
    [TABLE, CHANGED_INPUTS, LATER_ATTEMPTS, DENYING_MESSAGES].into_iter().flat_map(rows_of)
}

fn rows_of(table: &'static [Rows]) -> impl Iterator<Item = Row> {
    table.iter().flat_map(|&(given, rules, output, after)| {
        rules.iter().map(move |rule| (given, *rule, output, after))
    })
}

async fn run(store: Store, (given, rule, output, after): Row) -> Result<(), CaseFailure> {
    let store = &*store;
    let pending = given.pending_record(now(store).await?);
    insert(store, &pending).await?;
    update(store, pending.id, |record, _| given.state.transition(record, ())).await?;
    let before = load_one(store, pending.id).await?;
    expect_equal("the state before", &before.record.state, &given.state.of(&pending))?;
    check_listed(store, &before.record).await?;

    // The rule gets the time of the row and not the time of the store, so that no case has to wait.
    let updated = update(store, pending.id, |record, _| rule.apply(record, given.minute)).await?;
    let (record, said) = updated.ok_or_else(|| CaseFailure("the record is gone".to_owned()))?;
    expect_equal("the answer", &*said, output)?;
    expect_equal("the state", &record.state, &after.unwrap_or(given.state).of(&pending))?;
    let read = load_one(store, pending.id).await?;
    expect_equal("the record as it is read afterwards", &read.record, &record)?;
    if before.record != record && before.revision == read.revision {
        return Err(CaseFailure("the record changed, its revision did not".to_owned()));
    }
    check_listed(store, &record).await
}

impl Given {
    const fn new(name: &'static str, state: State, minute: u64) -> Self {
        let idempotent = false;
        let provider_executed = false;
        let editable = false;
        let on_new_message = OnNewMessage::Lapse;
        Given { name, state, minute, idempotent, provider_executed, editable, on_new_message }
    }

    /// Returns a new record, which is still pending.
    fn pending_record(&self, now: UnixMillis) -> ApprovalRecord {
        let record = new_record(&new_principal(), &new_chat_id(), now);
        let Given { idempotent, provider_executed, on_new_message, .. } = *self;
        let editable =
            if self.editable { EditableInput::Everything } else { EditableInput::Nothing };
        ApprovalRecord { idempotent, provider_executed, editable, on_new_message, ..record }
    }
}

impl State {
    /// Returns this state of a record.
    fn of(self, record: &ApprovalRecord) -> ApprovalState {
        let minute = |minute| minute_of(record, minute);
        match self {
            Pending => ApprovalState::Pending,
            Denied(by, at) => ApprovalState::Denied { decision: by.decision(record, at) },
            Expired => ApprovalState::Expired,
            Superseded(at) => ApprovalState::Superseded { at: minute(at) },
            Lapsed(by, at) => ApprovalState::Lapsed { decision: by.decision(record, at) },
            Revoked(at) => {
                ApprovalState::Revoked { cause: RevocationReason::ByHost, at: minute(at) }
            }
            Granted(by, at) => ApprovalState::Granted { decision: by.decision(record, at) },
            Claimed(by, at, holder, fence, until) => ApprovalState::Claimed {
                decision: by.decision(record, at),
                lease_holder: lease_holder(holder),
                fence,
                lease_until: minute(until),
            },
            Completed(by, decided, fence, outcome, at) => ApprovalState::Completed {
                decision: by.decision(record, decided),
                fence,
                outcome: tool_outcome(outcome),
                at: minute(at),
            },
            OutcomeUnknown(by, at) => {
                ApprovalState::OutcomeUnknown { decision: by.decision(record, at) }
            }
        }
    }

    /// Returns the transition of a record to this state.
    fn transition<T>(self, record: &ApprovalRecord, output: T) -> Transition<T> {
        let next = ApprovalRecord { state: self.of(record), ..record.clone() };
        Transition { output, next: Some(next) }
    }
}

impl Rule {
    fn apply(self, record: &ApprovalRecord, minute: u64) -> Transition<String> {
        let now = minute_of(record, minute);
        let claim = |fence| approval::Claim { record: record.id, fence };
        match self {
            Claim(by, holder) => {
                let decision = by.decision(record, minute);
                decided(record, record.claim(&decision, lease_holder(holder), LEASE), now)
            }
            Deny(by) => decided(record, record.deny(&by.decision(record, minute)), now),
            Renew(fence) => printed(record.renew(&claim(fence), LEASE, now)),
            Complete(fence, outcome) => {
                printed(record.complete(&claim(fence), &tool_outcome(outcome), now))
            }
            Revoke => printed(record.revoke(RevocationReason::ByHost, now)),
            Expire => printed(record.expire(now)),
            Lapse => decided(record, record.lapse(&Requester.decision(record, minute)), now),
            Supersede => printed(record.supersede(now)),
        }
    }
}

/// Prints the output, because the rules have outputs of different types.
fn printed<T: Debug>(Transition { output, next }: Transition<T>) -> Transition<String> {
    Transition { output: format!("{output:?}"), next }
}

/// Prints what a decision has done. One that counts and is granted no claim is printed as the outcome of the record.
fn decided(
    record: &ApprovalRecord,
    Transition { output, next }: Transition<Stepped>,
    now: UnixMillis,
) -> Transition<String> {
    let outcome = next.as_ref().unwrap_or(record).outcome_at(now);
    let output = match (output, outcome) {
        // The id of the record is random.
        (Stepped::Granted(approval::Claim { fence, .. }), _) => format!("Granted({fence})"),
        (Stepped::Refused(cause), _) => format!("Rejected({cause:?})"),
        (Stepped::Counts, Some(DeferredOutcome::Executing { .. })) => "InFlight".to_owned(),
        (Stepped::Counts, Some(DeferredOutcome::ForwardedToProvider)) => "InFlight".to_owned(),
        (Stepped::Counts, Some(DeferredOutcome::Executed { outcome })) => {
            format!("Completed({outcome:?})")
        }
        (Stepped::Counts, Some(DeferredOutcome::Denied { .. })) => "Denied".to_owned(),
        (Stepped::Counts, outcome) => {
            outcome.map_or_else(String::new, |outcome| format!("{outcome:?}"))
        }
    };
    Transition { output, next }
}

impl By {
    fn decision(self, record: &ApprovalRecord, minute: u64) -> RecordedDecision {
        RecordedDecision {
            decided_by: match self {
                Requester | Editor | Message => record.requester.clone(),
                Other => Principal::new("another person"),
            },
            decided_at: minute_of(record, minute),
            reason: Some(match self {
                Message => UserText::DeniedByMessage.to_string(),
                _ => "because of \"this\"\n".to_owned(),
            }),
            changed_input: (self == Editor).then(|| Json::string("changed")),
        }
    }
}

fn minute_of(record: &ApprovalRecord, minute: u64) -> UnixMillis {
    record.requested_at.after(Duration::from_secs(60 * minute))
}

fn lease_holder(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

fn tool_outcome(text: &str) -> ToolOutcome {
    ToolOutcome::Failed(text.to_owned())
}

const LEASE: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_follow_the_table() {
        for (given, rule, output, after) in rows() {
            let mut before = given.pending_record(UnixMillis(1_000));
            before.state = given.state.of(&before);
            let expected = match after {
                Some(state) => state.transition(&before, output.to_owned()),
                None => Transition { output: output.to_owned(), next: None },
            };
            assert_eq!(rule.apply(&before, given.minute), expected, "{}, {rule:?}", given.name);
        }
    }

    #[test]
    fn the_table_holds_each_rule_once_for_each_record() {
        let all = [DECISIONS, OF_LEASE_HOLDERS, &[Revoke, Expire, Lapse, Supersede]].concat();
        for (given, ..) in TABLE {
            let rules = rows_of(TABLE).filter(|row| row.0.name == given.name).map(|row| row.1);
            let rules: Vec<Rule> = rules.collect();
            assert_eq!(rules.len(), all.len(), "{}", given.name);
            assert!(all.iter().all(|rule| rules.contains(rule)), "{}", given.name);
        }
    }
}
