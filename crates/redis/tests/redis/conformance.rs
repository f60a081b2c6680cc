//! The conformance suites of the two traits, on one store and on a new connection for each case, and random
//! operations on logs.

use std::sync::Arc;

use chat_test_support::random_logs;
use test_support::contention;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{number, say};
use ui_message_stream::approval::UnixMillis;
use ui_message_stream::approval::store::{LedgerStore, conformance};
use ui_message_stream_chat::store::conformance as log_conformance;
use ui_message_stream_chat::store::rows::conformance as row_conformance;
use ui_message_stream_redis::RedisStore;

use crate::backend::Backend;
use crate::retention::START;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_redis_pass_the_conformance_suites() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        row_conformance::check(async || store.clone()).await;
        let cases = log_conformance::check(async || store.clone()).await;
        say(&format!("conformance of logs in {}: {cases} cases", backend.name()));
        assert_eq!(log_conformance::check(async || backend.connect().await).await, cases);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_in_redis_passes_the_conformance_suite() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        let cases = conformance::check(async || store.clone()).await;
        say(&format!("conformance of the ledger in {}: {cases} cases", backend.name()));
        assert_eq!(conformance::check(async || backend.connect().await).await, cases);
    }
}

#[test]
fn of_16_clients_that_claim_an_approval_exactly_one_is_granted_the_claim() {
    let Some(redis) = RedisServer::start() else { return };
    let url = redis.url();
    let tally = contention::race(number("REDIS_RACES", 300), async || {
        Arc::new(RedisStore::connect(&url).await.unwrap()) as Arc<dyn LedgerStore>
    });
    say(&format!("the ledger in Redis, 16 clients: {tally}"));
}
