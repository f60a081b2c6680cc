//! What is removed of the logs of chats leaves no rows, and readers are woken by it.

use std::time::Duration;

use chat_test_support::store_requests::{
    EPOCH, append_at, appended, begin, control, creation, end, frame, key as key_of, load, put,
    read_from,
};
use test_support::within_patience;
use tokio::time::timeout;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{
    AppendLog, Epoch, Expected, ListChats, LiveRunChange, LogKey, LogStore, StoredEntry, UserLimits,
};
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::{Folder, at};

fn key(owner: &str, chat: &str) -> LogKey {
    key_of(&Principal::new(owner), chat)
}

fn frames(count: usize) -> Vec<StoredEntry> {
    vec![frame("frame"); count]
}

const TABLES: [&str; 6] =
    ["logs", "log_entries", "log_snapshots", "log_messages", "log_ended_runs", "removed_logs"];

#[tokio::test]
async fn a_reader_is_woken_by_this_store_and_by_another_one_on_the_file() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let key = key("ada", "chat");
    begin(&writer, &key).await;
    let changed = async |store: &SqliteStore, length| {
        within_patience(LogStore::changed(store, &key, length)).await;
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
            appended(&writer, append_at(&key, position, &entries)).await;
        };
        // The readers wait before the append begins.
        tokio::join!(biased; changed(&writer, position), changed(&reader, position), append);
    }
    let delete = async {
        assert!(LogStore::delete(&writer, &key, EPOCH, 1).await.unwrap());
    };
    tokio::join!(biased; changed(&writer, 4), changed(&reader, 4), delete);
    let other = Expected::NoLog(Epoch(8));
    let create = async {
        appended(&writer, AppendLog { expected: other, ..creation(&key, &entries) }).await;
    };
    // Without a log, the wait ends at once.
    tokio::join!(biased; changed(&writer, 4), changed(&reader, 4), create);
}

#[tokio::test]
async fn a_removed_log_leaves_no_rows_however_long_it_is() {
    let (folder, store) = Folder::with_store_at(0).await;
    let (ada, bob) = (key("ada", "chat"), key("bob", "chat"));
    let removals = async |number: u64| match number {
        0 => assert!(LogStore::delete(&store, &ada, EPOCH, 2).await.unwrap()),
        1 => assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 1),
        2 => assert_eq!(store.delete_user(&ada.owner).await.unwrap().chats, 1),
        _ => {
            store.set_test_time(at(10));
            // Its time has passed. A new log takes its place before the sweep.
            assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 0);
            begin(&store, &ada).await;
            assert_eq!(load(&store, &ada).await.unwrap().entries.len(), 1);
            assert_eq!(LogStore::delete_user(&store, &ada.owner).await.unwrap(), 1);
            store.sweep().await.unwrap();
        }
    };
    for number in 0..4 {
        begin(&store, &ada).await;
        let entries = frames(1_700);
        appended(&store, append_at(&ada, 1, &entries)).await;
        let last = [control("end")];
        let end = AppendLog {
            live_run: LiveRunChange::Ends,
            keep_for: Some(Duration::from_secs(10)),
            ..append_at(&ada, 1_701, &last)
        };
        appended(&store, end).await;
        assert!(put(&store, &ada, 3, &["message"; 600]).await);
        begin(&store, &bob).await;
        removals(number).await;
        assert_eq!(load(&store, &ada).await, None);
        assert_eq!(load(&store, &bob).await.unwrap().head.length, 1);
        assert!(LogStore::delete(&store, &bob, EPOCH, 1).await.unwrap());
        for table in TABLES {
            assert_eq!(folder.count(table), 0, "{table}");
        }
    }
}

#[tokio::test]
async fn a_sweep_removes_logs_whose_time_has_passed_and_a_search_does_not_find_them() {
    let (folder, store) = Folder::with_store_at(0).await;
    for number in 0..250 {
        let key = key("ada", &number.to_string());
        let entries = [control("request")];
        let create = AppendLog {
            keep_for: Some(Duration::from_secs(10)),
            limits: UserLimits { chats: 250, runs: 10, unread: Duration::MAX },
            ..creation(&key, &entries)
        };
        appended(&store, create).await;
    }
    store.set_test_time(at(10));
    let list = ListChats { limit: 9, after: None, search: None };
    let ada = Principal::new("ada");
    assert_eq!(LogStore::list(&store, &ada, list).await.unwrap().chats, []);
    // They take no place.
    begin(&store, &key("ada", "new")).await;
    store.sweep().await.unwrap();
    assert_eq!((folder.count("logs"), folder.count("log_entries")), (1, 1));
    assert_eq!(folder.count("removed_logs"), 0);
}

#[tokio::test]
async fn entries_before_the_snapshot_are_removed_ten_minutes_after_the_end_of_their_run() {
    let (folder, store) = Folder::with_store_at(0).await;
    let key = key("ada", "chat");
    begin(&store, &key).await;
    let entries = frames(1_300);
    appended(&store, append_at(&key, 1, &entries)).await;
    assert!(put(&store, &key, 1_200, &[]).await);
    let stored = async || {
        LogStore::sweep(&store).await.unwrap();
        for position in [0, 1_199, 1_200] {
            if let Some(page) = read_from(&store, &key, position).await {
                return (position, page.entries.len());
            }
        }
        panic!("no entries");
    };
    // The run is live.
    assert_eq!(stored().await, (0, 1_301));
    store.set_test_time(at(1));
    end(&store, &key, 1_301).await;
    store.set_test_time(at(600));
    assert_eq!(stored().await, (0, 1_302));
    store.set_test_time(at(601));
    // They are kept until a snapshot covers the whole log.
    assert_eq!(stored().await, (0, 1_302));
    assert!(put(&store, &key, 1_302, &[]).await);
    LogStore::sweep(&store).await.unwrap();
    assert!(read_from(&store, &key, 1_301).await.is_none());
    assert_eq!((folder.count("log_ended_runs"), folder.count("log_entries")), (0, 0));
    let log = load(&store, &key).await.unwrap();
    assert_eq!((log.head.length, log.entries.len()), (1_302, 0));
}
