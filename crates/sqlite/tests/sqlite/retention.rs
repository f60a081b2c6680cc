//! What is kept for how long, by a clock that the tests set.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::store_requests::{
    append, appended, begin, chat_of, frame, holder, page, run_key, saved,
};
use ui_message_stream::approval::store::{LedgerStore, RECORD_RETENTION};
use ui_message_stream::approval::{Principal, RecordId, UnixMillis};
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, Fence, ReadLog, RunState, TakeCondition, TakeResult,
    TakeRun,
};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat};
use ui_message_stream_sqlite::{SqliteOptions, SqliteStore};

use crate::folder::{Folder, at};

#[tokio::test]
async fn an_ended_log_is_deleted_after_ten_minutes_and_not_before() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], true).await;
    sweep_at(&store, 599).await;
    assert_eq!(page(&store, &key).await.unwrap().state, RunState::Ended);
    sweep_at(&store, 600).await;
    assert!(page(&store, &key).await.is_none());
    assert_eq!(folder.count("run_entries"), 0);
}

#[tokio::test]
async fn a_live_run_is_not_deleted_and_a_lost_one_is_after_seven_days() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    let (live, lapsed) = (run_key(&ada, "live"), run_key(&ada, "lapsed"));
    for key in [&live, &lapsed] {
        assert_eq!(begin(&store, key, 9).await, BeginResult::Begun(Fence(1)));
        appended(&store, key, 0, &[frame("a")], false).await;
    }
    // The lease is 10 seconds.
    let end = 10 + 7 * 24 * 60 * 60;
    for (number, second) in [5, end - 5].into_iter().enumerate() {
        sweep_at(&store, second).await;
        appended(&store, &live, number as u64 + 1, &[frame("b")], false).await;
    }
    sweep_at(&store, end - 1).await;
    assert_eq!(page(&store, &lapsed).await.unwrap().state, RunState::LeasePassed);
    sweep_at(&store, end).await;
    assert!(page(&store, &lapsed).await.is_none());
    assert_eq!(page(&store, &live).await.unwrap().state, RunState::Leased);
}

