//! What is kept for how long, by a clock that the tests set.

use std::collections::BTreeSet;
use std::time::Duration;

use chat_test_support::kept_runs;
use chat_test_support::store_requests::{
    EPOCH, append_at, appended, begin, control, create, creation, end, key, load, put, read_from,
};
use test_support::contention::{self, InsertOne};
use ui_message_stream::approval::store::{LedgerStore, RECORD_RETENTION};
use ui_message_stream::approval::{Principal, RecordId, UnixMillis};
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, LiveRunChange, LogHead, LogKey, LogStore, MAX_ENDED_BYTES, MAX_SWEPT,
    ReadLogEntries, UserLimits,
};
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::{Folder, at};

#[tokio::test]
async fn a_read_before_the_clock_was_set_back_by_an_hour_does_not_count() {
    let folder = Folder::new();
    let store = folder.open_at(3600).await;
    let ada = Principal::new("ada");
    let (read, unread) = (key(&ada, "read"), key(&ada, "unread"));
    for key in [&read, &unread] {
        assert!(begins(&store, key).await);
    }
    drop(store);
    let store = folder.open_at(0).await;
    for key in [&read, &unread] {
        renew(&store, key).await;
    }
    read_as_client(&store, &read).await;
    // For the fourth one, the one that was read is the only other one.
    for (chat, expected) in [("third", true), ("fourth", false)] {
        assert_eq!(begins(&store, &key(&ada, chat)).await, expected, "{chat}");
    }
    for (key, has_to_end) in [(&read, false), (&unread, true)] {
        assert_eq!(renew(&store, key).await.has_to_end, has_to_end);
    }
}

#[tokio::test]
async fn a_run_that_no_reader_has_read_for_30_seconds_has_to_end_if_there_are_too_many() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    let (read, unread) = (key(&ada, "read"), key(&ada, "unread"));
    for key in [&read, &unread] {
        assert!(begins(&store, key).await);
    }
    for second in [9, 18, 27, 29] {
        store.set_test_time(at(second));
        for key in [&read, &unread] {
            renew(&store, key).await;
        }
    }
    read_as_client(&store, &read).await;
    let third = key(&ada, "third");
    assert!(!begins(&store, &third).await);
    store.set_test_time(at(30));
    assert!(begins(&store, &third).await);
    for (key, has_to_end, seconds) in [(&read, false, 1), (&unread, true, 30), (&third, false, 0)] {
        let head = renew(&store, key).await;
        assert_eq!((head.has_to_end, head.unread), (has_to_end, Duration::from_secs(seconds)));
    }
}

/// Begins a run with a lease of ten seconds. Returns whether the user, who may have two, has a place.
async fn begins(store: &SqliteStore, key: &LogKey) -> bool {
    let (entries, run) = ([control("begin")], "run".into());
    let begin = AppendLog {
        lease: Some(Duration::from_secs(10)),
        live_run: LiveRunChange::Begins(&run),
        limits: UserLimits { chats: 9, runs: 2, unread: Duration::from_secs(30) },
        ..creation(key, &entries)
    };
    match store.append(begin).await.unwrap() {
        AppendResult::Appended { .. } => true,
        AppendResult::TooManyRuns => false,
        result => panic!("{result:?}"),
    }
}

/// Renews the lease of a run that has written nothing.
async fn renew(store: &SqliteStore, key: &LogKey) -> LogHead {
    let lease = Some(Duration::from_secs(10));
    appended(store, AppendLog { lease, ..append_at(key, 1, &[]) }).await
}

async fn read_as_client(store: &SqliteStore, key: &LogKey) {
    let (epoch, position) = (EPOCH, 0);
    let read = ReadLogEntries { key, epoch, position, max_bytes: 1, is_reader: true };
    assert!(store.read(read).await.unwrap().is_some());
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
        let (key, entries) = (key(&ada, &id.to_string()), [control("request")]);
        let keep_for = Some(Duration::from_secs(60));
        appended(&store, AppendLog { keep_for, ..creation(&key, &entries) }).await;
        assert!(put(&store, &key, 1, &["one", "two"]).await);
    }
    let (removed, kept) = (key(&ada, "7"), key(&ada, "kept"));
    create(&store, &kept).await;
    assert!(put(&store, &kept, 1, &["one", "two", "three"]).await);
    sweep_at(&store, 59).await;
    assert_eq!(folder.count("logs"), number + 1);
    assert!(load(&store, &removed).await.is_some());
    store.set_test_time(at(60));
    assert!(load(&store, &removed).await.is_none());
    sweep_at(&store, 60).await;
    assert_eq!((folder.count("logs"), folder.count("log_messages")), (1, 3));
}

