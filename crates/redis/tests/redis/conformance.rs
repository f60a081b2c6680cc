//! The conformance suites of the three traits, on one store and on a new connection for each case.

use std::sync::Arc;

use test_support::contention;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{number, say};
use ui_message_stream::approval::store::{LedgerStore, conformance};
use ui_message_stream::chat::store::{chat_conformance, run_conformance};
use ui_message_stream_redis::RedisStore;

use crate::backend::Backend;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_in_redis_pass_the_conformance_suite() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        let cases = chat_conformance::check(async || store.clone()).await;
        say(&format!("conformance of chats in {}: {cases} cases", backend.name()));
        assert_eq!(chat_conformance::check(async || backend.connect().await).await, cases);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_in_redis_pass_the_conformance_suite() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        let cases = run_conformance::check(async || store.clone()).await;
        say(&format!("conformance of runs in {}: {cases} cases", backend.name()));
        assert_eq!(run_conformance::check(async || backend.connect().await).await, cases);
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