#[tokio::test]
async fn a_lost_run_that_is_taken_and_ended_during_a_sweep_is_kept_for_ten_minutes() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    // More than the sweep deletes in one poll: tokio lets a future go on for at most 128 results.
    let number = 150;
    let keys: Vec<_> = (0..number).map(|number| run_key(&ada, &number.to_string())).collect();
    for key in &keys {
        assert_eq!(begin(&store, key, keys.len()).await, BeginResult::Begun(Fence(1)));
    }
    let end = 10 + 7 * 24 * 60 * 60;
    store.set_test_time(at(end));
    let mut sweep = pin!(store.sweep());
    // The sweep has listed all of them, and deletes one after the other.
    while folder.count("runs") == number {
        assert!(poll_fn(|context| Poll::Ready(sweep.as_mut().poll(context))).await.is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let key = keys.last().unwrap();
    let (condition, lease) = (TakeCondition::Any, Duration::from_secs(10));
    let take = TakeRun { key, fence: Fence(1), holder: holder(2), condition, lease };
    assert_eq!(store.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
    let entries = [frame("a")];
    let append = AppendEntries { key, fence: Fence(2), position: 0, entries: &entries, end: true };
    assert!(matches!(store.append(append).await.unwrap(), AppendResult::Appended(_)));
    sweep.await.unwrap();
    assert_eq!(folder.count("runs"), 1);
    sweep_at(&store, end + 599).await;
    assert_eq!(page(&store, key).await.unwrap().state, RunState::Ended);
    sweep_at(&store, end + 600).await;
    assert!(page(&store, key).await.is_none());
}

#[tokio::test]
async fn the_oldest_ended_logs_are_deleted_beyond_the_limit_of_bytes() {
    let folder = Folder::new();
    let options = SqliteOptions::new().with_test_clock(at(0)).with_max_ended_bytes(25_000);
    let store = folder.open_with(options).await;
    let ada = Principal::new("ada");
    let keys: Vec<_> = (0..4).map(|number| run_key(&ada, &number.to_string())).collect();
    let live = run_key(&ada, "live");
    let _ = begin(&store, &live, 9).await;
    appended(&store, &live, 0, &[frame(&"x".repeat(50_000))], false).await;
    for (second, key) in (1..).zip(&keys) {
        store.set_test_time(at(second));
        let _ = begin(&store, key, 9).await;
        appended(&store, key, 0, &[frame(&"x".repeat(10_000))], true).await;
    }
    store.sweep().await.unwrap();
    let mut kept = Vec::new();
    for key in &keys {
        kept.push(page(&store, key).await.is_some());
    }
    assert_eq!(kept, [false, false, true, true]);
    assert_eq!(page(&store, &live).await.unwrap().length, 1);
}

#[tokio::test]
async fn a_read_before_the_clock_was_set_back_by_an_hour_does_not_count() {
    let folder = Folder::new();
    let store = folder.open_at(3600).await;
    let ada = Principal::new("ada");
    let (read, unread) = (run_key(&ada, "read"), run_key(&ada, "unread"));
    for key in [&read, &unread] {
        assert_eq!(begin(&store, key, 2).await, BeginResult::Begun(Fence(1)));
    }
    drop(store);
    let store = folder.open_at(0).await;
    for key in [&read, &unread] {
        appended(&store, key, 0, &[], false).await;
    }
    let reads = ReadLog { key: &read, after: 0, max_bytes: 1, is_reader: true };
    store.read(reads).await.unwrap();
    for (third, expected) in [
        ("third", BeginResult::Begun(Fence(1))),
        // The one that was read is the only other one.
        ("fourth", BeginResult::TooManyRuns),
    ] {
        assert_eq!(begin(&store, &run_key(&ada, third), 2).await, expected);
    }
    for (key, has_to_end) in [(&read, false), (&unread, true)] {
        let AppendResult::Appended(status) = append(&store, key, 0, &[], false).await else {
            panic!("refused")
        };
        assert_eq!(status.has_to_end, has_to_end);
    }
}

#[tokio::test]
async fn a_run_that_no_reader_has_read_for_30_seconds_has_to_end_if_there_are_too_many() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    let (read, unread) = (run_key(&ada, "read"), run_key(&ada, "unread"));
    for key in [&read, &unread] {
        assert_eq!(begin(&store, key, 2).await, BeginResult::Begun(Fence(1)));
    }
    for second in [9, 18, 27, 29] {
        store.set_test_time(at(second));
        for key in [&read, &unread] {
            appended(&store, key, 0, &[], false).await;
        }
    }
    let reads = ReadLog { key: &read, after: 0, max_bytes: 1, is_reader: true };
    store.read(reads).await.unwrap();
    let third = run_key(&ada, "third");
    assert_eq!(begin(&store, &third, 2).await, BeginResult::TooManyRuns);
    store.set_test_time(at(30));
    assert_eq!(begin(&store, &third, 2).await, BeginResult::Begun(Fence(1)));
    for (key, has_to_end, seconds) in [(&read, false, 1), (&unread, true, 30), (&third, false, 0)] {
        let AppendResult::Appended(status) = append(&store, key, 0, &[], false).await else {
            panic!("refused")
        };
        assert_eq!((status.has_to_end, status.unread), (has_to_end, Duration::from_secs(seconds)));
    }
}

#[tokio::test]
async fn a_record_is_deleted_a_day_after_it_has_expired_and_not_before() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    record.expires_at = at(100);
    let mut kept = contention::record(RecordId::from_bytes([2; 16]));
    kept.expires_at = UnixMillis(u64::MAX);
    for record in [&record, &kept] {
        assert!(store.insert(record).await.unwrap());
    }
    let end = 100 + RECORD_RETENTION.as_secs();
    let ids = [record.id, kept.id];
    sweep_at(&store, end).await;
    assert_eq!(LedgerStore::load(&store, &ids).await.unwrap().records.len(), 2);
    sweep_at(&store, end + 1).await;
    let left = LedgerStore::load(&store, &ids).await.unwrap().records;
    assert_eq!(left.iter().map(|left| &left.record).collect::<Vec<_>>(), [&kept]);
}

#[tokio::test]
async fn the_rows_of_a_chat_are_deleted_when_its_time_has_passed() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    let number = 50;
    for id in 0..number {
        let chat = chat_of(&ada, &id.to_string(), 2);
        let save = SaveChat::new(&chat).with_keep_for(Some(Duration::from_secs(60)));
        saved(&store, save).await;
    }
    let kept = chat_of(&ada, "kept", 3);
    saved(&store, SaveChat::new(&kept)).await;
    sweep_at(&store, 59).await;
    assert_eq!(folder.count("chats"), number + 1);
    assert!(ChatStore::load(&store, &ada, &"7".into()).await.unwrap().is_some());
    store.set_test_time(at(60));
    assert!(ChatStore::load(&store, &ada, &"7".into()).await.unwrap().is_none());
    sweep_at(&store, 60).await;
    assert_eq!((folder.count("chats"), folder.count("chat_messages")), (1, 3));
}

async fn sweep_at(store: &SqliteStore, second: u64) {
    store.set_test_time(at(second));
    store.sweep().await.unwrap();
}
