//! Logs in Postgres: what is kept for how long, and what one append writes.

use std::time::Duration;

use chat_test_support::random_logs;
use chat_test_support::store_requests::{
    EPOCH, adas, append_at, appended, begin, control, creation, frame, key, load, put, read_from,
};
use test_support::eventually;
use test_support::requests::ada;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, Epoch, Expected, ListChats, ListedChat, LiveRunChange, LoadLog,
    LogKey, LogStore, PutSnapshot, ReadMessages, Unchanged, UserLimits,
};
use ui_message_stream_postgres::PostgresStore;

use crate::database::{Database, LOGS, at as time};

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
async fn an_append_of_frames_updates_no_index_of_the_rows() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    let key = adas("chat");
    let mut head = begin(&store, &key).await;
    let entries = [frame("a"), frame("b")];
    // The page of the row has room for so many versions, also if another test keeps old ones from being removed.
    for number in 1..=20 {
        // Each renews the lease.
        database.set_time(number * 15).await;
        let lease = Some(MINUTE);
        head =
            appended(&store, AppendLog { lease, ..append_at(&key, head.length, &entries) }).await;
    }
    // The statistics are written when the sessions end.
    drop(store);
    let updates = |count| {
        format!(
            "SELECT coalesce(sum({count}), 0)::BIGINT FROM pg_stat_user_tables \
             WHERE schemaname = current_schema() AND relname = 'rows'"
        )
    };
    eventually(async || database.number(&updates("n_tup_upd")).await == 20).await;
    assert_eq!(database.number(&updates("n_tup_hot_upd")).await, 20);
}

#[tokio::test]
async fn entries_that_no_reader_needs_are_removed_in_steps_up_to_the_snapshot() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    let key = adas("chat");
    let runs = [RunId::from("first"), RunId::from("second")];
    let begin = |run, append| AppendLog {
        live_run: LiveRunChange::Begins(run),
        lease: Some(MINUTE * 100),
        ..append
    };
    appended(&store, begin(&runs[0], creation(&key, &[]))).await;
    let many: Vec<_> = (0..2500).map(|number| frame(&number.to_string())).collect();
    appended(&store, append_at(&key, 0, &many)).await;
    // The second one ends the first one.
    appended(&store, begin(&runs[1], append_at(&key, 2500, &[]))).await;
    appended(&store, append_at(&key, 2500, &[frame("x")])).await;
    assert!(put(&store, &key, 2501, &["m"]).await);
    let first = async |second| {
        database.set_time(second).await;
        LogStore::sweep(&store).await.unwrap();
        let first = format!("SELECT coalesce((head->>'p')::BIGINT, 0) FROM {LOGS}");
        let first = database.number(&first).await;
        let before =
            format!("SELECT count(*) FROM items WHERE sequence = 0 AND position < {first}");
        assert_eq!(database.number(&before).await, 0);
        first
    };
    assert_eq!(first(599).await, 0);
    // The second run is live.
    assert_eq!(first(600).await, 2500);
    let live_run = LiveRunChange::Ends;
    appended(&store, AppendLog { live_run, ..append_at(&key, 2501, &[]) }).await;
    assert_eq!(first(1199).await, 2500);
    assert_eq!(first(1200).await, 2501);
    assert_eq!(database.number(&format!("SELECT count(head->'r') FROM {LOGS}")).await, 0);
    assert!(read_from(&store, &key, 2500).await.is_none());
    assert_eq!(read_from(&store, &key, 2501).await.unwrap().entries, []);
    // The next snapshot has new entries before it.
    appended(&store, append_at(&key, 2501, &[frame("y")])).await;
    assert!(put(&store, &key, 2502, &["m"]).await);
    assert_eq!(first(1200).await, 2502);
}

#[tokio::test]
async fn one_sweep_removes_entries_of_more_logs_than_a_statement_and_goes_on_with_a_long_one() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    for chat in 0..25 {
        let key = adas(&format!("chat {chat}"));
        begin(&store, &key).await;
        let count = if chat == 2 { 2499 } else { 2 };
        let frames: Vec<_> = (0..count).map(|number| frame(&number.to_string())).collect();
        let ends = AppendLog { live_run: LiveRunChange::Ends, ..append_at(&key, 1, &frames) };
        let head = appended(&store, ends).await;
        assert!(put(&store, &key, head.length, &["m"]).await);
    }
    assert_eq!(database.count("log_entries").await, 24 * 3 + 2500);
    database.set_time(600).await;
    LogStore::sweep(&store).await.unwrap();
    assert_eq!(database.count("log_entries").await, 0);
}

