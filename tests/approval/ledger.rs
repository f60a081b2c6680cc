//! The transitions of an approval record against a small model of them, in every order of up to six
//! operations of three actors.
//!
//! The model is written from the specification: a record is inserted as pending; the first of an
//! approval, a denial, a revocation, a newer message and the expiry decides; an approval that arrives
//! with a newer message lapses; any other approval is a claim with a fence and a lease; a claim ends with its outcome or, once its lease is over, with an unknown outcome,
//! unless the tool is idempotent: then the next approval starts the next attempt. The model stores
//! a history instead of a state machine, and derives the result for each actor from it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ui_message_stream::Json;
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, Claim, DeferredOutcome, DefinitionDigest, KeyRing,
    LeaseHolderId, LeaseResult, NewApprovalRequest, OnNewMessage, Principal, RecordId,
    RecordedDecision, RejectionReason, RevocationReason, Stepped, ToolOutcome, Transition,
    UnixMillis,
};

/// The actors: two requests of one user, and one request of another user who may decide as well.
const ACTORS: [(&str, u8); 3] = [("ada", 1), ("ada", 2), ("bob", 3)];
const START: u64 = 1_000_000;
const TO_ANSWER: u64 = 100;
const LEASE: u64 = 30;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    /// By an actor.
    Claim(usize),
    Deny(usize),
    Renew(usize),
    Complete(usize),
    /// With another outcome.
    Fail(usize),
    /// With the first claim that the actor was granted, which may be outdated.
    CompleteLate(usize),
    /// An approval that arrives with a newer message of the user.
    Lapse(usize),
    /// A newer message of the user arrives without a response.
    Supersede,
    /// By the host.
    Revoke,
    Expire,
    /// Time passes: less than a lease, exactly a lease, or the whole time to answer.
    Wait(u64),
}

fn operations() -> Vec<Operation> {
    let mut all = vec![Operation::Revoke, Operation::Supersede, Operation::Expire];
    all.extend([LEASE - 1, LEASE, TO_ANSWER].map(Operation::Wait));
    for actor in 0..ACTORS.len() {
        use Operation::{Claim, Complete, CompleteLate, Deny, Fail, Lapse, Renew};
        all.extend([Claim, Lapse, Deny, Renew, Complete, Fail, CompleteLate].map(|by| by(actor)));
    }
    all
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq)]
enum OperationResult {
    Granted(u64),
    InFlight,
    /// Whose outcome, and whether it is a failure.
    Completed(usize, bool),
    Unknown,
    Expired,
    Revoked,
    Superseded,
    Lapsed,
    AlreadyDecided,
    Denied,
    Stored,
    Lost,
    Closed(bool),
    Nothing,
}

/// A state change, and its time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Denied,
    Revoked,
    Superseded,
    Lapsed,
    Expired,
    Claimed { by: usize, until: u64 },
    Renewed { until: u64 },
    Completed { by: usize, failed: bool },
    OutcomeUnknown,
}

/// The history of one record, and the claims of each actor.
#[derive(Debug, Clone)]
struct Model {
    changes: Vec<Change>,
    now: u64,
    idempotent: bool,
    /// The numbers of the attempts that each actor was granted.
    held: [Vec<u64>; 3],
}

impl Model {
    fn attempts(&self) -> u64 {
        self.changes.iter().filter(|change| matches!(change, Change::Claimed { .. })).count() as u64
    }

    /// The actor of the first approval.
    fn first_approver(&self) -> Option<usize> {
        self.changes.iter().find_map(|change| match change {
            Change::Claimed { by, .. } => Some(*by),
            _ => None,
        })
    }

    /// The end of the current lease, if the call is claimed.
    fn running(&self) -> Option<u64> {
        match self.changes.last() {
            Some(Change::Claimed { until, .. } | Change::Renewed { until }) => Some(*until),
            _ => None,
        }
    }

    fn is_lease_over(&self) -> bool {
        self.running().is_some_and(|until| until <= self.now)
    }

