//! Two processes claim the same approvals.

use std::collections::BTreeMap;
use std::time::Duration;
use test_support::contention::InsertOne;

use test_support::contention;
use ui_message_stream::approval::store::{LedgerStore, update};
use ui_message_stream::approval::{
    ApprovalState, ClaimResult, LeaseHolderId, RecordId, RecordedDecision,
};
use ui_message_stream_sqlite::SqliteStore;

use crate::process::{Folder, Process, block_on, wait_for_go};

pub(crate) fn of_two_processes_that_claim_an_approval_one_is_granted_the_claim() -> String {
    let folder = Folder::new();
    block_on(async {
        let store = SqliteStore::open(folder.file()).await.unwrap();
        for id in ids() {
            assert!(store.insert(&contention::record(id)).await.unwrap());
        }
    });
    let mut processes: Vec<Process> = (0..2).map(|_| Process::start("claim", &folder)).collect();
    for process in &processes {
        assert_eq!(process.next_line().as_deref(), Some("ready"));
    }
    // They wait for each other regularly, so that they stay close together.
    for _ in 0..ids().count() / BETWEEN_STARTS {
        processes.iter_mut().for_each(Process::go);
        for process in &processes {
            (0..BETWEEN_STARTS).for_each(|_| drop(process.next_line()));
        }
    }
    let mut granted: BTreeMap<String, usize> = BTreeMap::new();
    let mut by_process = Vec::new();
    for process in processes {
        let lines = process.finish();
        assert_eq!(lines.len(), 1 + ids().count());
        let own = lines.iter().filter_map(|line| line.strip_prefix("granted "));
        let own: Vec<String> = own.map(str::to_owned).collect();
        by_process.push(own.len());
        own.into_iter().for_each(|id| *granted.entry(id).or_default() += 1);
    }
    assert_eq!(granted.len(), ids().count());
    assert!(granted.values().all(|count| *count == 1), "{granted:?}");
    block_on(async {
        let store = SqliteStore::open(folder.file()).await.unwrap();
        let ids: Vec<RecordId> = ids().collect();
        let records = LedgerStore::load(&store, &ids).await.unwrap().records;
        assert_eq!(records.len(), ids.len());
        for stored in records {
            assert!(matches!(stored.record.state, ApprovalState::Claimed { .. }));
        }
    });
    folder.check_integrity();
    format!("{} approvals, one winner each; granted to each process: {by_process:?}", granted.len())
}

/// In the process: claims each approval.
pub(crate) async fn claim_all(store: SqliteStore) {
    println!("ready");
    let mut holder = [0; 16];
    holder[..4].copy_from_slice(&std::process::id().to_be_bytes());
    let holder = LeaseHolderId::from_bytes(holder);
    for (number, id) in ids().enumerate() {
        if number % BETWEEN_STARTS == 0 {
            wait_for_go();
        }
        let claimed = update(&store, id, |record, now| {
            let decided_by = record.requester.clone();
            let decision = RecordedDecision::new(decided_by, now);
            record.claim(&decision, holder, Duration::from_secs(3600))
        });
        match claimed.await.unwrap().unwrap().1 {
            ClaimResult::Granted(_) => println!("granted {id}"),
            ClaimResult::InFlight => println!("in flight {id}"),
            other => panic!("{other:?}"),
        }
    }
}

fn ids() -> impl Iterator<Item = RecordId> {
    (1..=250).map(|number: u8| RecordId::from_bytes([number; 16]))
}

const BETWEEN_STARTS: usize = 5;
