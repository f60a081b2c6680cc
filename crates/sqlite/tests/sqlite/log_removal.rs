//! What is removed of the logs of chats leaves no rows, and readers are woken by it.

use std::time::Duration;

use bytes::Bytes;
use test_support::contention::{self, InsertOne};
use tokio::time::{sleep, timeout};
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream::chat::chat_log::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, ListLogs, ListedChat, LiveRunChange,
    LoadLog, LoadedLog, LogHead, LogKey, LogStore, PutSnapshot, ReadLogEntries, StoredEntry,
    UserLimits,
};
use ui_message_stream::id::RunId;
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::{Folder, at};

fn key(owner: &str, chat: &str) -> LogKey {
    LogKey { owner: Principal::new(owner), chat: chat.into() }
}

fn frames(count: usize) -> Vec<StoredEntry> {
    let frame = StoredEntry { kind: EntryKind::Frame, bytes: Bytes::from_static(b"frame") };
    vec![frame; count]
}

static CONTROL: [StoredEntry; 1] =
    [StoredEntry { kind: EntryKind::Control, bytes: Bytes::from_static(b"control") }];
const EPOCH: Epoch = Epoch(7);
const LIMITS: UserLimits = UserLimits { chats: 10, runs: 10, unread: Duration::from_secs(30) };

/// An append of entries that changes nothing else.
fn plain<'a>(key: &'a LogKey, expected: Expected, entries: &'a [StoredEntry]) -> AppendLog<'a> {
    AppendLog {
        key,
        expected,
        entries,
        lease: None,
        only_lost: false,
        live_run: LiveRunChange::None,
        listed: None,
        keep_for: None,
        limits: LIMITS,
    }
}

fn at_position(position: u64) -> Expected {
    Expected::Position { epoch: EPOCH, position }
}

async fn appended(store: &SqliteStore, append: AppendLog<'_>) -> LogHead {
    match LogStore::append(store, append).await.unwrap() {
        AppendResult::Appended { head, .. } => head,
        result => panic!("{result:?}"),
    }
}

/// Creates a log with one control entry, and a run that begins with it and has a lease of a minute.
async fn created(store: &SqliteStore, key: &LogKey) -> LogHead {
    let run = RunId::from("run".to_owned());
    let create = AppendLog {
        lease: Some(Duration::from_secs(60)),
        live_run: LiveRunChange::Begins(&run),
        listed: Some(ListedChat { title: "Title", has_questions: true }),
        ..plain(key, Expected::NoLog(EPOCH), &CONTROL)
    };
    appended(store, create).await
}

async fn loaded(store: &SqliteStore, key: &LogKey) -> Option<LoadedLog> {
    let load = LoadLog { key, has_frames: true, has_messages: true };
    LogStore::load(store, load).await.unwrap()
}

fn snapshot<'a>(key: &'a LogKey, position: u64, changed: &'a [String]) -> PutSnapshot<'a> {
    PutSnapshot { key, epoch: EPOCH, position, head: "{}", unchanged: None, changed }
}

const TABLES: [&str; 6] =
    ["logs", "log_entries", "log_snapshots", "log_messages", "log_ended_runs", "removed_logs"];

#[tokio::test]
async fn a_reader_is_woken_by_this_store_and_by_another_one_on_the_file() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let key = key("ada", "chat");
    created(&writer, &key).await;
    let changed = async |store: &SqliteStore, length| {
        timeout(Duration::from_secs(10), LogStore::changed(store, &key, length)).await.unwrap();
    };
    let is_ready = async |store: &SqliteStore, length| {
        let waited = timeout(Duration::from_millis(500), LogStore::changed(store, &key, length));
        waited.await.is_ok()
    };
    changed(&reader, 0).await;
    changed(&writer, 0).await;
    assert!(!is_ready(&reader, 1).await && !is_ready(&writer, 1).await);
    let entries = frames(1);
    for position in 1..4 {
        let append = async {
            sleep(Duration::from_millis(20)).await;
            appended(&writer, plain(&key, at_position(position), &entries)).await;
        };
        tokio::join!(append, changed(&writer, position), changed(&reader, position));
    }
    let delete = async {
        sleep(Duration::from_millis(20)).await;
        assert!(LogStore::delete(&writer, &key, EPOCH, 1).await.unwrap());
    };
    tokio::join!(delete, changed(&writer, 4), changed(&reader, 4));
    let other = Expected::NoLog(Epoch(8));
    let create = async {
        sleep(Duration::from_millis(20)).await;
        appended(&writer, plain(&key, other, &entries)).await;
    };
    // Without a log, the wait ends at once.
    tokio::join!(create, changed(&writer, 4), changed(&reader, 4));
}

