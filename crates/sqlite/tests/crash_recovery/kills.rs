//! A process is killed at a random moment while it writes logs, snapshots and approvals.

use std::time::Duration;
use test_support::contention::InsertOne;

use chat_test_support::store_requests::{
    EPOCH, append_at, appended, begin, control, frame, key, load, read_all,
};
use test_support::contention;
use test_support::external_processes::number;
use ui_message_stream::approval::store::{LedgerStore, update};
use ui_message_stream::approval::{
    ApprovalState, ClaimResult, LeaseHolderId, Principal, RecordId, RecordedDecision,
};
use ui_message_stream_chat::store::{LogStore, PutSnapshot, StoredEntry, Unchanged};
use ui_message_stream_sqlite::SqliteStore;

use crate::process::{Folder, Process, block_on};

pub(crate) fn what_was_reported_as_saved_survives_a_kill() -> String {
    let folder = Folder::new();
    let kills = number("KILLS", 20);
    let mut seen = 0;
    // One process goes on while the other is killed.
    let mut surviving = Process::start("write", &folder);
    for _ in 0..kills {
        let next = Process::start("write", &folder);
        // A process is killed in its first writes, or some while later.
        assert!(next.next_line().is_some() && surviving.next_line().is_some());
        std::thread::sleep(Duration::from_micros(u64::from(random()) * 2));
        let lines = std::mem::replace(&mut surviving, next).kill();
        folder.check_integrity();
        block_on(check(&folder, &lines));
        seen += lines.len();
    }
    let lines = surviving.kill();
    folder.check_integrity();
    block_on(check(&folder, &lines));
    format!("{kills} processes killed, {seen} reported writes are all there, the file is intact")
}

/// Checks that what the process has reported is in the file.
async fn check(folder: &Folder, lines: &[String]) {
    let store = SqliteStore::open(folder.file()).await.unwrap();
    // The snapshot and the log grow: the last line about each says more than those before.
    let last = |kind: &str| lines.iter().rfind(|line| line.starts_with(kind));
    let approvals = lines.iter().filter(|line| line.contains("ed "));
    for line in approvals.chain(last("snapshot ")).chain(last("log ")) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["snapshot", chat, count] => {
                let log = load(&store, &key(&owner(), chat)).await.unwrap();
                let snapshot = log.snapshot.unwrap();
                let stored = snapshot.messages.len();
                assert!(stored >= count.parse().unwrap(), "{line}: {stored}");
                assert_eq!(snapshot.messages, messages(stored), "{line}");
                assert!(snapshot.position <= log.head.length, "{line}");
            }
            [kind @ ("asked" | "claimed"), id] => {
                let id: RecordId = id.parse().unwrap();
                let stored = LedgerStore::load(&store, &[id]).await.unwrap().records.remove(0);
                let is_claimed = matches!(stored.record.state, ApprovalState::Claimed { .. });
                assert!(is_claimed || kind == "asked", "{line}");
            }
            ["log", chat, length] => {
                let entries = read_all(&store, &key(&owner(), chat)).await;
                let stored = entries.len();
                assert!(stored >= length.parse().unwrap(), "{line}: {stored}");
                assert_eq!(entries, (0..stored).map(entry).collect::<Vec<_>>(), "{line}");
            }
            _ => panic!("{line}"),
        }
    }
}

/// In the process: writes until it is killed, and prints what was reported as written.
pub(crate) async fn write(store: SqliteStore) {
    let name = format!("{}-{}", std::process::id(), random());
    let key = key(&owner(), &name);
    begin(&store, &key).await;
    let holder = LeaseHolderId::from_bytes([1; 16]);
    let mut length = 1;
    let mut unchanged = None;
    for count in 1.. {
        let (position, messages) = (length as u64, messages(count));
        let put = PutSnapshot {
            key: &key,
            epoch: EPOCH,
            position,
            head: "{}",
            unchanged,
            changed: &messages[count - 1..],
        };
        assert!(store.put_snapshot(put).await.unwrap());
        println!("snapshot {name} {count}");
        unchanged = Some(Unchanged { position, messages: count });

        let mut id = [0; 16];
        getrandom::fill(&mut id).unwrap();
        let id = RecordId::from_bytes(id);
        assert!(store.insert(&contention::record(id)).await.unwrap());
        println!("asked {id}");
        let claimed = update(&store, id, |record, now| {
            let decided_by = record.requester.clone();
            let decision = RecordedDecision::new(decided_by, now);
            record.claim(&decision, holder, Duration::from_secs(60))
        });
        let claimed = claimed.await.unwrap().unwrap().1;
        assert!(matches!(claimed, ClaimResult::Granted(_)));
        println!("claimed {id}");

        for _ in 0..5 {
            let entries = [entry(length), entry(length + 1)];
            appended(&store, append_at(&key, length as u64, &entries)).await;
            length += 2;
            println!("log {name} {length}");
        }
    }
}

fn owner() -> Principal {
    Principal::new("ada")
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

fn random() -> u16 {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).unwrap();
    u16::from_be_bytes(bytes)
}
