//! Logs in SQLite: random operations, servers that append at once, and a file that is opened again.

use std::sync::Arc;
use std::time::Duration;

use test_support::external_processes::say;
use test_support::random_logs;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::chat_log::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, ListedChat, LiveRunChange, LoadLog,
    LoadedLog, LogKey, LogStore, PutSnapshot, StoredEntry, UserLimits, conformance,
};
use ui_message_stream::id::RunId;
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::{Folder, at};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_sqlite_pass_the_conformance_suite() {
    let folder = Folder::new();
    let store = folder.open().await;
    let cases = conformance::check(async || store.clone()).await;
    say(&format!("conformance of logs in SQLite: {cases} cases"));
    assert_eq!(conformance::check(async || folder.open().await).await, cases);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_have_the_same_results_as_in_memory() {
    for seed in 0..20 {
        let folder = Folder::new();
        let store = folder.open_at(0).await;
        let set_time = async |now| store.set_test_time(now);
        random_logs::compare_with_memory(&store, seed, at(0), set_time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_16_stores_on_one_file_that_append_at_once_exactly_one_wins() {
    let (folder, key) = (Folder::new(), key());
    let mut stores = Vec::new();
    for _ in 0..16 {
        stores.push(Arc::new(folder.open().await));
    }
    for round in 0..10 {
        let appends: Vec<_> = stores
            .iter()
            .map(|store| {
                let (store, key) = (Arc::clone(store), key.clone());
                tokio::spawn(async move {
                    let expected = match round {
                        0 => Expected::NoLog(Epoch(1)),
                        _ => Expected::Position { epoch: Epoch(1), position: round },
                    };
                    let entries = [entry(EntryKind::Control, "x")];
                    store.append(append(&key, expected, &entries)).await.unwrap()
                })
            })
            .collect();
        let mut won = 0;
        for append in appends {
            won += u32::from(matches!(append.await.unwrap(), AppendResult::Appended { .. }));
        }
        assert_eq!(won, 1, "round {round}");
    }
}

#[tokio::test]
async fn a_log_is_the_same_after_its_file_was_opened_again() {
    let (folder, key) = (Folder::new(), key());
    let store = folder.open().await;
    let entries = [entry(EntryKind::Control, "begin"), entry(EntryKind::Frame, "a\n\0")];
    let run = RunId::from("run");
    let begin = AppendLog {
        live_run: LiveRunChange::Begins(&run),
        lease: Some(Duration::from_secs(3600)),
        listed: Some(ListedChat { title: "Title", has_questions: true }),
        ..append(&key, Expected::NoLog(Epoch(7)), &entries)
    };
    assert!(matches!(store.append(begin).await.unwrap(), AppendResult::Appended { .. }));
    let put = PutSnapshot {
        key: &key,
        epoch: Epoch(7),
        position: 1,
        head: "{}",
        unchanged: None,
        changed: &["{\"id\":\"m\"}".to_owned()],
    };
    assert!(store.put_snapshot(put).await.unwrap());
    let before = load(&store, &key).await;
    drop(store);
    let mut after = load(&folder.open().await, &key).await;
    after.head.unread = before.head.unread;
    assert_eq!(after, before);
    assert_eq!((after.entries.len(), after.head.length), (1, 2));
}

async fn load(store: &SqliteStore, key: &LogKey) -> LoadedLog {
    let all = LoadLog { key, has_frames: true, has_messages: true };
    LogStore::load(store, all).await.unwrap().unwrap()
}

fn key() -> LogKey {
    LogKey { owner: Principal::new("ada"), chat: "chat".into() }
}

fn entry(kind: EntryKind, text: &'static str) -> StoredEntry {
    StoredEntry { kind, bytes: text.into() }
}

fn append<'a>(key: &'a LogKey, expected: Expected, entries: &'a [StoredEntry]) -> AppendLog<'a> {
    AppendLog {
        key,
        expected,
        entries,
        lease: None,
        only_lost: false,
        live_run: LiveRunChange::None,
        listed: None,
        keep_for: None,
        limits: UserLimits { chats: 100, runs: 100, unread: Duration::MAX },
    }
}
