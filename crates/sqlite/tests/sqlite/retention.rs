//! What is kept for how long, by a clock that the tests set.

use std::collections::BTreeSet;
use std::time::Duration;

use chat_test_support::kept_runs::{self, begins_of_two, renew};
use chat_test_support::store_requests::{
    adas, appended, begin, control, create, creation, end, key, load, put, read_from,
};
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{AppendLog, LogStore, MAX_SWEPT};
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::{Folder, at};

#[tokio::test]
async fn a_read_before_the_clock_was_set_back_by_an_hour_does_not_count() {
    let (folder, store) = Folder::with_store_at(3600).await;
    let set_back = async |store| {
        drop(store);
        folder.open_at(0).await
    };
    kept_runs::a_read_before_the_clock_was_set_back_does_not_count(store, set_back).await;
}

#[tokio::test]
async fn a_run_that_no_reader_has_read_for_30_seconds_has_to_end_if_there_are_too_many() {
    let (_folder, store) = Folder::with_store_at(0).await;
    let set_time = async |second| store.set_test_time(at(second));
    kept_runs::a_run_that_is_not_read_has_to_end_if_there_are_too_many(&store, set_time).await;
}

#[tokio::test]
async fn a_record_is_deleted_a_day_after_it_has_expired_and_not_before() {
    let (_folder, store) = Folder::with_store_at(0).await;
    let sweep = async |second| sweep_at(&store, second).await;
    kept_runs::a_record_is_deleted_a_day_after_it_has_expired_and_not_before(&store, at, sweep)
        .await;
}

#[tokio::test]
async fn the_rows_of_a_chat_are_deleted_when_its_time_has_passed() {
    let (folder, store) = Folder::with_store_at(0).await;
    let number = 50;
    for id in 0..number {
        let (key, entries) = (adas(&id.to_string()), [control("request")]);
        let keep_for = Some(Duration::from_secs(60));
        appended(&store, AppendLog { keep_for, ..creation(&key, &entries) }).await;
        assert!(put(&store, &key, 1, &["one", "two"]).await);
    }
    let (removed, kept) = (adas("7"), adas("kept"));
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
    let (folder, store) = Folder::with_store_at(0).await;
    let (entries, keep_for) = ([control("request")], Some(Duration::from_secs(60)));
    let expired = adas("expired");
    appended(&store, AppendLog { keep_for, ..creation(&expired, &entries) }).await;
    let ended = adas("ended");
    begin(&store, &ended).await;
    end(&store, &ended, 1).await;
    assert!(put(&store, &ended, 2, &["message"]).await);
    let refuse = "CREATE TRIGGER refuse BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, ''); END";
    folder.connect().execute_batch(refuse).unwrap();
    store.set_test_time(at(600));
    store.sweep().await.unwrap_err();
    assert_eq!((folder.count("logs"), folder.count("log_ended_runs")), (2, 0));
    assert!(read_from(&store, &ended, 0).await.is_none());
}

#[tokio::test]
async fn a_sweep_names_the_runs_that_were_lost_seven_days_ago() {
    let (_folder, store) = Folder::with_store_at(0).await;
    let lost = key(&Principal::new("ada").with_tenant("shop"), "lost");
    for key in [&lost, &key(&Principal::anonymous(), "renewed")] {
        assert!(begins_of_two(&store, key).await);
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
    let (_folder, store) = Folder::with_store_at(0).await;
    let set_time = async |second| store.set_test_time(at(second));
    kept_runs::a_run_keeps_the_entries_of_the_one_that_it_resumes(&store, set_time).await;
}

#[tokio::test]
async fn a_deletion_that_was_not_returned_for_30_days_is_forgotten() {
    let (_folder, store) = Folder::with_store_at(0).await;
    let set_time = async |second| store.set_test_time(at(second));
    kept_runs::a_deletion_that_was_not_returned_for_30_days_is_forgotten(&store, set_time).await;
}

#[tokio::test]
async fn a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one() {
    let (_folder, store) = Folder::with_store_at(0).await;
    let set_time = async |second| store.set_test_time(at(second));
    kept_runs::a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one(&store, set_time).await;
}

#[tokio::test]
async fn lost_runs_that_cannot_be_ended_do_not_hide_the_others() {
    let (_folder, store) = Folder::with_store_at(0).await;
    for chat in 0..MAX_SWEPT + 20 {
        begin(&store, &adas(&chat.to_string())).await;
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

async fn sweep_at(store: &SqliteStore, second: u64) {
    store.set_test_time(at(second));
    store.sweep().await.unwrap();
}
