//! What is kept for how long, by a clock that the tests set.

use std::time::Duration;

use chat_test_support::kept_records;
use chat_test_support::store_requests::{
    adas, appended, begin, control, creation, end, put, read_from,
};
use ui_message_stream_chat::store::AppendLog;
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::{Folder, at};

#[tokio::test]
async fn a_record_is_deleted_a_day_after_it_has_expired_and_not_before() {
    let (_folder, store) = Folder::with_store_at(0).await;
    let sweep = async |second| sweep_at(&store, second).await;
    kept_records::a_record_is_deleted_a_day_after_it_has_expired_and_not_before(&store, at, sweep)
        .await;
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

async fn sweep_at(store: &SqliteStore, second: u64) {
    store.set_test_time(at(second));
    store.sweep().await.unwrap();
}