#[tokio::test]
async fn what_a_sweep_cannot_delete_does_not_keep_it_from_the_rest() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    let (entries, keep_for) = ([control("request")], Some(Duration::from_secs(60)));
    let expired = key(&ada, "expired");
    appended(&store, AppendLog { keep_for, ..creation(&expired, &entries) }).await;
    let ended = key(&ada, "ended");
    begin(&store, &ended).await;
    end(&store, &ended, 1).await;
    assert!(put(&store, &ended, 2, &["message"]).await);
    let refuse = "CREATE TRIGGER refuse BEFORE DELETE ON logs BEGIN SELECT RAISE(ABORT, ''); END";
    folder.connect().execute_batch(refuse).unwrap();
    store.set_test_time(at(600));
    store.sweep().await.unwrap_err();
    assert_eq!((folder.count("logs"), folder.count("log_ended_runs")), (2, 0));
    assert!(read_from(&store, &ended, 0).await.is_none());
}

#[tokio::test]
async fn a_sweep_names_the_runs_that_were_lost_seven_days_ago() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let lost = key(&Principal::new("ada").with_tenant("shop"), "lost");
    for key in [&lost, &key(&Principal::anonymous(), "renewed")] {
        assert!(begins(&store, key).await);
    }
    // Each lease has ten seconds.
    store.set_test_time(at(9));
    renew(&store, &key(&Principal::anonymous(), "renewed")).await;
    let week = 7 * 24 * 60 * 60;
    for (second, expected) in [(week + 9, vec![]), (week + 10, vec![(lost.clone(), "run".into())])]
    {
        store.set_test_time(at(second));
        assert_eq!(LogStore::sweep(&store).await.unwrap().lost_runs, expected);
    }
}

#[tokio::test]
async fn a_run_keeps_the_entries_of_the_one_that_it_resumes() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let set_time = async |second| store.set_test_time(at(second));
    kept_runs::a_run_keeps_the_entries_of_the_one_that_it_resumes(&store, set_time).await;
}

#[tokio::test]
async fn a_deletion_that_was_not_returned_for_30_days_is_forgotten() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let set_time = async |second| store.set_test_time(at(second));
    kept_runs::a_deletion_that_was_not_returned_for_30_days_is_forgotten(&store, set_time).await;
}

#[tokio::test]
async fn a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let set_time = async |second| store.set_test_time(at(second));
    kept_runs::a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one(&store, set_time).await;
}

#[tokio::test]
async fn lost_runs_that_cannot_be_ended_do_not_hide_the_others() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    for chat in 0..MAX_SWEPT + 20 {
        begin(&store, &key(&ada, &chat.to_string())).await;
    }
    store.set_test_time(at(8 * 24 * 60 * 60));
    let mut named = BTreeSet::new();
    // Each sweep names 100 of 120, so one that is never among them is as good as impossible.
    for _ in 0..40 {
        let lost = LogStore::sweep(&store).await.unwrap().lost_runs;
        assert_eq!(lost.len(), MAX_SWEPT);
        named.extend(lost.into_iter().map(|(key, _)| key));
    }
    assert_eq!(named.len(), MAX_SWEPT + 20);
}

#[tokio::test]
async fn the_oldest_of_the_runs_that_have_ended_go_if_these_have_too_many_bytes() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    let keys = ["first", "second", "third"].map(|chat| key(&ada, chat));
    for (second, key) in (1..).zip(&keys) {
        store.set_test_time(at(second));
        begin(&store, key).await;
        end(&store, key, 1).await;
        assert!(put(&store, key, 2, &["message"]).await);
    }
    // As if each were so large.
    folder
        .connect()
        .execute_batch(&format!("UPDATE log_ended_runs SET bytes = {}", MAX_ENDED_BYTES / 2))
        .unwrap();
    sweep_at(&store, 4).await;
    let mut kept = Vec::new();
    for key in &keys {
        kept.push(read_from(&store, key, 0).await.is_some());
    }
    assert_eq!(kept, [false, true, true]);
    // They have ended before the clock was set back.
    folder
        .connect()
        .execute_batch("UPDATE log_ended_runs SET ended_at = ended_at + 3600000")
        .unwrap();
    sweep_at(&store, 5).await;
    assert_eq!(folder.count("log_ended_runs"), 0);
}

async fn sweep_at(store: &SqliteStore, second: u64) {
    store.set_test_time(at(second));
    store.sweep().await.unwrap();
}