    /// Marks a pending record as expired if its time is over.
    fn expire_if_due(&mut self) {
        if self.changes.is_empty() && START + TO_ANSWER <= self.now {
            self.changes.push(Change::Expired);
        }
    }

    fn apply(&mut self, operation: Operation) -> OperationResult {
        match operation {
            Operation::Wait(time) => {
                self.now += time;
                OperationResult::Nothing
            }
            Operation::Claim(by) => {
                self.expire_if_due();
                self.claim(by)
            }
            Operation::Deny(_) => {
                self.expire_if_due();
                match self.changes.first() {
                    None => {
                        self.changes.push(Change::Denied);
                        OperationResult::Denied
                    }
                    Some(Change::Denied) => OperationResult::Denied,
                    Some(Change::Expired) => OperationResult::Expired,
                    Some(Change::Revoked) => OperationResult::Revoked,
                    Some(Change::Superseded) => OperationResult::Superseded,
                    Some(_) => OperationResult::AlreadyDecided,
                }
            }
            Operation::Lapse(_) => {
                self.expire_if_due();
                match self.changes.first() {
                    None => {
                        self.changes.push(Change::Lapsed);
                        OperationResult::Lapsed
                    }
                    Some(Change::Expired) => OperationResult::Expired,
                    Some(_) => OperationResult::AlreadyDecided,
                }
            }
            Operation::Supersede => {
                self.expire_if_due();
                if self.changes.is_empty() {
                    self.changes.push(Change::Superseded);
                }
                OperationResult::Nothing
            }
            Operation::Revoke => {
                self.expire_if_due();
                if self.changes.is_empty() {
                    self.changes.push(Change::Revoked);
                    return OperationResult::Closed(true);
                }
                if self.is_lease_over() {
                    self.changes.push(Change::OutcomeUnknown);
                }
                OperationResult::Closed(false)
            }
            Operation::Expire => {
                self.expire_if_due();
                if self.is_lease_over() && !self.idempotent {
                    self.changes.push(Change::OutcomeUnknown);
                }
                OperationResult::Nothing
            }
            Operation::Renew(by) => {
                if self.running().is_none() || !self.holds(self.held[by].last()) {
                    return OperationResult::Lost;
                }
                self.changes.push(Change::Renewed { until: self.now + LEASE });
                OperationResult::Stored
            }
            Operation::Complete(by) => self.complete(self.held[by].last().copied(), by, false),
            Operation::Fail(by) => self.complete(self.held[by].last().copied(), by, true),
            Operation::CompleteLate(by) => self.complete(self.held[by].first().copied(), by, false),
        }
    }

    /// Whether this is the number of the last attempt.
    fn holds(&self, attempt: Option<&u64>) -> bool {
        attempt == Some(&self.attempts())
    }

    fn complete(&mut self, attempt: Option<u64>, by: usize, failed: bool) -> OperationResult {
        let done = Change::Completed { by, failed };
        if !self.holds(attempt.as_ref()) {
            return OperationResult::Lost;
        }
        if self.running().is_some() {
            self.changes.push(done);
            return OperationResult::Stored;
        }
        // Completing twice with the same outcome succeeds.
        if self.changes.last() == Some(&done) {
            OperationResult::Stored
        } else {
            OperationResult::Lost
        }
    }

