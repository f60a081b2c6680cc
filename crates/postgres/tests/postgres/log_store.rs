//! Logs in Postgres: what is kept for how long, and what one append writes.

use std::time::Duration;

use bytes::Bytes;
use chat_test_support::random_logs;
use test_support::requests::ada;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, ListChats, ListedChat, LiveRunChange,
    LoadLog, LoadedLog, LogHead, LogKey, LogStore, PutSnapshot, ReadLogEntries, ReadMessages,
    StoredEntry, Unchanged, UserLimits,
};
use ui_message_stream_postgres::PostgresStore;

use crate::database::{Database, at as time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_have_the_same_results_as_in_memory() {
    for seed in 0..6 {
        let Some(database) = Database::new() else { return };
        let store = database.open_at(0).await;
        let set_time = async |now: UnixMillis| database.set_time_to(now).await;
        random_logs::compare_with_memory(&store, seed, UnixMillis(time(0)), set_time).await;
    }
}

#[tokio::test]
async fn an_append_of_frames_updates_no_index_of_the_heads() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let key = key("chat");
    let run = RunId::from("run");
    let begin = AppendLog {
        live_run: LiveRunChange::Begins(&run),
        entries: &[control("begin")],
        ..append(&key, Expected::NoLog(Epoch(1)))
    };
    let mut head = appended(&store, begin).await;
    let entries = [frame("a"), frame("b")];
    // The page of the head has room for so many rows, also if another test keeps old ones from being removed.
    for _ in 0..20 {
        let expected = Expected::Position { epoch: Epoch(1), position: head.length };
        let frames = AppendLog { entries: &entries, lease: Some(MINUTE), ..append(&key, expected) };
        head = appended(&store, frames).await;
    }
    // The statistics are written when the sessions end.
    drop(store);
    let cold = "SELECT coalesce(sum(n_tup_upd - n_tup_hot_upd), 99) FROM pg_stat_user_tables \
        WHERE schemaname = current_schema() AND relname = 'logs' AND n_tup_upd = 21";
    let cold = format!("SELECT ({cold})::BIGINT");
    test_support::eventually(async || database.number(&cold).await != 99).await;
    // The append that began the run.
    assert_eq!(database.number(&cold).await, 1);
}

#[tokio::test]
async fn entries_that_no_reader_needs_are_removed_in_steps_up_to_the_snapshot() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let key = key("chat");
    let runs = [RunId::from("first"), RunId::from("second")];
    let begin = |run, expected| AppendLog {
        live_run: LiveRunChange::Begins(run),
        entries: &[],
        lease: Some(MINUTE * 100),
        ..append(&key, expected)
    };
    let head = appended(&store, begin(&runs[0], Expected::NoLog(Epoch(1)))).await;
    let many: Vec<_> = (0..2500).map(|number| frame(&number.to_string())).collect();
    let head = appended(&store, AppendLog { entries: &many, ..append(&key, at(&head)) }).await;
    // The second one ends the first one.
    let head = appended(&store, begin(&runs[1], at(&head))).await;
    let head =
        appended(&store, AppendLog { entries: &[frame("x")], ..append(&key, at(&head)) }).await;
    assert!(put(&store, &key, head.length, None, &["m"]).await);
    let first = async |second| {
        database.set_time(second).await;
        LogStore::sweep(&store).await.unwrap();
        let first = database.number("SELECT first FROM logs").await;
        let stored = "SELECT count(*) - (SELECT length - first FROM logs) FROM log_entries";
        assert_eq!(database.number(stored).await, 0);
        first
    };
    assert_eq!(first(599).await, 0);
    // The second run is live.
    assert_eq!(first(600).await, 2500);
    let ends = AppendLog { live_run: LiveRunChange::Ends, ..append(&key, at(&head)) };
    let _ = appended(&store, ends).await;
    assert_eq!(first(1199).await, 2500);
    assert_eq!(first(1200).await, 2501);
    assert_eq!(database.number("SELECT count(*) FROM log_snapshots WHERE is_trimmed").await, 1);
    assert_eq!(database.count("log_ended_runs").await, 0);
    assert_eq!(read(&store, &key, 2500).await, None);
    assert_eq!(read(&store, &key, 2501).await, Some(vec![]));
    // The next snapshot has new entries before it.
    let head = LogStore::load(&store, all(&key)).await.unwrap().unwrap().head;
    let head =
        appended(&store, AppendLog { entries: &[frame("y")], ..append(&key, at(&head)) }).await;
    assert!(put(&store, &key, head.length, None, &["m"]).await);
    assert_eq!(first(1200).await, 2502);
}

