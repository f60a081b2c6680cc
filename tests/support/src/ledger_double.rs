//! Ledgers in memory whose operations a test counts, lets fail or delays.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use futures::future::ready;
use tokio::task::yield_now;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    InMemoryLedger, Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords,
    PendingLimits, Snapshot,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId};

/// What a ledger returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, LedgerStoreError>>;

/// An operation of a ledger.
#[derive(Debug, Clone, Copy)]
pub enum Operation<'a> {
    /// Inserts these records.
    Insert(&'a [ApprovalRecord]),
    /// Loads the records with these ids.
    Load(&'a [RecordId]),
    /// Reads a list.
    List,
    /// Replaces a record by this one.
    Replace(&'a ApprovalRecord),
}

/// How an operation fails. The text is the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation is not executed.
    NotDone(&'static str),
    /// The operation is executed, and its result is lost.
    Done(&'static str),
}

/// A ledger that calls a function before each operation. The function decides whether the
/// operation fails.
pub struct LedgerDouble<F> {
    ledger: Arc<InMemoryLedger>,
    fault: F,
}

impl<F: Fn(Operation<'_>) -> Option<Fault>> LedgerDouble<F> {
    /// Creates a ledger with a store of its own.
    pub fn new(fault: F) -> Self {
        Self::over(Arc::default(), fault)
    }

    /// Creates a ledger that stores its records in `ledger`.
    pub fn over(ledger: Arc<InMemoryLedger>, fault: F) -> Self {
        LedgerDouble { ledger, fault }
    }

    fn run<'a, T: Send + 'a>(
        &'a self,
        operation: Operation<'_>,
        run: impl FnOnce(&'a InMemoryLedger) -> Answer<'a, T>,
    ) -> Answer<'a, T> {
        match (self.fault)(operation) {
            None => run(&self.ledger),
            Some(Fault::NotDone(error)) => Box::pin(ready(Err(LedgerStoreError::new(error)))),
            Some(Fault::Done(error)) => {
                let run = run(&self.ledger);
                Box::pin(async move { run.await.and(Err(LedgerStoreError::new(error))) })
            }
        }
    }
}

impl<F> Deref for LedgerDouble<F> {
    type Target = InMemoryLedger;

    fn deref(&self) -> &InMemoryLedger {
        &self.ledger
    }
}

impl<F> fmt::Debug for LedgerDouble<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerDouble").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

impl<F> LedgerStore for LedgerDouble<F>
where
    F: Fn(Operation<'_>) -> Option<Fault> + Send + Sync + 'static,
{
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> Answer<'a, Inserted> {
        self.run(Operation::Insert(records), |ledger| ledger.insert_all(records, limits))
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> Answer<'a, Snapshot> {
        self.run(Operation::Load(ids), |ledger| ledger.load(ids))
    }

    fn read_list<'a>(&'a self, of: ListRecords<'a>) -> Answer<'a, ListedRecords> {
        self.run(Operation::List, |ledger| ledger.read_list(of))
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> Answer<'a, bool> {
        self.run(Operation::Replace(record), |ledger| ledger.compare_and_swap(record, revision))
    }
}

/// A ledger behind a network: other tasks run before and after each operation, and the caller may
/// be dropped although the operation took place.
#[derive(Debug)]
pub struct RemoteLedger(pub Arc<InMemoryLedger>);

/// Lets other tasks run before and after an operation.
async fn with_latency<T>(operation: impl Future<Output = T>) -> T {
    yield_now().await;
    let answer = operation.await;
    yield_now().await;
    answer
}

impl LedgerStore for RemoteLedger {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> Answer<'a, Inserted> {
        Box::pin(with_latency(self.0.insert_all(records, limits)))
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> Answer<'a, Snapshot> {
        Box::pin(with_latency(self.0.load(ids)))
    }

    fn read_list<'a>(&'a self, of: ListRecords<'a>) -> Answer<'a, ListedRecords> {
        Box::pin(with_latency(self.0.read_list(of)))
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> Answer<'a, bool> {
        Box::pin(with_latency(self.0.compare_and_swap(record, revision)))
    }
}
