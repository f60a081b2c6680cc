//! [`WatchedLedger`]: the ledger of a process.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use test_support::kills::Role;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits, Snapshot,
};
use ui_message_stream::approval::{ApprovalRecord, ApprovalState, RecordId};

/// A ledger whose time is later than that of its store. It writes who requests approvals, before they are
/// requested, and each renewal of a lease, and has points before and after its writes.
#[derive(Debug)]
pub(super) struct WatchedLedger {
    ledger: Arc<dyn LedgerStore>,
    role: Role,
    claimed: Mutex<HashSet<RecordId>>,
}

impl WatchedLedger {
    pub(super) fn new(ledger: Arc<dyn LedgerStore>, role: Role) -> Self {
        WatchedLedger { ledger, role, claimed: Mutex::default() }
    }

    /// Returns the points before and after this record is written.
    fn points(&self, record: &ApprovalRecord) -> [&'static str; 2] {
        match record.state {
            ApprovalState::Claimed { .. } if self.claimed.lock().unwrap().insert(record.id) => {
                ["before-claim", "after-claim"]
            }
            ApprovalState::Claimed { .. } => ["before-renewal", "after-renewal"],
            ApprovalState::Completed { .. } => ["before-outcome", "after-outcome"],
            _ => ["", ""],
        }
    }
}

impl LedgerStore for WatchedLedger {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        for record in records {
            self.role.journal.write(format!("asks {} {}", self.role.number, record.id));
        }
        self.ledger.insert_all(records, limits)
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            let Snapshot { now, records } = self.ledger.load(ids).await?;
            Ok(Snapshot { now: now.after(self.role.journal.passed_time()), records })
        })
    }

    fn read_list<'a>(
        &'a self,
        list: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        Box::pin(async move {
            let ListedRecords { now, records, next } = self.ledger.read_list(list).await?;
            Ok(ListedRecords { now: now.after(self.role.journal.passed_time()), records, next })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        let [before, after] = self.points(record);
        Box::pin(async move {
            self.role.pass(before).await;
            let replaced = self.ledger.compare_and_swap(record, revision).await?;
            if after == "after-renewal" {
                let Role { journal, number, .. } = &self.role;
                journal.write(format!("renewed {number} {}", record.id));
            }
            self.role.pass(after).await;
            Ok(replaced)
        })
    }
}