#[tokio::test]
async fn one_sweep_removes_entries_of_more_logs_than_a_statement_and_goes_on_with_a_long_one() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let run = RunId::from("run");
    for chat in 0..25 {
        let key = key(&format!("chat {chat}"));
        let begin = AppendLog {
            live_run: LiveRunChange::Begins(&run),
            entries: &[],
            lease: Some(MINUTE),
            ..append(&key, Expected::NoLog(Epoch(1)))
        };
        let head = appended(&store, begin).await;
        let count = if chat == 2 { 2500 } else { 3 };
        let frames: Vec<_> = (0..count).map(|number| frame(&number.to_string())).collect();
        let ends = AppendLog {
            live_run: LiveRunChange::Ends,
            entries: &frames,
            ..append(&key, at(&head))
        };
        let head = appended(&store, ends).await;
        assert!(put(&store, &key, head.length, None, &["m"]).await);
    }
    assert_eq!(database.count("log_entries").await, 24 * 3 + 2500);
    database.set_time(600).await;
    LogStore::sweep(&store).await.unwrap();
    assert_eq!(database.count("log_entries").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM logs WHERE first < length").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM log_snapshots WHERE NOT is_trimmed").await, 0);
}

#[tokio::test]
async fn a_chat_whose_time_has_passed_is_deleted_for_all_functions_and_later_swept() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let key = key("chat");
    let entries = [control("a")];
    let create = AppendLog {
        entries: &entries,
        keep_for: Some(MINUTE),
        limits: UserLimits { chats: 1, runs: 1, unread: MINUTE },
        ..append(&key, Expected::NoLog(Epoch(1)))
    };
    let head = appended(&store, create).await;
    assert!(put(&store, &key, 1, None, &["m"]).await);
    database.set_time(59).await;
    assert!(load(&store, &key).await.is_some());
    database.set_time(60).await;
    assert_eq!(load(&store, &key).await, None);
    assert_eq!(read(&store, &key, 0).await, None);
    assert_eq!(store.append(append(&key, at(&head))).await.unwrap(), AppendResult::Conflict);
    assert!(!put(&store, &key, 1, None, &["m"]).await);
    assert!(!store.rename(&key, "title").await.unwrap());
    assert!(!store.delete(&key, Epoch(1), 1).await.unwrap());
    assert_eq!(listed(&store, None).await, [""; 0]);
    assert_eq!(database.count("logs").await, 1);
    // The place of the chat is free, and nothing is left of it.
    let head = appended(&store, AppendLog { expected: Expected::NoLog(Epoch(2)), ..create }).await;
    assert_eq!((head.epoch, head.length), (Epoch(2), 1));
    assert_eq!(load(&store, &key).await.unwrap().snapshot, None);
    assert_eq!(database.count("log_messages").await, 0);
    database.set_time(120).await;
    store.sweep().await.unwrap();
    assert_eq!((database.count("logs").await, database.count("log_entries").await), (0, 0));
}

#[tokio::test]
async fn ids_and_titles_of_any_text_are_stored_and_found() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let run = RunId::from("run\0");
    for (chat, title) in [("\0", "Ärger\0\\Über"), ("\0\0", "\\303 ZEBRA"), ("ä", "Äpfel")] {
        let key = key(chat);
        let begin = AppendLog {
            live_run: LiveRunChange::Begins(&run),
            listed: Some(ListedChat { title, has_questions: false }),
            ..append(&key, Expected::NoLog(Epoch((1 << 53) - 1)))
        };
        let head = appended(&store, begin).await;
        assert_eq!((head.live_run, head.epoch.0), (Some(run.clone()), (1 << 53) - 1));
    }
    assert_eq!(listed(&store, Some("\0\\über")).await, [""; 0]);
    assert_eq!(listed(&store, Some("\0\\Über")).await, ["\0"]);
    assert_eq!(listed(&store, Some("\\303 zebrA")).await, ["\0\0"]);
    assert_eq!(listed(&store, Some("303")).await, ["\0\0"]);
    assert_eq!(listed(&store, Some("äPFEL")).await, [""; 0]);
    assert_eq!(listed(&store, Some("ÄPFEL")).await, ["ä"]);
    assert_eq!(listed(&store, Some("")).await.len(), 3);
}

#[tokio::test]
async fn a_snapshot_that_keeps_messages_writes_the_others() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let key = key("chat");
    let entries = [control("a"), frame("b"), control("c")];
    let create = AppendLog { entries: &entries, ..append(&key, Expected::NoLog(Epoch(1))) };
    let _ = appended(&store, create).await;
    let base = |position, messages| Some(Unchanged { position, messages });
    assert!(!put(&store, &key, 1, base(0, 0), &["a"]).await);
    assert!(put(&store, &key, 1, None, &["a", "b", "c"]).await);
    assert!(!put(&store, &key, 1, None, &["x"]).await);
    assert!(!put(&store, &key, 2, base(1, 4), &["x"]).await);
    assert!(!put(&store, &key, 2, base(0, 1), &["x"]).await);
    assert!(put(&store, &key, 2, base(1, 1), &["B"]).await);
    let snapshot = load(&store, &key).await.unwrap().snapshot.unwrap();
    assert_eq!((snapshot.position, snapshot.messages), (2, vec!["a".to_owned(), "B".to_owned()]));
    assert_eq!(database.count("log_messages").await, 2);
    assert!(!put(&store, &key, 4, None, &["x"]).await);
    let page = async |first, max_bytes| {
        let read = ReadMessages { key: &key, epoch: Epoch(1), position: 2, first, max_bytes };
        store.messages(read).await.unwrap().unwrap()
    };
    assert_eq!(page(0, 0).await, ["a"]);
    assert_eq!(page(0, 2).await, ["a", "B"]);
    assert_eq!(page(1, 9).await, ["B"]);
    assert_eq!(page(2, 9).await, [""; 0]);
    let load = LoadLog { key: &key, has_frames: false, has_messages: false };
    let loaded = store.load(load).await.unwrap().unwrap();
    assert_eq!(loaded.snapshot.unwrap().messages, [""; 0]);
    assert_eq!(loaded.entries, [(2, control("c"))]);
}

