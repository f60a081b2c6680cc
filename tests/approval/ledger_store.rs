//! What a ledger store promises: kept by the one in memory, and missed in stores that do not.

use std::sync::{Arc, Mutex};

use test_support::contention;
use test_support::external_processes::{number, say};
use ui_message_stream::approval::store::{
    BoxFuture, InMemoryLedger, LedgerStore, LedgerStoreError, PendingFilter, Snapshot, conformance,
};
use ui_message_stream::approval::{ApprovalRecord, Principal, RecordId};

#[tokio::test]
async fn the_ledger_in_memory_passes() {
    let cases = conformance::check(async || InMemoryLedger::new()).await;
    say(&format!("conformance of the ledger in memory: {cases} cases"));
}

#[test]
fn of_16_contenders_for_an_approval_one_wins() {
    let ledger: Arc<dyn LedgerStore> = Arc::new(GivesWay(InMemoryLedger::new()));
    let tally = contention::race(number("MEMORY_RACES", 2_000), async || Arc::clone(&ledger));
    say(&format!("the ledger in memory, 16 threads: {tally}"));
}

/// A ledger in memory that lets other threads come between reading and replacing, as a network would.
#[derive(Debug)]
struct GivesWay(InMemoryLedger);

impl LedgerStore for GivesWay {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        self.0.insert(record)
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        let loaded = self.0.load(ids);
        std::thread::yield_now();
        loaded
    }

    fn pending<'a>(
        &'a self,
        of: PendingFilter<'a>,
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        self.0.pending(of)
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        self.0.compare_and_swap(record, revision)
    }
}

/// What is wrong with a store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    InsertsTwice,
    IgnoresTheRevision,
    SaysThatItReplaced,
    KeepsWhatIsNotThere,
    LoadsOnlyTheFirst,
    MixesTenants,
    ListsWhatIsDecided,
    ListsTheNewestFirst,
    ForgetsWhatHasExpired,
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
        let Some(kept) = self.inner.load(&[record.id]).await?.records.pop() else {
            return match self.fault {
                Fault::KeepsWhatIsNotThere => self.inner.insert(record).await,
                _ => Ok(false),
            };
        };
        self.inner.compare_and_swap(record, kept.revision).await
    }
}

/// The same requester without a tenant, as a store would see it that ignores them.
fn without_tenant(record: &ApprovalRecord) -> ApprovalRecord {
    let mut record = record.clone();
    record.requester = person_without_tenant(&record.requester);
    record
}

fn person_without_tenant(person: &Principal) -> Principal {
    person.id().map_or_else(Principal::anonymous, Principal::new)
}

impl LedgerStore for Faulty {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            assert!(self.fault != Fault::Panics, "out of order");
            match self.fault {
                Fault::MixesTenants => self.inner.insert(&without_tenant(record)).await,
                Fault::InsertsTwice => {
                    Ok(self.inner.insert(record).await? || self.replace_anyway(record).await?)
                }
                _ => self.inner.insert(record).await,
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
                Fault::LoadsOnlyTheFirst => loaded.records.truncate(1),
                Fault::ForgetsWhatHasExpired => {
                    loaded.records.retain(|kept| kept.record.expires_at >= loaded.now);
                }
                Fault::RunsBackwards => {
                    loaded.now.0 = 2_000_000_000_000_000 - loaded.now.0;
                }
                _ => {}
            }
            Ok(loaded)
        })
    }

    fn pending<'a>(
        &'a self,
        of: PendingFilter<'a>,
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            match (self.fault, of) {
                (Fault::MixesTenants, PendingFilter::Chat { chat, .. }) => {
                    self.inner.pending(PendingFilter::Chat { tenant: None, chat }).await
                }
                (Fault::MixesTenants, PendingFilter::Requester(person)) => {
                    self.inner
                        .pending(PendingFilter::Requester(&person_without_tenant(person)))
                        .await
                }
                (Fault::ListsWhatIsDecided, PendingFilter::Requester(person)) => {
                    let mut loaded = self.inner.pending(of).await?;
                    let decided = self.decided.lock().unwrap().clone();
                    for record in decided.iter().filter(|record| record.requester == *person) {
                        loaded.records.extend(self.inner.load(&[record.id]).await?.records);
                    }
                    Ok(loaded)
                }
                (Fault::ListsTheNewestFirst, _) => {
                    let mut loaded = self.inner.pending(of).await?;
                    loaded.records.reverse();
                    Ok(loaded)
                }
                _ => self.inner.pending(of).await,
            }
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
                Fault::IgnoresTheRevision | Fault::KeepsWhatIsNotThere => {
                    self.replace_anyway(record).await
                }
                Fault::SaysThatItReplaced => {
                    self.inner.compare_and_swap(record, revision).await.map(|_| true)
                }
                _ => self.inner.compare_and_swap(record, revision).await,
            }
        })
    }
}

#[tokio::test]
async fn a_store_with_a_fault_fails_the_case_that_names_it() {
    for (fault, named) in [
        (Fault::InsertsTwice, "a record that is there is not inserted again: "),
        (Fault::IgnoresTheRevision, "a revision that is past is not replaced: "),
        (Fault::SaysThatItReplaced, "of several replacements of one revision, one succeeds: "),
        (Fault::KeepsWhatIsNotThere, "a record that is not there is not replaced: "),
        (Fault::LoadsOnlyTheFirst, "many are read at once, and those that are not there left out"),
        (Fault::MixesTenants, "chats of two tenants are kept apart: "),
        (
            Fault::ListsWhatIsDecided,
            "pending, Deny(Requester): says Denied, becomes Denied(Requester, 59): ",
        ),
        (Fault::ListsTheNewestFirst, "a chat lists its questions, the oldest first: "),
        (Fault::ForgetsWhatHasExpired, "what has expired is kept: "),
        (Fault::RunsBackwards, "the clock does not run backwards: "),
        (Fault::Panics, "out of order"),
    ] {
        let checked = tokio::spawn(conformance::check(async move || Faulty::new(fault))).await;
        let said = checked.expect_err("a fault is found").into_panic();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains(named), "{fault:?}: {said}");
    }
}
