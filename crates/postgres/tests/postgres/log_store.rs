//! Logs in Postgres: random operations, and what one append writes.

use std::time::Duration;

use chat_test_support::random_logs;
use chat_test_support::store_requests::{adas, append_at, appended, begin, frame};
use test_support::eventually;
use ui_message_stream::approval::UnixMillis;
use ui_message_stream_chat::store::AppendLog;

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

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