#[tokio::test]
async fn a_removed_log_leaves_no_rows_however_long_it_is() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let (ada, bob) = (key("ada", "chat"), key("bob", "chat"));
    let removals = async |number: u64| match number {
        0 => assert!(LogStore::delete(&store, &ada, EPOCH, 2).await.unwrap()),
        1 => assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 1),
        2 => assert_eq!(store.delete_user(&ada.owner).await.unwrap().chats, 1),
        _ => {
            store.set_test_time(at(10));
            // Its time has passed. A new log takes its place before the sweep.
            assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 0);
            created(&store, &ada).await;
            assert_eq!(loaded(&store, &ada).await.unwrap().entries.len(), 1);
            assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 1);
            store.sweep().await.unwrap();
        }
    };
    for number in 0..4 {
        created(&store, &ada).await;
        let entries = frames(1_700);
        appended(&store, plain(&ada, at_position(1), &entries)).await;
        let end = AppendLog {
            live_run: LiveRunChange::Ends,
            keep_for: Some(Duration::from_secs(10)),
            ..plain(&ada, at_position(1_701), &CONTROL)
        };
        appended(&store, end).await;
        let messages = vec!["message".to_owned(); 600];
        assert!(store.put_snapshot(snapshot(&ada, 3, &messages)).await.unwrap());
        created(&store, &bob).await;
        removals(number).await;
        assert_eq!(loaded(&store, &ada).await, None);
        assert_eq!(loaded(&store, &bob).await.unwrap().head.length, 1);
        assert!(LogStore::delete(&store, &bob, EPOCH, 1).await.unwrap());
        for table in TABLES {
            assert_eq!(folder.count(table), 0, "{table}");
        }
    }
}

#[tokio::test]
async fn a_sweep_removes_logs_whose_time_has_passed_and_a_search_does_not_find_them() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    for number in 0..250 {
        let key = key("ada", &number.to_string());
        let create = AppendLog {
            keep_for: Some(Duration::from_secs(10)),
            limits: UserLimits { chats: 250, ..LIMITS },
            ..plain(&key, Expected::NoLog(EPOCH), &CONTROL)
        };
        appended(&store, create).await;
    }
    store.set_test_time(at(10));
    let list = ListLogs { limit: 9, after: None, search: None };
    let ada = Principal::new("ada");
    assert_eq!(LogStore::list(&store, &ada, list).await.unwrap().chats, []);
    // They take no place.
    created(&store, &key("ada", "new")).await;
    store.sweep().await.unwrap();
    assert_eq!((folder.count("logs"), folder.count("log_entries")), (1, 1));
    assert_eq!(folder.count("removed_logs"), 0);
}

#[tokio::test]
async fn entries_before_the_snapshot_are_removed_ten_minutes_after_the_end_of_their_run() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let key = key("ada", "chat");
    created(&store, &key).await;
    let entries = frames(1_300);
    appended(&store, plain(&key, at_position(1), &entries)).await;
    assert!(store.put_snapshot(snapshot(&key, 1_200, &[])).await.unwrap());
    let stored = async || {
        LogStore::sweep(&store).await.unwrap();
        let page = |position| {
            let (epoch, max_bytes) = (EPOCH, usize::MAX);
            ReadLogEntries { key: &key, epoch, position, max_bytes, is_reader: false }
        };
        for position in [0, 1_199, 1_200] {
            if let Some(page) = LogStore::read(&store, page(position)).await.unwrap() {
                return (position, page.entries.len());
            }
        }
        panic!("no entries");
    };
    // The run is live.
    assert_eq!(stored().await, (0, 1_301));
    store.set_test_time(at(1));
    let ends = |position| AppendLog {
        live_run: LiveRunChange::Ends,
        ..plain(&key, at_position(position), &[])
    };
    appended(&store, ends(1_301)).await;
    store.set_test_time(at(600));
    assert_eq!(stored().await, (0, 1_301));
    store.set_test_time(at(601));
    assert_eq!(stored().await, (1_200, 101));
    assert_eq!(folder.count("log_ended_runs"), 0);
    let log = loaded(&store, &key).await.unwrap();
    assert_eq!((log.head.length, log.entries.len(), log.entries[0].0), (1_301, 101, 1_200));
}

#[tokio::test]
async fn a_run_that_goes_on_in_a_log_of_a_deleted_user_requests_no_approval() {
    let folder = Folder::new();
    let store = folder.open().await;
    let request = |chat: &str, number| {
        let mut record = contention::record(RecordId::from_bytes([number; 16]));
        record.chat_id = chat.into();
        record
    };
    let (old, new) = (key("ada", "old"), key("ada", "new"));
    created(&store, &old).await;
    assert!(store.insert(&request("old", 1)).await.unwrap());
    let deleted = store.delete_user(&old.owner).await.unwrap();
    assert_eq!((deleted.chats, deleted.approvals), (1, 1));
    created(&store, &new).await;
    assert!(store.insert(&request("old", 2)).await.is_err());
    assert!(store.insert(&request("new", 3)).await.unwrap());
}
