//! [`Writes`]: processes are killed while they write logs, snapshots and approvals. What was reported as saved
//! survives a kill.

use std::sync::Arc;
use std::time::Duration;

use test_support::contention::{self, InsertOne};
use test_support::kills::{Backend, Journal, Role, Trial, kill_at_random};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{ApprovalState, RecordId, Stepped};
use ui_message_stream_chat::store::{PutSnapshot, StoredEntry, Unchanged};

use super::{Store, ada};
use crate::store_requests::{
    EPOCH, append_at, appended, begin, control, frame, key, load, read_all,
};

pub(super) async fn what_was_reported_as_saved_survives_a_kill(
    backend: &impl Backend<Store: Store>,
) -> String {
    kill_at_random::<_, Writes>(backend).await
}

pub(super) struct Writes;

impl<B: Backend<Store: Store>> Trial<B> for Writes {
    const ROLE: &'static str = "writes";
    const MAX_LINES: usize = 120;

    async fn act(role: Role, store: Arc<B::Store>) {
        write(&role, &*store).await;
    }

    async fn check(store: Arc<B::Store>, journal: Journal, next: u64) -> String {
        let mut reports = 0;
        for process in 0..next {
            let lines = journal.after(&format!("saved {process}"));
            check(&*store, process, &lines).await;
            reports += lines.len();
        }
        format!("{reports} reported writes are all there")
    }
}

/// Checks that what a process has reported is in the store.
async fn check(store: &impl Store, process: u64, lines: &[String]) {
    let key = key(&ada(), &process.to_string());
    // The snapshot and the log grow: the last line about each says more than those before.
    let last = |kind: &str| lines.iter().rfind(|line| line.starts_with(kind));
    let approvals = lines.iter().filter(|line| line.contains("ed "));
    for line in approvals.chain(last("snapshot ")).chain(last("log ")) {
        let (kind, saved) = line.split_once(' ').unwrap();
        match kind {
            "snapshot" => {
                let log = load(store, &key).await.unwrap();
                let snapshot = log.snapshot.unwrap();
                let stored = snapshot.messages.len();
                assert!(stored >= saved.parse().unwrap(), "{line}: {stored}");
                assert_eq!(snapshot.messages, messages(stored), "{line}");
                assert!(snapshot.position <= log.head.length, "{line}");
            }
            "asked" | "claimed" => {
                let id: RecordId = saved.parse().unwrap();
                let stored = LedgerStore::load(store, &[id]).await.unwrap().records.remove(0);
                let is_claimed = matches!(stored.record.state, ApprovalState::Claimed { .. });
                assert!(is_claimed || kind == "asked", "{line}");
            }
            "log" => {
                let entries = read_all(store, &key).await;
                let stored = entries.len();
                assert!(stored >= saved.parse().unwrap(), "{line}: {stored}");
                assert_eq!(entries, (0..stored).map(entry).collect::<Vec<_>>(), "{line}");
            }
            _ => panic!("{line}"),
        }
    }
}

/// In the process: writes, and reports what is written.
async fn write(role: &Role, store: &impl Store) {
    let report = |saved: String| drop(role.journal.write(format!("saved {} {saved}", role.number)));
    let key = key(&ada(), &role.number.to_string());
    begin(store, &key).await;
    let mut length = 1;
    let mut unchanged = None;
    for count in 1.. {
        let (position, messages, epoch) = (length as u64, messages(count), EPOCH);
        let changed = &messages[count - 1..];
        let put = PutSnapshot { key: &key, epoch, position, head: "{}", unchanged, changed };
        assert!(store.put_snapshot(put).await.unwrap());
        report(format!("snapshot {count}"));
        unchanged = Some(Unchanged { position, messages: count });

        let id = (u128::from(role.number) << 64) + count as u128;
        let id = RecordId::of_requester(&ada(), id.to_be_bytes());
        assert!(store.insert(&contention::record(id)).await.unwrap());
        report(format!("asked {id}"));
        let claimed = contention::claim_for(store, id, 1, Duration::from_secs(60)).await;
        assert!(matches!(claimed.unwrap().unwrap().1, Stepped::Granted(_)));
        report(format!("claimed {id}"));

        for _ in 0..5 {
            let entries = [entry(length), entry(length + 1)];
            appended(store, append_at(&key, length as u64, &entries)).await;
            length += 2;
            report(format!("log {length}"));
        }
    }
}

/// The entry at this position: some are frames, and wait for no disk, and some are control entries.
fn entry(position: usize) -> StoredEntry {
    match position {
        0 => control("begin"),
        position if position % 10 == 0 => control(&format!("control {position}")),
        position => frame(&format!("data: {position}\n\n")),
    }
}

fn messages(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("text {at}")).collect()
}
