//! The conformance suite of ledger stores: the in-memory store passes it, and stores with a fault
//! fail it.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::external_processes::{number, say};
use test_support::ledger_double::{LedgerDouble, Operation};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    InMemoryLedger, Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords,
    PendingLimits, RECORD_RETENTION, RecordList, Snapshot, conformance, update,
};
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, DeferredOutcome, LeaseHolderId, Principal, RecordId,
    RecordedDecision, Stepped, UnixMillis,
};

#[tokio::test]
async fn the_in_memory_ledger_passes_the_conformance_suite() {
    let cases = conformance::check(async || InMemoryLedger::new()).await;
    say(&format!("conformance of the ledger in memory: {cases} cases"));
}

/// In this test only the monotonic clock advances. To a ledger that follows the system's clock and
/// never returns an earlier time, a system clock that jumped forward and back stands still as well.
#[tokio::test(start_paused = true)]
async fn requests_and_leases_expire_while_the_clock_of_the_system_stands_still() {
    let ledger = InMemoryLedger::new();
    let start = now(&ledger).await;
    let pending = contention::record(RecordId::from_bytes([1; 16]));
    let running = contention::record(RecordId::from_bytes([2; 16]));
    for record in [&pending, &running] {
        assert!(ledger.insert(record).await.unwrap());
    }
    let claim = async |holder: u8| {
        let claim = |record: &ApprovalRecord, now| {
            let decided_by = record.requester.clone();
            let decision = RecordedDecision::new(decided_by, now);
            record.claim(&decision, LeaseHolderId::from_bytes([holder; 16]), MINUTE)
        };
        let (record, stepped) = update(&ledger, running.id, claim).await.unwrap().unwrap();
        (stepped, record.outcome())
    };
    let expire = async || {
        let expire = |record: &ApprovalRecord, now| record.expire(now);
        update(&ledger, pending.id, expire).await.unwrap().unwrap().0.state
    };
    assert!(matches!(claim(1).await, (Stepped::Granted(_), _)));
    tokio::time::advance(MINUTE / 2).await;
    let executing = DeferredOutcome::Executing { record: running.id };
    assert_eq!(claim(2).await, (Stepped::Counts, Some(executing)));
    assert_eq!(expire().await, ApprovalState::Pending);
    tokio::time::advance(MINUTE).await;
    let unknown = DeferredOutcome::OutcomeUnknown;
    assert_eq!(claim(2).await, (Stepped::Counts, Some(unknown)));
    tokio::time::advance(60 * MINUTE).await;
    assert_eq!(expire().await, ApprovalState::Expired);
    let passed = now(&ledger).await.0 - start.0;
    assert_eq!(passed, u64::try_from((61 * MINUTE + MINUTE / 2).as_millis()).unwrap());
}

#[tokio::test]
async fn the_bytes_of_the_records_of_one_requester_are_bounded() {
    let start = UnixMillis(1_000_000_000_000);
    let ledger = InMemoryLedger::with_test_clock(start).with_max_user_bytes(40_000);
    let record = |number: u8, requester: &str| {
        let mut record = contention::record(RecordId::from_bytes([number; 16]));
        record.requester = Principal::new(requester);
        record.description = "x".repeat(15_000).into();
        (record.requested_at, record.expires_at) = (start, start.after(MINUTE));
        record
    };
    for number in 0..2 {
        assert!(ledger.insert(&record(number, "alice")).await.unwrap());
    }
    // A closed record counts until it is removed.
    let expire = |record: &ApprovalRecord, _| record.expire(start.after(MINUTE));
    update(&ledger, RecordId::from_bytes([0; 16]), expire).await.unwrap().unwrap();
    let error = ledger.insert(&record(2, "alice")).await.unwrap_err();
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        "the approval records of one user have more than 40000 bytes; \
         `InMemoryLedger::with_max_user_bytes` allows more"
    );
    assert!(ledger.insert(&record(3, "bob")).await.unwrap());
    ledger.set_test_time(start.after(RECORD_RETENTION + 2 * MINUTE));
    assert!(ledger.insert(&record(2, "alice")).await.unwrap());
}

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the time of the ledger.
async fn now(ledger: &InMemoryLedger) -> UnixMillis {
    ledger.load(&[]).await.unwrap().now
}

#[test]
fn of_16_concurrent_claims_of_an_approval_one_succeeds() {
    // It yields to other threads between reading and replacing, as a network would.
    let ledger = LedgerDouble::new(|operation| {
        if let Operation::Replace(_) = operation {
            std::thread::yield_now();
        }
        None
    });
    let ledger: Arc<dyn LedgerStore> = Arc::new(ledger);
    let tally = contention::race(number("MEMORY_RACES", 2_000), async || Arc::clone(&ledger));
    say(&format!("the ledger in memory, 16 threads: {tally}"));
}

/// The fault of a store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    ReplacesOnInsertion,
    IgnoresLimits,
    InsertsOneRecord,
    IgnoresRevisions,
    ReportsEveryReplacement,
    StoresMissingRecords,
    LoadsOneRecord,
    MixesLists,
    ListsDecidedRecords,
    ListsNewestFirst,
    ListsExpiredRecords,
    DropsExpiredRecords,
    RunsBackwards,
    Panics,
}