    fn claim(&mut self, by: usize) -> OperationResult {
        match self.changes.first() {
            None => {}
            Some(Change::Denied) => return OperationResult::AlreadyDecided,
            Some(Change::Expired) => return OperationResult::Expired,
            Some(Change::Revoked) => return OperationResult::Revoked,
            Some(Change::Superseded) => return OperationResult::Superseded,
            Some(Change::Lapsed) => return OperationResult::Lapsed,
            Some(_) => {}
        }
        if self.first_approver().is_some_and(|first| ACTORS[first].0 != ACTORS[by].0) {
            return OperationResult::AlreadyDecided;
        }
        match self.changes.last() {
            Some(Change::Completed { by, failed }) => {
                return OperationResult::Completed(*by, *failed);
            }
            Some(Change::OutcomeUnknown) => return OperationResult::Unknown,
            _ => {}
        }
        if self.running().is_some() && !self.is_lease_over() {
            return match self.holds(self.held[by].last()) {
                true => OperationResult::Granted(self.attempts()),
                false => OperationResult::InFlight,
            };
        }
        if self.is_lease_over() && !self.idempotent {
            self.changes.push(Change::OutcomeUnknown);
            return OperationResult::Unknown;
        }
        self.changes.push(Change::Claimed { by, until: self.now + LEASE });
        self.held[by].push(self.attempts());
        OperationResult::Granted(self.attempts())
    }

    /// The name of the current state.
    fn state_name(&self) -> &'static str {
        match self.changes.last() {
            None => "pending",
            Some(Change::Denied) => "denied",
            Some(Change::Revoked) => "revoked",
            Some(Change::Superseded) => "superseded",
            Some(Change::Lapsed) => "lapsed",
            Some(Change::Expired) => "expired",
            Some(Change::Claimed { .. } | Change::Renewed { .. }) => "claimed",
            Some(Change::Completed { .. }) => "done",
            Some(Change::OutcomeUnknown) => "unknown",
        }
    }
}

/// The record under test, stored as a ledger store would store it.
#[derive(Debug, Clone)]
struct Ledger {
    record: ApprovalRecord,
    now: u64,
    claims: [Vec<Claim>; 3],
}

impl Ledger {
    fn store<T>(&mut self, transition: Transition<T>) -> T {
        if let Some(next) = transition.next {
            self.record = next;
        }
        transition.output
    }

    fn apply(&mut self, operation: Operation) -> OperationResult {
        let (now, lease) = (UnixMillis(self.now), Duration::from_millis(LEASE));
        let decision = |actor: usize| RecordedDecision::new(Principal::new(ACTORS[actor].0), now);
        match operation {
            Operation::Wait(time) => {
                self.now += time;
                OperationResult::Nothing
            }
            Operation::Claim(by) => {
                let lease_holder = LeaseHolderId::from_bytes([ACTORS[by].1; 16]);
                let stepped = self.store(self.record.claim(&decision(by), lease_holder, lease));
                match (stepped, self.record.outcome_at(now)) {
                    (Stepped::Granted(claim), _) => {
                        assert_eq!(claim.idempotency_key(), self.record.id);
                        let fence = claim.fence;
                        if self.claims[by].last() != Some(&claim) {
                            self.claims[by].push(claim);
                        }
                        OperationResult::Granted(fence)
                    }
                    (Stepped::Refused(cause), _) => rejected(cause),
                    (Stepped::Counts, Some(outcome)) => match outcome {
                        DeferredOutcome::Executing { .. } => OperationResult::InFlight,
                        DeferredOutcome::Executed { outcome: ToolOutcome::Output(output) } => {
                            OperationResult::Completed(output.decode().unwrap(), false)
                        }
                        DeferredOutcome::Executed { outcome: ToolOutcome::Failed(by) } => {
                            OperationResult::Completed(by.parse().unwrap(), true)
                        }
                        DeferredOutcome::OutcomeUnknown => OperationResult::Unknown,
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                }
            }
            Operation::Deny(by) => match self.store(self.record.deny(&decision(by))) {
                Stepped::Counts => OperationResult::Denied,
                Stepped::Refused(cause) => rejected(cause),
                other => panic!("{other:?}"),
            },
            Operation::Lapse(by) => match self.store(self.record.lapse(&decision(by))) {
                Stepped::Refused(cause) => rejected(cause),
                other => panic!("{other:?}"),
            },
            Operation::Supersede => {
                self.store(self.record.supersede(now));
                OperationResult::Nothing
            }
            Operation::Revoke => OperationResult::Closed(
                self.store(self.record.revoke(RevocationReason::ByHost, now)),
            ),
            Operation::Expire => {
                self.store(self.record.expire(now));
                OperationResult::Nothing
            }
            Operation::Renew(by) => match self.claims[by].last() {
                Some(claim) => lease_result(self.store(self.record.renew(claim, lease, now))),
                None => OperationResult::Lost,
            },
            Operation::Complete(by) => self.complete(self.claims[by].last().cloned(), output(by)),
            Operation::CompleteLate(by) => {
                self.complete(self.claims[by].first().cloned(), output(by))
            }
            Operation::Fail(by) => {
                let failed = ToolOutcome::Failed(by.to_string());
                self.complete(self.claims[by].last().cloned(), failed)
            }
        }
    }

    fn complete(&mut self, claim: Option<Claim>, outcome: ToolOutcome) -> OperationResult {
        let Some(claim) = claim else { return OperationResult::Lost };
        lease_result(self.store(self.record.complete(&claim, &outcome, UnixMillis(self.now))))
    }

    fn state_name(&self) -> &'static str {
        match self.record.state {
            ApprovalState::Pending => "pending",
            ApprovalState::Denied { .. } => "denied",
            ApprovalState::Expired => "expired",
            ApprovalState::Revoked { .. } => "revoked",
            ApprovalState::Superseded { .. } => "superseded",
            ApprovalState::Lapsed { .. } => "lapsed",
            ApprovalState::Claimed { .. } => "claimed",
            ApprovalState::Completed { .. } => "done",
            ApprovalState::OutcomeUnknown { .. } => "unknown",
            ref other => panic!("{other:?}"),
        }
    }
}

