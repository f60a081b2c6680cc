//! Logs over the rows of a database.

use chat_test_support::random_logs;
use chat_test_support::store_requests::{adas, begin, end, put, read_from};
use test_support::external_processes::say;
use ui_message_stream::approval::UnixMillis;
use ui_message_stream_chat::store::rows::memory::MemoryRows;
use ui_message_stream_chat::store::{LogStore, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_over_rows_pass_the_conformance_suite() {
    let cases = conformance::check(async || MemoryRows::default()).await;
    say(&format!("conformance of logs over rows: {cases} cases"));
    assert!(cases >= 80, "{cases} cases");
}

#[tokio::test]
async fn random_operations_have_the_same_results_as_in_memory() {
    for seed in 0..40 {
        let start = UnixMillis(1_700_000_000_000);
        let store = MemoryRows::with_test_clock(start);
        let set_time = async |now| store.set_test_time(now);
        random_logs::compare_with_memory(&store, seed, start, set_time).await;
    }
}

#[tokio::test]
async fn the_oldest_of_the_runs_that_have_ended_go_if_these_have_too_many_bytes() {
    // Each run has the entries `begin` and `end`.
    let store = MemoryRows::with_test_clock(UnixMillis(0)).with_max_ended_bytes(16);
    let keys = ["first", "second", "third"].map(adas);
    for (second, key) in (1..).zip(&keys) {
        store.set_test_time(UnixMillis(second * 1000));
        begin(&store, key).await;
        end(&store, key, 1).await;
        assert!(put(&store, key, 2, &["message"]).await);
    }
    LogStore::sweep(&store).await.unwrap();
    let mut kept = Vec::new();
    for key in &keys {
        kept.push(read_from(&store, key, 0).await.is_some());
    }
    assert_eq!(kept, [false, true, true]);
}
