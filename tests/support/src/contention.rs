//! Sixteen who say yes to the same approvals at once, each on a thread of its own.

use std::fmt;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use ui_message_stream::Json;
use ui_message_stream::approval::{
    ApprovalRecord, ClaimAnswer, ClaimantAnswer, ClaimantId, Decision, DefinitionDigest, KeyRing,
    Principal, Question, RecordId, ToolOutcome, UnixMillis,
};
use ui_message_stream::ledger_store::{LedgerStore, change};

/// What the contenders got.
#[derive(Debug)]
pub struct Tally {
    approvals: usize,
    in_flight: usize,
    done: usize,
    took: Duration,
}

/// What one contender got for one approval.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Got {
    Won,
    InFlight,
    Done,
}

/// Has every contender claim every approval, through a ledger of its own; whoever wins completes it.
/// Fails unless each approval is won by exactly one, and all others are told that it is in flight or
/// done.
pub fn race(approvals: usize, ledger: impl AsyncFn() -> Arc<dyn LedgerStore> + Sync) -> Tally {
    let started = Instant::now();
    let ids: Vec<RecordId> = (0..approvals).map(id).collect();
    let start = Barrier::new(CONTENDERS);
    let answers: Vec<Vec<Result<Got, String>>> = thread::scope(|scope| {
        let contenders: Vec<_> = (0..CONTENDERS)
            .map(|number| {
                let (ids, ledger, start) = (&ids, &ledger, &start);
                scope.spawn(move || {
                    block_on(async { contend(&*ledger().await, ids, number, start).await })
                })
            })
            .collect();
        contenders.into_iter().map(|contender| contender.join().unwrap()).collect()
    });
    let mut tally = Tally { approvals, in_flight: 0, done: 0, took: started.elapsed() };
    for (at, id) in ids.iter().enumerate() {
        for answers in &answers {
            assert!(answers[at].is_ok(), "approval {id}: {:?}", answers[at]);
        }
        let got = |what| answers.iter().filter(|answers| answers[at] == Ok(what)).count();
        assert_eq!(got(Got::Won), 1, "approval {id}");
        tally.in_flight += got(Got::InFlight);
        tally.done += got(Got::Done);
    }
    tally
}

/// A failure is an answer too: whoever panicked would leave the others waiting.
async fn contend(
    ledger: &dyn LedgerStore,
    ids: &[RecordId],
    number: usize,
    start: &Barrier,
) -> Vec<Result<Got, String>> {
    let mut got = Vec::new();
    // They wait for each other now and then, so that they stay close together.
    for ids in ids.chunks(BETWEEN_STARTS) {
        let mut inserted = Vec::new();
        if number == 0 {
            for id in ids {
                inserted.push(ledger.insert(&record(*id)).await);
            }
        }
        start.wait();
        for id in ids {
            got.push(claim(ledger, *id, number).await);
        }
        if !inserted.iter().all(|inserted| matches!(inserted, Ok(true))) {
            got.pop();
            got.push(Err(format!("inserted: {inserted:?}")));
        }
    }
    got
}

async fn claim(ledger: &dyn LedgerStore, id: RecordId, number: usize) -> Result<Got, String> {
    let mut claimant = [0; 16];
    claimant[0] = number.try_into().unwrap();
    let claimed = change(ledger, id, |record, now| {
        let approved_by = record.requester.clone();
        let decision = Decision { approved_by, responded_at: now, reason: None };
        record.claim(&decision, ClaimantId::from_bytes(claimant), Duration::from_secs(60 * 60))
    });
    match claimed.await {
        Ok(Some((_, ClaimAnswer::InFlight))) => Ok(Got::InFlight),
        Ok(Some((_, ClaimAnswer::Done(_)))) => Ok(Got::Done),
        Ok(Some((_, ClaimAnswer::Won(claim)))) => {
            let outcome = ToolOutcome::Output(Json::of(&json!({"ran for": number})).unwrap());
            let completed =
                change(ledger, id, |record, now| record.complete(&claim, &outcome, now));
            match completed.await {
                Ok(Some((_, ClaimantAnswer::Stored))) => Ok(Got::Won),
                other => Err(format!("{other:?}")),
            }
        }
        other => Err(format!("{other:?}")),
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { approvals, in_flight, done, took } = self;
        write!(
            f,
            "{approvals} approvals, one winner each; the others were told {in_flight} times that \
             it is in flight, {done} times that it is done; {:.1} s",
            took.as_secs_f64()
        )
    }
}

fn id(number: usize) -> RecordId {
    RecordId::from_bytes((number as u128).to_be_bytes())
}

/// An approval that waits, with this id.
pub fn record(id: RecordId) -> ApprovalRecord {
    let question = Question {
        requester: Principal::new("ada"),
        chat_id: "chat".into(),
        message_id: "m1".into(),
        tool_call_id: "call_1".into(),
        tool_name: "delete_file".into(),
        definition: DefinitionDigest::of("delete_file", "deletes a file", &Json::null()),
        input: Json::of(&json!({"path": "notes.txt"})).unwrap(),
        provider_executed: false,
        idempotent: false,
        description: None,
        time_to_answer: Duration::from_secs(60 * 60),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = UnixMillis(now.as_millis().try_into().unwrap());
    question.into_record(&KeyRing::new(1, &[7; 32]).unwrap(), id, now).unwrap()
}

fn block_on<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(run)
}

const CONTENDERS: usize = 16;
const BETWEEN_STARTS: usize = 10;
