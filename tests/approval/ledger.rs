//! The ledger's rules against a small model of them, in every order of up to six operations of
//! three actors.
//!
//! The model is written from the specification: a question is issued pending; the first of a yes,
//! a no, taking back and the end of its time decides; a yes is a claim with a fence and a lease;
//! a claim ends with its outcome or, once its lease is over, in not knowing, unless the tool is
//! idempotent: then the next yes is the next attempt. It keeps a history instead of a state machine,
//! and says what each actor is to be told from that.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ui_message_stream::Json;
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, Claim, ClaimResult, DefinitionDigest, DenyResult, KeyRing,
    LeaseHolderId, LeaseResult, NewApprovalRequest, Principal, RecordId, RecordedDecision,
    RejectionReason, RevocationReason, ToolOutcome, Transition, UnixMillis,
};

/// Who acts: two requests of one person, and one of somebody else who may decide as well.
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
    /// With the first claim that the actor won, perhaps long ago.
    CompleteLate(usize),
    /// By the host.
    Revoke,
    Expire,
    /// Time passes: less than a lease, just a lease, or all the time to answer.
    Wait(u64),
}

fn operations() -> Vec<Operation> {
    let mut all = vec![Operation::Revoke, Operation::Expire];
    all.extend([LEASE - 1, LEASE, TO_ANSWER].map(Operation::Wait));
    for actor in 0..ACTORS.len() {
        use Operation::{Claim, Complete, CompleteLate, Deny, Fail, Renew};
        all.extend([Claim, Deny, Renew, Complete, Fail, CompleteLate].map(|by| by(actor)));
    }
    all
}

/// What somebody is told.
#[derive(Debug, Clone, PartialEq)]
enum ToolError {
    Won(u64),
    InFlight,
    /// Whose outcome, and whether it is a failure.
    Done(usize, bool),
    Unknown,
    TooLate,
    TakenBack,
    Decided,
    Denied,
    Stored,
    Lost,
    Closed(bool),
    Nothing,
}

/// What happened that counts, and when.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Deed {
    Denied,
    TakenBack,
    TimeOver,
    Claimed { by: usize, until: u64 },
    Renewed { until: u64 },
    Done { by: usize, failed: bool },
    GivenUp,
}

/// The history of one question, and what each actor was given.
#[derive(Debug, Clone)]
struct Model {
    deeds: Vec<Deed>,
    now: u64,
    idempotent: bool,
    /// The numbers of the attempts that each actor won.
    held: [Vec<u64>; 3],
}

impl Model {
    fn attempts(&self) -> u64 {
        self.deeds.iter().filter(|deed| matches!(deed, Deed::Claimed { .. })).count() as u64
    }

    /// Who said the first yes.
    fn first_yes(&self) -> Option<usize> {
        self.deeds.iter().find_map(|deed| match deed {
            Deed::Claimed { by, .. } => Some(*by),
            _ => None,
        })
    }

    /// Whether somebody has the call, and until when they are taken to be alive.
    fn running(&self) -> Option<u64> {
        match self.deeds.last() {
            Some(Deed::Claimed { until, .. } | Deed::Renewed { until }) => Some(*until),
            _ => None,
        }
    }

    fn is_lapsed(&self) -> bool {
        self.running().is_some_and(|until| until <= self.now)
    }

    /// An unanswered question whose time is over is that from now on.
    fn look_at_the_clock(&mut self) {
        if self.deeds.is_empty() && START + TO_ANSWER <= self.now {
            self.deeds.push(Deed::TimeOver);
        }
    }