fn output(by: usize) -> ToolOutcome {
    ToolOutcome::Output(Json::from_serialize(&by).unwrap())
}

fn rejected(cause: RejectionReason) -> OperationResult {
    match cause {
        RejectionReason::Expired => OperationResult::Expired,
        RejectionReason::Revoked(RevocationReason::ByHost) => OperationResult::Revoked,
        RejectionReason::Superseded => OperationResult::Superseded,
        RejectionReason::Lapsed => OperationResult::Lapsed,
        RejectionReason::AlreadyDecided => OperationResult::AlreadyDecided,
        other => panic!("{other:?}"),
    }
}

fn lease_result(answer: LeaseResult) -> OperationResult {
    match answer {
        LeaseResult::Stored => OperationResult::Stored,
        LeaseResult::Lost => OperationResult::Lost,
        other => panic!("{other:?}"),
    }
}

fn issued(idempotent: bool) -> ApprovalRecord {
    let question = NewApprovalRequest {
        requester: Principal::new("ada"),
        chat_id: "chat".into(),
        message_id: "m1".into(),
        tool_call_id: "call_1".into(),
        tool_name: "delete_file".into(),
        definition: DefinitionDigest::new("delete_file", "deletes a file", &Json::null()),
        input: Json::null(),
        provider_executed: false,
        on_new_message: OnNewMessage::default(),
        decided_by_others: false,
        idempotent,
        description: None,
        approval_ttl: Duration::from_millis(TO_ANSWER),
        editable: Default::default(),
    };
    let keys = KeyRing::new(1, &test_support::secret(1)).unwrap();
    question.into_record(&keys, RecordId::from_bytes([7; 16]), UnixMillis(START)).unwrap()
}

/// A state that sequences of operations reach, and the number of those sequences.
struct Reached {
    ledger: Ledger,
    model: Model,
    sequences: u64,
    /// One of those sequences.
    order: Vec<Operation>,
}

/// All inputs of the transitions and of the model.
fn key(ledger: &Ledger, model: &Model) -> String {
    format!("{:?} {:?} {model:?}", ledger.record.state, ledger.claims)
}

