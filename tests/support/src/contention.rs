//! Sixteen claimants approve the same calls at once, each on its own thread.

use std::fmt;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use ui_message_stream::approval::store::{LedgerStore, LedgerStoreError, PendingLimits, update};
use ui_message_stream::approval::{
    ApprovalRecord, DeferredOutcome, DefinitionDigest, KeyRing, LeaseHolderId, LeaseResult,
    NewApprovalRequest, OnNewMessage, Principal, RecordId, RecordedDecision, Stepped, ToolOutcome,
    UnixMillis,
};
use ui_message_stream::{BoxFuture, Json};

/// The results of all claimants.
#[derive(Debug)]
pub struct Tally {
    approvals: usize,
    in_flight: usize,
    done: usize,
    took: Duration,
}

/// The result of one lease_holder for one approval.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ClaimAttempt {
    Granted,
    InFlight,
    Completed,
}

/// Lets every lease_holder claim every approval, each through its own ledger. The lease_holder whose claim
/// is granted completes the approval. Fails unless each approval is granted to exactly one lease_holder
/// and all others get `InFlight` or `Completed`.
pub fn race(approvals: usize, ledger: impl AsyncFn() -> Arc<dyn LedgerStore> + Sync) -> Tally {
    let started = Instant::now();
    let ids: Vec<RecordId> = (0..approvals).map(id).collect();
    let start = Barrier::new(CONTENDERS);
    let attempts: Vec<Vec<Result<ClaimAttempt, String>>> = thread::scope(|scope| {
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
        for attempts in &attempts {
            assert!(attempts[at].is_ok(), "approval {id}: {:?}", attempts[at]);
        }
        let got = |what| attempts.iter().filter(|attempts| attempts[at] == Ok(what)).count();
        assert_eq!(got(ClaimAttempt::Granted), 1, "approval {id}");
        tally.in_flight += got(ClaimAttempt::InFlight);
        tally.done += got(ClaimAttempt::Completed);
    }
    tally
}

/// Claims all approvals for one lease_holder. Returns errors instead of panicking, because a panic
/// would leave the other claimants waiting at the barrier.
async fn contend(
    ledger: &dyn LedgerStore,
    ids: &[RecordId],
    number: usize,
    start: &Barrier,
) -> Vec<Result<ClaimAttempt, String>> {
    let mut got = Vec::new();
    // The claimants wait for each other regularly, so that they stay close together.
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

async fn claim(
    ledger: &dyn LedgerStore,
    id: RecordId,
    number: usize,
) -> Result<ClaimAttempt, String> {
    let lease = Duration::from_secs(60 * 60);
    let claimed = claim_for(ledger, id, number.try_into().unwrap(), lease).await;
    match claimed.map(|claimed| claimed.map(|(record, stepped)| (record.outcome(), stepped))) {
        Ok(Some((Some(DeferredOutcome::Executing { .. }), Stepped::Counts))) => {
            Ok(ClaimAttempt::InFlight)
        }
        Ok(Some((Some(DeferredOutcome::Executed { .. }), Stepped::Counts))) => {
            Ok(ClaimAttempt::Completed)
        }
        Ok(Some((_, Stepped::Granted(claim)))) => {
            let outcome =
                ToolOutcome::Output(Json::from_serialize(&json!({"ran for": number})).unwrap());
            let completed =
                update(ledger, id, |record, now| record.complete(&claim, &outcome, now));
            match completed.await {
                Ok(Some((_, LeaseResult::Stored))) => Ok(ClaimAttempt::Granted),
                other => Err(format!("{other:?}")),
            }
        }
        other => Err(format!("{other:?}")),
    }
}

/// Claims an approval for the lease holder with this number.
pub async fn claim_for(
    ledger: &dyn LedgerStore,
    id: RecordId,
    holder: u8,
    lease: Duration,
) -> Result<Option<(ApprovalRecord, Stepped)>, LedgerStoreError> {
    let holder = LeaseHolderId::from_bytes([holder; 16]);
    let claim = |record: &ApprovalRecord, now| {
        let decision = RecordedDecision::new(record.requester.clone(), now);
        record.claim(&decision, holder, lease)
    };
    update(ledger, id, claim).await
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

/// Creates a pending approval with this id.
pub fn record(id: RecordId) -> ApprovalRecord {
    let request = NewApprovalRequest {
        requester: Principal::new("ada"),
        chat_id: "chat".into(),
        message_id: "m1".into(),
        tool_call_id: "call_1".into(),
        tool_name: "delete_file".into(),
        definition: DefinitionDigest::new("delete_file", "deletes a file", &Json::null()),
        input: Json::from_serialize(&json!({"path": "notes.txt"})).unwrap(),
        provider_executed: false,
        idempotent: false,
        on_new_message: OnNewMessage::default(),
        decided_by_others: false,
        description: None,
        editable: Default::default(),
        approval_ttl: Duration::from_secs(60 * 60),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = UnixMillis(now.as_millis().try_into().unwrap());
    request.into_record(&KeyRing::new(1, &crate::secret(7)).unwrap(), id, now).unwrap()
}

fn block_on<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(run)
}

const CONTENDERS: usize = 16;
const BETWEEN_STARTS: usize = 10;

/// Inserts one record without limits.
pub trait InsertOne {
    /// Returns whether the store says that the record is stored.
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>>;
}

impl<S: LedgerStore + ?Sized> InsertOne for S {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let inserted = self.insert_all(std::slice::from_ref(record), PendingLimits::NONE);
            Ok(inserted.await?.stored == 1)
        })
    }
}