    fn apply(&mut self, operation: Operation) -> ToolError {
        match operation {
            Operation::Wait(time) => {
                self.now += time;
                ToolError::Nothing
            }
            Operation::Claim(by) => {
                self.look_at_the_clock();
                self.claim(by)
            }
            Operation::Deny(_) => {
                self.look_at_the_clock();
                match self.deeds.first() {
                    None => {
                        self.deeds.push(Deed::Denied);
                        ToolError::Denied
                    }
                    Some(Deed::Denied) => ToolError::Denied,
                    Some(Deed::TimeOver) => ToolError::TooLate,
                    Some(Deed::TakenBack) => ToolError::TakenBack,
                    Some(_) => ToolError::Decided,
                }
            }
            Operation::Revoke => {
                self.look_at_the_clock();
                if self.deeds.is_empty() {
                    self.deeds.push(Deed::TakenBack);
                    return ToolError::Closed(true);
                }
                if self.is_lapsed() {
                    self.deeds.push(Deed::GivenUp);
                }
                ToolError::Closed(false)
            }
            Operation::Expire => {
                self.look_at_the_clock();
                if self.is_lapsed() && !self.idempotent {
                    self.deeds.push(Deed::GivenUp);
                }
                ToolError::Nothing
            }
            Operation::Renew(by) => {
                if self.running().is_none() || !self.holds(self.held[by].last()) {
                    return ToolError::Lost;
                }
                self.deeds.push(Deed::Renewed { until: self.now + LEASE });
                ToolError::Stored
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

    fn complete(&mut self, attempt: Option<u64>, by: usize, failed: bool) -> ToolError {
        let done = Deed::Done { by, failed };
        if !self.holds(attempt.as_ref()) {
            return ToolError::Lost;
        }
        if self.running().is_some() {
            self.deeds.push(done);
            return ToolError::Stored;
        }
        // Said twice it is said once.
        if self.deeds.last() == Some(&done) { ToolError::Stored } else { ToolError::Lost }
    }

    fn claim(&mut self, by: usize) -> ToolError {
        match self.deeds.first() {
            None => {}
            Some(Deed::Denied) => return ToolError::Decided,
            Some(Deed::TimeOver) => return ToolError::TooLate,
            Some(Deed::TakenBack) => return ToolError::TakenBack,
            Some(_) => {}
        }
        if self.first_yes().is_some_and(|first| ACTORS[first].0 != ACTORS[by].0) {
            return ToolError::Decided;
        }
        match self.deeds.last() {
            Some(Deed::Done { by, failed }) => return ToolError::Done(*by, *failed),
            Some(Deed::GivenUp) => return ToolError::Unknown,
            _ => {}
        }
        if self.running().is_some() && !self.is_lapsed() {
            return match self.holds(self.held[by].last()) {
                true => ToolError::Won(self.attempts()),
                false => ToolError::InFlight,
            };
        }
        if self.is_lapsed() && !self.idempotent {
            self.deeds.push(Deed::GivenUp);
            return ToolError::Unknown;
        }
        self.deeds.push(Deed::Claimed { by, until: self.now + LEASE });
        self.held[by].push(self.attempts());
        ToolError::Won(self.attempts())
    }

    /// What is to be seen of it.
    fn looks_like(&self) -> &'static str {
        match self.deeds.last() {
            None => "pending",
            Some(Deed::Denied) => "denied",
            Some(Deed::TakenBack) => "revoked",
            Some(Deed::TimeOver) => "expired",
            Some(Deed::Claimed { .. } | Deed::Renewed { .. }) => "claimed",
            Some(Deed::Done { .. }) => "done",
            Some(Deed::GivenUp) => "unknown",
        }
    }
}

/// The rules, as a store would keep what they say.
#[derive(Debug, Clone)]
struct Ledger {
    record: ApprovalRecord,
    now: u64,
    claims: [Vec<Claim>; 3],
}

impl Ledger {
    fn keep<T>(&mut self, transition: Transition<T>) -> T {
        if let Some(next) = transition.next {
            self.record = next;
        }
        transition.output
    }

    fn apply(&mut self, operation: Operation) -> ToolError {
        let (now, lease) = (UnixMillis(self.now), Duration::from_millis(LEASE));
        let decision = |actor: usize| RecordedDecision {
            decided_by: Principal::new(ACTORS[actor].0),
            decided_at: now,
            reason: None,
        };
        match operation {
            Operation::Wait(time) => {
                self.now += time;
                ToolError::Nothing
            }
            Operation::Claim(by) => {
                let claimant = LeaseHolderId::from_bytes([ACTORS[by].1; 16]);
                match self.keep(self.record.claim(&decision(by), claimant, lease)) {
                    ClaimResult::Granted(claim) => {
                        assert_eq!(claim.idempotency_key(), self.record.id);
                        let fence = claim.fence;
                        if self.claims[by].last() != Some(&claim) {
                            self.claims[by].push(claim);
                        }
                        ToolError::Won(fence)
                    }
                    ClaimResult::InFlight => ToolError::InFlight,
                    ClaimResult::Completed(ToolOutcome::Output(output)) => {
                        ToolError::Done(output.decode().unwrap(), false)
                    }
                    ClaimResult::Completed(ToolOutcome::Failed(by)) => {
                        ToolError::Done(by.parse().unwrap(), true)
                    }
                    ClaimResult::OutcomeUnknown => ToolError::Unknown,
                    ClaimResult::Refused(cause) => refused(cause),
                    other => panic!("{other:?}"),
                }
            }
            Operation::Deny(by) => match self.keep(self.record.deny(&decision(by))) {
                DenyResult::Denied => ToolError::Denied,
                DenyResult::Refused(cause) => refused(cause),
                other => panic!("{other:?}"),
            },
            Operation::Revoke => {
                ToolError::Closed(self.keep(self.record.revoke(RevocationReason::ByHost, now)))
            }
            Operation::Expire => {
                self.keep(self.record.expire(now));
                ToolError::Nothing
            }
            Operation::Renew(by) => match self.claims[by].last() {
                Some(claim) => claimant(self.keep(self.record.renew(claim, lease, now))),
                None => ToolError::Lost,
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

    fn complete(&mut self, claim: Option<Claim>, outcome: ToolOutcome) -> ToolError {
        let Some(claim) = claim else { return ToolError::Lost };
        claimant(self.keep(self.record.complete(&claim, &outcome, UnixMillis(self.now))))
    }

    fn looks_like(&self) -> &'static str {
        match self.record.state {
            ApprovalState::Pending => "pending",
            ApprovalState::Denied { .. } => "denied",
            ApprovalState::Expired => "expired",
            ApprovalState::Revoked { .. } => "revoked",
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

fn refused(cause: RejectionReason) -> ToolError {
    match cause {
        RejectionReason::Expired => ToolError::TooLate,
        RejectionReason::Revoked(RevocationReason::ByHost) => ToolError::TakenBack,
        RejectionReason::AlreadyDecided => ToolError::Decided,
        other => panic!("{other:?}"),
    }
}

fn claimant(answer: LeaseResult) -> ToolError {
    match answer {
        LeaseResult::Stored => ToolError::Stored,
        LeaseResult::Lost => ToolError::Lost,
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
        idempotent,
        description: None,
        approval_ttl: Duration::from_millis(TO_ANSWER),
    };
    let keys = KeyRing::new(1, &[1; 32]).unwrap();
    question.into_record(&keys, RecordId::from_bytes([7; 16]), UnixMillis(START)).unwrap()
}

/// Where orders have led, and how many of them led there.
struct Place {
    ledger: Ledger,
    model: Model,
    orders: u64,
    /// One of them.
    order: Vec<Operation>,
}

/// All that the rules and the model look at.
fn key(ledger: &Ledger, model: &Model) -> String {
    format!("{:?} {:?} {model:?}", ledger.record.state, ledger.claims)
}

/// Does one thing in both, and says where that leads.
fn step(place: &Place, operation: Operation) -> Place {
    let (mut ledger, mut model) = (place.ledger.clone(), place.model.clone());
    let mut order = place.order.clone();
    order.push(operation);
    let before = ledger.looks_like();
    let (told, expected) = (ledger.apply(operation), model.apply(operation));
    assert_eq!(told, expected, "{order:?}");
    assert_eq!(ledger.looks_like(), model.looks_like(), "{order:?}");
    if !matches!(before, "pending" | "claimed") {
        assert_eq!(before, ledger.looks_like(), "what is final stays: {order:?}");
    }
    assert!(model.idempotent || model.attempts() <= 1, "{order:?}");
    Place { ledger, model, orders: place.orders, order }
}

/// Orders that lead to the same place go on alike, so each place is left once for all of them.
#[test]
fn every_order_of_six_operations_of_three_actors_agrees_with_the_model() {
    let all = operations();
    for idempotent in [false, true] {
        let ledger = Ledger { record: issued(idempotent), now: START, claims: Default::default() };
        let model = Model { deeds: Vec::new(), now: START, idempotent, held: Default::default() };
        let start = Place { ledger, model, orders: 1, order: Vec::new() };
        let mut places = HashMap::from([(String::new(), start)]);
        let (mut orders, mut steps, mut ends, mut most_attempts) = (0, 0, BTreeMap::new(), 0);
        for _ in 0..MOST_OPERATIONS {
            let mut next: HashMap<String, Place> = HashMap::new();
            for place in places.values() {
                for &operation in &all {
                    let place = step(place, operation);
                    steps += 1;
                    orders += place.orders;
                    most_attempts = most_attempts.max(place.model.attempts());
                    *ends.entry(place.model.looks_like()).or_insert(0) += place.orders;
                    let known = next.entry(key(&place.ledger, &place.model));
                    let same = place.orders;
                    known.and_modify(|known| known.orders += same).or_insert(place);
                }
            }
            places = next;
        }
        println!("idempotent: {idempotent}: {orders} orders agree, in {steps} steps: {ends:?}");
        let expected: u64 =
            (1..=MOST_OPERATIONS).map(|length| (all.len() as u64).pow(length)).sum();
        assert_eq!(orders, expected);
        assert_eq!(most_attempts > 1, idempotent);
        assert_eq!(ends.len(), 7, "every state was reached");
    }
}

const MOST_OPERATIONS: u32 = 6;

#[test]
fn what_the_provider_runs_has_no_claimant_that_could_be_gone() {
    let mut record = issued(false);
    record.provider_executed = true;
    let yes = |at| RecordedDecision {
        decided_by: Principal::new("ada"),
        decided_at: UnixMillis(at),
        reason: None,
    };
    let lease = Duration::from_millis(1);
    let (first, second) = (LeaseHolderId::from_bytes([1; 16]), LeaseHolderId::from_bytes([2; 16]));
    let won = record.claim(&yes(START), first, lease);
    assert!(matches!(won.output, ClaimResult::Granted(_)));
    let claimed = won.next.unwrap();
    let later = START + 1_000_000;
    assert_eq!(claimed.expire(UnixMillis(later)).next, None);
    assert_eq!(claimed.revoke(RevocationReason::NotPermitted, UnixMillis(later)).next, None);
    let again = claimed.claim(&yes(later), second, lease);
    assert_eq!((again.output, again.next), (ClaimResult::OutcomeUnknown, None));
    let soon = claimed.claim(&yes(START), second, lease);
    assert_eq!((soon.output, soon.next), (ClaimResult::InFlight, None));
}