#[tokio::test]
async fn a_chat_whose_time_has_passed_is_deleted_for_all_functions_and_later_swept() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    let (key, entries) = (adas("chat"), [control("a")]);
    let create = AppendLog {
        keep_for: Some(MINUTE),
        limits: UserLimits { chats: 1, runs: 1, unread: MINUTE },
        ..creation(&key, &entries)
    };
    appended(&store, create).await;
    assert!(put(&store, &key, 1, &["m"]).await);
    database.set_time(59).await;
    assert!(load(&store, &key).await.is_some());
    database.set_time(60).await;
    assert_eq!(load(&store, &key).await, None);
    assert!(read_from(&store, &key, 0).await.is_none());
    assert_eq!(store.append(append_at(&key, 1, &[])).await.unwrap(), AppendResult::Conflict);
    assert!(!put(&store, &key, 1, &["m"]).await);
    assert!(!store.rename(&key, "title").await.unwrap());
    assert!(!store.delete(&key, EPOCH, 1).await.unwrap());
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
    let Some((_database, store)) = Database::with_store().await else { return };
    let run = RunId::from("run\0");
    for (chat, title) in [("\0", "Ärger\0\\Über"), ("\0\0", "\\303 ZEBRA"), ("ä", "Äpfel")] {
        let key = adas(chat);
        let begin = AppendLog {
            expected: Expected::NoLog(Epoch((1 << 53) - 1)),
            live_run: LiveRunChange::Begins(&run),
            listed: Some(ListedChat { title, has_questions: false }),
            ..creation(&key, &[])
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
    let Some((database, store)) = Database::with_store().await else { return };
    let key = adas("chat");
    appended(&store, creation(&key, &[control("a"), frame("b"), control("c")])).await;
    let base = |position, messages| Unchanged { position, messages };
    assert!(!put_on(&store, &key, 1, base(0, 0), &["a"]).await);
    assert!(put(&store, &key, 1, &["a", "b", "c"]).await);
    assert!(!put(&store, &key, 1, &["x"]).await);
    assert!(!put_on(&store, &key, 2, base(1, 4), &["x"]).await);
    assert!(!put_on(&store, &key, 2, base(0, 1), &["x"]).await);
    assert!(put_on(&store, &key, 2, base(1, 1), &["B"]).await);
    let snapshot = load(&store, &key).await.unwrap().snapshot.unwrap();
    assert_eq!((snapshot.position, snapshot.messages), (2, vec!["a".to_owned(), "B".to_owned()]));
    assert_eq!(database.count("log_messages").await, 2);
    assert!(!put(&store, &key, 4, &["x"]).await);
    let page = async |first, max_bytes| {
        let read = ReadMessages { key: &key, epoch: EPOCH, position: 2, first, max_bytes };
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
    let Some((database, store)) = Database::with_store().await else { return };
    let keys = ["a", "b", "c"].map(adas);
    for key in &keys {
        begin(&store, key).await;
        let live_run = LiveRunChange::Ends;
        appended(&store, AppendLog { live_run, ..append_at(key, 1, &[]) }).await;
        assert!(put(&store, key, 1, &["m"]).await);
    }
    appended(&store, creation(&key(&Principal::new("bob"), "a"), &[])).await;
    assert!(!store.delete(&keys[0], EPOCH, 0).await.unwrap());
    assert!(!store.delete(&keys[0], Epoch(2), 1).await.unwrap());
    assert!(store.delete(&keys[0], EPOCH, 1).await.unwrap());
    assert_eq!(database.count("log_entries").await, 2);
    assert_eq!(PostgresStore::delete_user(&store, &ada()).await.unwrap().chats, 2);
    assert_eq!(database.count("logs").await, 1);
    for table in ["items", "removed_rows"] {
        assert_eq!(database.count(table).await, 0, "{table}");
    }
}

/// Stores a snapshot that keeps some messages of the one before it.
pub(crate) async fn put_on(
    store: &PostgresStore,
    key: &LogKey,
    position: u64,
    base: Unchanged,
    changed: &[&str],
) -> bool {
    let changed: Vec<_> = changed.iter().map(|message| message.to_string()).collect();
    let (epoch, head, unchanged, changed) = (EPOCH, "{}", Some(base), &*changed);
    let put = PutSnapshot { key, epoch, position, head, unchanged, changed };
    store.put_snapshot(put).await.unwrap()
}

async fn listed(store: &PostgresStore, search: Option<&str>) -> Vec<String> {
    let list = ListChats { limit: 10, after: None, search };
    let chats = LogStore::list(store, &ada(), list).await.unwrap().chats;
    chats.iter().map(|chat| chat.id.as_str().to_owned()).collect()
}

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
