//! Logs in Redis: what the store in memory does, and what is removed.

use std::time::Duration;

use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{number, say};
use test_support::random_logs;
use tokio::time::timeout;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::chat::chat_log::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, LiveRunChange, LoadLog, LogHead, LogKey,
    LogStore, PutSnapshot, StoredEntry, UserLimits, conformance,
};
use ui_message_stream::id::RunId;
use ui_message_stream_redis::RedisStore;

use crate::backend::{Backend, keys};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_redis_pass_the_conformance_suite() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        let cases = conformance::check(async || store.clone()).await;
        say(&format!("conformance of logs in {}: {cases} cases", backend.name()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_have_the_same_results_as_in_memory() {
    for seed in 0..number("REDIS_LOG_SEEDS", 20) as u64 {
        let Some(redis) = RedisServer::start_at(START) else { return };
        let store = RedisStore::connect(&redis.url()).await.unwrap();
        let set_time = async |now: UnixMillis| redis.set_time(now.0);
        random_logs::compare_with_memory(&store, seed, UnixMillis(START), set_time).await;
    }
}

#[tokio::test]
async fn a_reader_is_woken_by_what_another_server_changes() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let key = key();
        let head = begin(&writer, &key, None).await;
        let append = async |head: &LogHead| {
            let expected = Expected::Position { epoch: head.epoch, position: head.length };
            appended(&writer, AppendLog { entries: &[entry("a")], ..append(&key, expected) }).await
        };
        // The first wait subscribes the channel.
        let longer = append(&head).await;
        wait(&reader, &key, head.length).await;
        let (longest, ()) = tokio::join!(append(&longer), wait(&reader, &key, longer.length));
        let delete = async { assert!(writer.delete(&key, longest.epoch, 4).await.unwrap()) };
        tokio::join!(delete, wait(&reader, &key, longest.length));
        assert_eq!(load(&reader, &key).await, None);
        // What was known of the deleted log does not wake the readers of the next one.
        let head = begin(&writer, &key, None).await;
        while timeout(SHORT, reader.changed(&key, head.length)).await.is_ok() {}
        tokio::join!(append(&head), wait(&reader, &key, head.length));
    }
}

#[tokio::test]
async fn everything_of_a_chat_whose_time_has_passed_is_removed_without_another_request() {
    let Some(redis) = RedisServer::start_at(START) else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let key = key();
    let head = begin(&store, &key, Some(MINUTE)).await;
    let put = PutSnapshot {
        key: &key,
        epoch: head.epoch,
        position: head.length,
        head: "{}",
        unchanged: None,
        changed: &["message".to_owned()],
    };
    assert!(store.put_snapshot(put).await.unwrap());
    let expiring =
        || keys(&redis).iter().filter(|key| redis.command(&format!("PTTL {key}")) != ":-1").count();
    // The head, the entries, the positions and the messages.
    assert_eq!(expiring(), 4);
    redis.set_time(START + 59_999);
    LogStore::sweep(&store).await.unwrap();
    assert!(load(&store, &key).await.is_some());
    redis.set_time(START + 60_000);
    assert_eq!(load(&store, &key).await, None);
    LogStore::sweep(&store).await.unwrap();
    redis.set_time(START + 60_001);
    assert_eq!(keys(&redis), [""; 0]);
}

#[tokio::test]
async fn a_chat_of_a_newer_format_is_refused_by_name_and_stays() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let key = key();
    let head = begin(&store, &key, None).await;
    let stored = keys(&redis);
    let name = stored.iter().find(|key| key.contains(":head:")).unwrap();
    redis.command(&format!("HSET {name} format 2"));
    let load = LoadLog { key: &key, has_frames: false, has_messages: false };
    let error =
        std::error::Error::source(&store.load(load).await.unwrap_err()).unwrap().to_string();
    assert!(error.starts_with("chat: format 2 is newer"), "{error}");
    let expected = Expected::Control { epoch: head.epoch, control: head.control };
    assert!(store.append(append(&key, expected)).await.is_err());
    assert!(store.delete(&key, head.epoch, head.control).await.is_err());
    LogStore::sweep(&store).await.unwrap();
    assert_eq!(keys(&redis), stored);
}

fn key() -> LogKey {
    LogKey { owner: Principal::new("ada"), chat: "chat".into() }
}

fn entry(text: &str) -> StoredEntry {
    StoredEntry { kind: EntryKind::Control, bytes: text.to_owned().into() }
}

fn append<'a>(key: &'a LogKey, expected: Expected) -> AppendLog<'a> {
    AppendLog {
        key,
        expected,
        entries: &[],
        lease: None,
        only_lost: false,
        live_run: LiveRunChange::None,
        listed: None,
        keep_for: None,
        limits: UserLimits { chats: 9, runs: 9, unread: MINUTE },
    }
}

/// Begins a chat with a live run.
async fn begin(store: &RedisStore, key: &LogKey, keep_for: Option<Duration>) -> LogHead {
    let run = RunId::from("run");
    let begin = AppendLog {
        entries: &[entry("a"), entry("b")],
        lease: Some(MINUTE),
        live_run: LiveRunChange::Begins(&run),
        keep_for,
        ..append(key, Expected::NoLog(Epoch(7)))
    };
    appended(store, begin).await
}

async fn appended(store: &RedisStore, append: AppendLog<'_>) -> LogHead {
    match store.append(append).await.unwrap() {
        AppendResult::Appended { head, .. } => head,
        result => panic!("{result:?}"),
    }
}

async fn load(store: &RedisStore, key: &LogKey) -> Option<LogHead> {
    let load = LoadLog { key, has_frames: true, has_messages: true };
    store.load(load).await.unwrap().map(|log| log.head)
}

/// Waits until the log may be longer.
async fn wait(store: &RedisStore, key: &LogKey, length: u64) {
    timeout(MINUTE, store.changed(key, length)).await.unwrap();
}

const START: u64 = 1_900_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
