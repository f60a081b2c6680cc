//! Two processes claim the same approvals.

use std::collections::BTreeSet;
use std::time::Duration;

use chat_test_support::kill_trials::block_on;
use test_support::contention::{self, InsertOne};
use test_support::kills::{Backend, Process, Role};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{ApprovalState, DeferredOutcome, RecordId, Stepped};
use ui_message_stream_sqlite::SqliteStore;

use crate::file::File;

pub(crate) fn of_two_processes_that_claim_an_approval_one_is_granted_the_claim() -> String {
    let file = File::new();
    block_on(async {
        let store = file.store().await;
        for id in ids() {
            assert!(store.insert(&contention::record(id)).await.unwrap());
        }
    });
    let processes = [0, 1].map(|number| Process::start("claim", number, &file));
    processes.into_iter().for_each(Process::finish);
    let journal = file.journal();
    let by_process = [0, 1].map(|number| journal.after(&format!("granted {number}")).len());
    let granted = journal.after("granted").into_iter();
    let granted: BTreeSet<String> = granted.map(|line| line[2..].to_owned()).collect();
    let count = ids().count();
    assert_eq!((granted.len(), by_process[0] + by_process[1]), (count, count), "{granted:?}");
    assert_eq!(journal.after("in flight").len(), count);
    block_on(async {
        let ids: Vec<RecordId> = ids().collect();
        let records = LedgerStore::load(&*file.store().await, &ids).await.unwrap().records;
        assert_eq!(records.len(), ids.len());
        for stored in records {
            assert!(matches!(stored.record.state, ApprovalState::Claimed { .. }));
        }
    });
    file.check();
    format!("{count} approvals, one winner each; granted to each process: {by_process:?}")
}

/// In the process: claims each approval.
pub(crate) async fn claim_all(role: &Role, store: &SqliteStore) {
    for (at, id) in ids().enumerate() {
        // They wait for each other regularly, so that they stay close together.
        if at % BETWEEN_STARTS == 0 {
            role.journal.meet(&format!("meet at {at}"), 2);
        }
        let lease = Duration::from_secs(3_600);
        let claimed = contention::claim_for(store, id, role.number as u8 + 1, lease).await;
        let (record, stepped) = claimed.unwrap().unwrap();
        let what = match (stepped, record.outcome()) {
            (Stepped::Granted(_), _) => "granted",
            (Stepped::Counts, Some(DeferredOutcome::Executing { .. })) => "in flight",
            other => panic!("{other:?}"),
        };
        role.journal.write(format!("{what} {} {id}", role.number));
    }
}

fn ids() -> impl Iterator<Item = RecordId> {
    (1..=250).map(|number: u8| RecordId::from_bytes([number; 16]))
}

const BETWEEN_STARTS: usize = 5;