#[tokio::test]
async fn everything_of_a_log_is_deleted_with_it_and_with_its_user() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let keys = ["a", "b", "c"].map(key);
    let run = RunId::from("run");
    for key in &keys {
        let begin = AppendLog {
            live_run: LiveRunChange::Begins(&run),
            entries: &[control("a")],
            ..append(key, Expected::NoLog(Epoch(1)))
        };
        let head = appended(&store, begin).await;
        let ends = AppendLog { live_run: LiveRunChange::Ends, ..append(key, at(&head)) };
        let _ = appended(&store, ends).await;
        assert!(put(&store, key, 1, None, &["m"]).await);
    }
    let other = LogKey { owner: Principal::new("bob"), chat: "a".into() };
    let _ = appended(&store, append(&other, Expected::NoLog(Epoch(1)))).await;
    assert!(!store.delete(&keys[0], Epoch(1), 0).await.unwrap());
    assert!(!store.delete(&keys[0], Epoch(2), 1).await.unwrap());
    assert!(store.delete(&keys[0], Epoch(1), 1).await.unwrap());
    assert_eq!(database.count("log_entries").await, 2);
    assert_eq!(PostgresStore::delete_user(&store, &ada()).await.unwrap().chats, 2);
    assert_eq!(database.count("logs").await, 1);
    for table in ["log_entries", "log_snapshots", "log_messages", "log_ended_runs"] {
        assert_eq!(database.count(table).await, 0, "{table}");
    }
}

pub(crate) fn key(chat: &str) -> LogKey {
    LogKey { owner: ada(), chat: chat.into() }
}

pub(crate) fn frame(text: &str) -> StoredEntry {
    StoredEntry { kind: EntryKind::Frame, bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

pub(crate) fn control(text: &str) -> StoredEntry {
    StoredEntry { kind: EntryKind::Control, bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

pub(crate) fn append<'a>(key: &'a LogKey, expected: Expected) -> AppendLog<'a> {
    AppendLog {
        key,
        expected,
        entries: &[],
        lease: None,
        only_lost: false,
        live_run: LiveRunChange::None,
        listed: None,
        keep_for: None,
        limits: UserLimits { chats: 100, runs: 100, unread: MINUTE },
        is_for_sink: false,
    }
}

pub(crate) fn at(head: &LogHead) -> Expected {
    Expected::Position { epoch: head.epoch, position: head.length }
}

fn all(key: &LogKey) -> LoadLog<'_> {
    LoadLog { key, has_frames: true, has_messages: true }
}

pub(crate) async fn load(store: &PostgresStore, key: &LogKey) -> Option<LoadedLog> {
    LogStore::load(store, all(key)).await.unwrap()
}

pub(crate) async fn appended(store: &PostgresStore, append: AppendLog<'_>) -> LogHead {
    match store.append(append).await.unwrap() {
        AppendResult::Appended { head, .. } => head,
        refused => panic!("{refused:?}"),
    }
}

/// Stores a snapshot of the log with the epoch 1.
pub(crate) async fn put(
    store: &PostgresStore,
    key: &LogKey,
    position: u64,
    unchanged: Option<Unchanged>,
    changed: &[&str],
) -> bool {
    let changed: Vec<_> = changed.iter().map(|message| message.to_string()).collect();
    let (epoch, head, changed) = (Epoch(1), "{}", &*changed);
    store
        .put_snapshot(PutSnapshot { key, epoch, position, head, unchanged, changed })
        .await
        .unwrap()
}

async fn read(store: &PostgresStore, key: &LogKey, position: u64) -> Option<Vec<StoredEntry>> {
    let (epoch, max_bytes, is_reader) = (Epoch(1), usize::MAX, true);
    let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader };
    store.read(read).await.unwrap().map(|page| page.entries)
}

async fn listed(store: &PostgresStore, search: Option<&str>) -> Vec<String> {
    let list = ListChats { limit: 10, after: None, search };
    let chats = LogStore::list(store, &ada(), list).await.unwrap().chats;
    chats.iter().map(|chat| chat.id.as_str().to_owned()).collect()
}

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
