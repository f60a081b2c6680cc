//! The conformance suite of stores of runs: the in-memory store passes it. Also the limits of the
//! in-memory store.

use std::time::Duration;

use bytes::Bytes;
use test_support::external_processes::say;
use ui_message_stream::approval::{LeaseHolderId, Principal};
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, ReadLog, RunKey, RunState,
};
use ui_message_stream::chat::store::{InMemoryRunStore, RunStore, run_conformance};

#[tokio::test]
async fn the_in_memory_store_of_runs_passes_the_conformance_suite() {
    let cases = run_conformance::check(async || InMemoryRunStore::new()).await;
    say(&format!("conformance of the store of runs in memory: {cases} cases"));
    assert!(cases >= 30, "{cases} cases");
}

#[tokio::test]
async fn a_log_is_removed_10_minutes_after_its_end_and_7_days_after_its_run_was_lost() {
    let store = InMemoryRunStore::with_test_clock();
    begin(&store, "ended").await;
    append(&store, "ended", 0, 1, true).await;
    begin(&store, "abandoned").await;
    store.set_test_time(SECOND * 599);
    assert_eq!(state(&store, "ended").await, Some(RunState::Ended));
    store.set_test_time(SECOND * 600);
    assert_eq!(state(&store, "ended").await, None);
    assert_eq!(state(&store, "abandoned").await, Some(RunState::LeasePassed));
    // The lease is 10 seconds.
    let week = 7 * 24 * 60 * 60;
    store.set_test_time(SECOND * (week + 9));
    assert_eq!(state(&store, "abandoned").await, Some(RunState::LeasePassed));
    store.set_test_time(SECOND * (week + 10));
    assert_eq!(state(&store, "abandoned").await, None);
    assert_eq!(store.bytes(), 0);
}

#[tokio::test]
async fn a_holder_that_returns_within_10_minutes_continues() {
    let store = InMemoryRunStore::with_test_clock();
    begin(&store, "run").await;
    append(&store, "run", 0, 5, false).await;
    store.set_test_time(SECOND * 600);
    append(&store, "run", 1, 5, false).await;
    store.set_test_time(SECOND * 609);
    assert_eq!(state(&store, "run").await, Some(RunState::Leased));
    store.set_test_time(SECOND * 1209);
    assert_eq!(state(&store, "run").await, Some(RunState::LeasePassed));
    assert_eq!(store.bytes(), OF_RUN + 2 * OF_ENTRY + 10);
}

#[tokio::test]
async fn the_oldest_ended_logs_are_removed_at_the_limit_of_bytes() {
    let store = InMemoryRunStore::with_test_clock();
    let store = store.with_max_ended_bytes(2 * (OF_RUN + 2 * OF_ENTRY + 450) + 100);
    for (second, run) in (0..).zip(["first", "second", "third"]) {
        store.set_test_time(SECOND * second);
        begin(&store, run).await;
        append(&store, run, 0, 400, false).await;
    }
    // Live logs are not removed, however many bytes they have.
    assert_eq!(store.bytes(), 3 * (OF_RUN + OF_ENTRY + 400));
    for (second, run) in (3..).zip(["second", "first", "third"]) {
        store.set_test_time(SECOND * second);
        append(&store, run, 1, 50, true).await;
    }
    assert_eq!(state(&store, "second").await, None);
    assert_eq!(state(&store, "first").await, Some(RunState::Ended));
    assert_eq!(state(&store, "third").await, Some(RunState::Ended));
    assert_eq!(store.bytes(), 2 * (OF_RUN + 2 * OF_ENTRY + 450));
}

#[tokio::test]
async fn empty_ended_logs_count_as_bytes() {
    let store = InMemoryRunStore::with_test_clock().with_max_ended_bytes(10 * OF_RUN);
    for run in 0..100 {
        let run = run.to_string();
        begin(&store, &run).await;
        append(&store, &run, 0, 0, true).await;
    }
    assert!(store.bytes() <= 10 * OF_RUN, "{}", store.bytes());
}