/// A ledger in memory with a fault.
#[derive(Debug)]
struct Faulty {
    inner: InMemoryLedger,
    fault: Fault,
    decided: Mutex<Vec<ApprovalRecord>>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Faulty { inner: InMemoryLedger::new(), fault, decided: Default::default() }
    }

    async fn replace_anyway(&self, record: &ApprovalRecord) -> Result<bool, LedgerStoreError> {
        let Some(stored) = self.inner.load(&[record.id]).await?.records.pop() else {
            return match self.fault {
                Fault::StoresMissingRecords => self.inner.insert(record).await,
                _ => Ok(false),
            };
        };
        self.inner.compare_and_swap(record, stored.revision).await
    }
}

impl LedgerStore for Faulty {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        Box::pin(async move {
            assert!(self.fault != Fault::Panics, "out of order");
            match self.fault {
                Fault::ReplacesOnInsertion => {
                    let inserted = self.inner.insert_all(records, limits).await?;
                    for record in &records[..inserted.stored] {
                        self.replace_anyway(record).await?;
                    }
                    Ok(inserted)
                }
                Fault::IgnoresLimits => self.inner.insert_all(records, PendingLimits::NONE).await,
                Fault::InsertsOneRecord => {
                    let first = &records[..records.len().min(1)];
                    let inserted = self.inner.insert_all(first, limits).await?;
                    Ok(Inserted { stored: inserted.stored * records.len(), ..inserted })
                }
                _ => self.inner.insert_all(records, limits).await,
            }
        })
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            let mut loaded = self.inner.load(ids).await?;
            match self.fault {
                Fault::LoadsOneRecord => loaded.records.truncate(1),
                Fault::DropsExpiredRecords => {
                    loaded.records.retain(|stored| stored.record.expires_at >= loaded.now);
                }
                Fault::RunsBackwards => {
                    loaded.now.0 = 2_000_000_000_000_000 - loaded.now.0;
                }
                _ => {}
            }
            Ok(loaded)
        })
    }

    fn read_list<'a>(
        &'a self,
        of: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        Box::pin(async move {
            let mut listed = match self.fault {
                Fault::MixesLists => {
                    let list = RecordList::pending();
                    self.inner.read_list(ListRecords { list: &list, ..of }).await?
                }
                Fault::ListsExpiredRecords => {
                    let of = ListRecords { later_than_now: false, ..of };
                    self.inner.read_list(of).await?
                }
                _ => self.inner.read_list(of).await?,
            };
            match self.fault {
                Fault::ListsDecidedRecords => {
                    let was_listed = |record: &&ApprovalRecord| {
                        RecordList::places_of(record).iter().any(|place| place.list == *of.list)
                    };
                    let decided = self.decided.lock().unwrap().clone();
                    for record in decided.iter().filter(was_listed) {
                        listed.records.extend(self.inner.load(&[record.id]).await?.records);
                    }
                }
                Fault::ListsNewestFirst => listed.records.reverse(),
                _ => {}
            }
            Ok(listed)
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            self.decided.lock().unwrap().push(record.clone());
            match self.fault {
                Fault::IgnoresRevisions | Fault::StoresMissingRecords => {
                    self.replace_anyway(record).await
                }
                Fault::ReportsEveryReplacement => {
                    self.inner.compare_and_swap(record, revision).await.map(|_| true)
                }
                _ => self.inner.compare_and_swap(record, revision).await,
            }
        })
    }
}

#[tokio::test]
async fn a_store_with_a_fault_fails_the_conformance_case_for_it() {
    for (fault, named) in [
        (
            Fault::ReplacesOnInsertion,
            "a record that is there is not changed by another insertion: ",
        ),
        (Fault::IgnoresLimits, "records are inserted in order up to the limit of the chat: "),
        (Fault::InsertsOneRecord, "three hundred records are inserted at once: "),
        (Fault::IgnoresRevisions, "a swap with an old revision fails: "),
        (Fault::ReportsEveryReplacement, "of several replacements of one revision, one succeeds: "),
        (Fault::StoresMissingRecords, "a record that is not there is not replaced: "),
        (Fault::LoadsOneRecord, "several records are loaded at once and unknown ids are left out"),
        (Fault::MixesLists, "chats of two tenants are kept apart: "),
        (
            Fault::ListsDecidedRecords,
            "pending, Deny(Requester): says Denied, becomes Denied(Requester, 59): ",
        ),
        (
            Fault::ListsNewestFirst,
            "a chat lists its approval requests in the order in which they expire: ",
        ),
        (
            Fault::ListsExpiredRecords,
            "a page that is later than now leaves out what has expired, wherever it begins: ",
        ),
        (Fault::DropsExpiredRecords, "an expired record is kept: "),
        (Fault::RunsBackwards, "the clock does not run backwards: "),
        (Fault::Panics, "out of order"),
    ] {
        let checked = tokio::spawn(conformance::check(async move || Faulty::new(fault))).await;
        let panic_text = checked.expect_err("a fault is found").into_panic();
        let panic_text = panic_text.downcast_ref::<String>().unwrap();
        assert!(panic_text.contains(named), "{fault:?}: {panic_text}");
    }
}