/// Applies one operation to both, compares the results, and returns the next state.
fn step(reached: &Reached, operation: Operation) -> Reached {
    let (mut ledger, mut model) = (reached.ledger.clone(), reached.model.clone());
    let mut order = reached.order.clone();
    order.push(operation);
    let before = ledger.state_name();
    let (actual, expected) = (ledger.apply(operation), model.apply(operation));
    assert_eq!(actual, expected, "{order:?}");
    assert_eq!(ledger.state_name(), model.state_name(), "{order:?}");
    if !matches!(before, "pending" | "claimed") {
        assert_eq!(before, ledger.state_name(), "a final state does not change: {order:?}");
    }
    assert!(model.idempotent || model.attempts() <= 1, "{order:?}");
    Reached { ledger, model, sequences: reached.sequences, order }
}

/// Sequences that reach the same state continue alike, so each state is left once for all of them.
#[test]
fn every_sequence_of_six_operations_of_three_actors_agrees_with_the_model() {
    let all = operations();
    for idempotent in [false, true] {
        let ledger = Ledger { record: issued(idempotent), now: START, claims: Default::default() };
        let model = Model { changes: Vec::new(), now: START, idempotent, held: Default::default() };
        let start = Reached { ledger, model, sequences: 1, order: Vec::new() };
        let mut states = HashMap::from([(String::new(), start)]);
        let (mut sequences, mut steps, mut ends, mut most_attempts) = (0, 0, BTreeMap::new(), 0);
        for _ in 0..MOST_OPERATIONS {
            let mut next: HashMap<String, Reached> = HashMap::new();
            for reached in states.values() {
                for &operation in &all {
                    let reached = step(reached, operation);
                    steps += 1;
                    sequences += reached.sequences;
                    most_attempts = most_attempts.max(reached.model.attempts());
                    *ends.entry(reached.model.state_name()).or_insert(0) += reached.sequences;
                    let known = next.entry(key(&reached.ledger, &reached.model));
                    let same = reached.sequences;
                    known.and_modify(|known| known.sequences += same).or_insert(reached);
                }
            }
            states = next;
        }
        println!(
            "idempotent: {idempotent}: {sequences} sequences agree, in {steps} steps: {ends:?}"
        );
        let expected: u64 =
            (1..=MOST_OPERATIONS).map(|length| (all.len() as u64).pow(length)).sum();
        assert_eq!(sequences, expected);
        assert_eq!(most_attempts > 1, idempotent);
        assert_eq!(ends.len(), 9, "every state was reached");
    }
}

const MOST_OPERATIONS: u32 = 6;

#[test]
fn the_record_of_a_provider_executed_call_stays_claimed_after_its_lease() {
    let mut record = issued(false);
    record.provider_executed = true;
    let approval = |at| RecordedDecision::new(Principal::new("ada"), UnixMillis(at));
    let lease = Duration::from_millis(1);
    let (first, second) = (LeaseHolderId::from_bytes([1; 16]), LeaseHolderId::from_bytes([2; 16]));
    let granted = record.claim(&approval(START), first, lease);
    assert!(matches!(granted.output, Stepped::Granted(_)));
    let claimed = granted.next.unwrap();
    let later = START + 1_000_000;
    assert_eq!(claimed.expire(UnixMillis(later)).next, None);
    assert_eq!(claimed.revoke(RevocationReason::NotPermitted, UnixMillis(later)).next, None);
    let claimed_again = claimed.claim(&approval(later), second, lease);
    assert_eq!((claimed_again.output, claimed_again.next), (Stepped::Counts, None));
    let unknown = Some(DeferredOutcome::OutcomeUnknown);
    assert_eq!(claimed.outcome_at(UnixMillis(later)), unknown);
    let claimed_soon = claimed.claim(&approval(START), second, lease);
    assert_eq!((claimed_soon.output, claimed_soon.next), (Stepped::Counts, None));
    let forwarded = Some(DeferredOutcome::ForwardedToProvider);
    assert_eq!(claimed.outcome_at(UnixMillis(START)), forwarded);
}