#[tokio::test]
async fn at_the_limit_of_runs_the_oldest_one_without_a_reader_has_to_end() {
    let store = InMemoryRunStore::with_test_clock();
    let mut tick = (0..).map(|third| store.set_test_time(SECOND * 3 * third));
    for run in ["read", "unread", "younger"] {
        assert_eq!(begin_at_limit(&store, run).await, BeginResult::Begun(Fence(1)));
    }
    for _ in 0..11 {
        tick.next();
        for run in ["read", "unread", "younger"] {
            assert!(!append(&store, run, 0, 0, false).await);
        }
        store.read(read(&key("read"))).await.unwrap();
    }
    assert_eq!(begin_at_limit(&store, "fourth").await, BeginResult::Begun(Fence(1)));
    let has_to_end = [
        append(&store, "read", 0, 0, false).await,
        append(&store, "unread", 0, 0, false).await,
        append(&store, "younger", 0, 0, false).await,
    ];
    assert_eq!(has_to_end, [false, true, false]);
    assert_eq!(begin_at_limit(&store, "fifth").await, BeginResult::Begun(Fence(1)));
    assert!(append(&store, "younger", 0, 0, false).await);
    assert_eq!(begin_at_limit(&store, "sixth").await, BeginResult::TooManyRuns);
}

#[tokio::test]
async fn a_hint_wakes_a_reader_when_the_log_ends() {
    let store = InMemoryRunStore::new();
    begin(&store, "run").await;
    let key = key("run");
    let mut waiting = std::pin::pin!(store.changed(&key, 0));
    assert!(futures_util::future::poll_immediate(&mut waiting).await.is_none());
    append(&store, "run", 0, 0, false).await;
    assert!(futures_util::future::poll_immediate(&mut waiting).await.is_none(), "a renewal");
    append(&store, "run", 0, 0, true).await;
    waiting.await;
}

const SECOND: Duration = Duration::from_secs(1);

fn key(run: &str) -> RunKey {
    RunKey { owner: Principal::new("ada"), chat: "chat".into(), run: run.into() }
}

fn read(key: &RunKey) -> ReadLog<'_> {
    ReadLog { key, after: 0, max_bytes: usize::MAX, is_reader: true }
}

async fn begin(store: &InMemoryRunStore, run: &str) {
    let key = key(run);
    let holder = LeaseHolderId::from_bytes([1; 16]);
    let begin = BeginRun { key: &key, holder, lease: SECOND * 10, max_user_runs: 16 };
    assert_eq!(store.begin(begin).await.unwrap(), BeginResult::Begun(Fence(1)));
}

async fn begin_at_limit(store: &InMemoryRunStore, run: &str) -> BeginResult {
    let key = key(run);
    let holder = LeaseHolderId::from_bytes([1; 16]);
    let begin = BeginRun { key: &key, holder, lease: SECOND * 10, max_user_runs: 3 };
    store.begin(begin).await.unwrap()
}

/// Appends an entry of this size, or none, and returns whether the run has to end.
async fn append(
    store: &InMemoryRunStore,
    run: &str,
    position: u64,
    bytes: usize,
    end: bool,
) -> bool {
    let key = key(run);
    let entry = LogEntry::Frame(Bytes::from(vec![b'x'; bytes]));
    let entries = if bytes == 0 { &[][..] } else { &[entry] };
    let append = AppendEntries { key: &key, fence: Fence(1), position, entries, end };
    match store.append(append).await.unwrap() {
        AppendResult::Appended(status) => status.has_to_end,
        refused => panic!("{refused:?}"),
    }
}

async fn state(store: &InMemoryRunStore, run: &str) -> Option<RunState> {
    let key = key(run);
    let read = ReadLog { is_reader: false, ..read(&key) };
    store.read(read).await.unwrap().map(|page| page.state)
}

/// The bytes that a run and an entry need besides their content.
const OF_RUN: usize = 512;
const OF_ENTRY: usize = 64;
