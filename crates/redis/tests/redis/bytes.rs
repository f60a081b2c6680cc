//! How many bytes the store sends to Redis for a response of many deltas.

use std::sync::Arc;

use chat_test_support::long_answer::stream_long_answer;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::say;
use ui_message_stream_redis::RedisStore;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_answer_is_sent_to_redis_about_once() {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = FaultProxy::before_redis(&redis);
    let store = Arc::new(RedisStore::connect(&proxy.url).await.unwrap());
    let before = proxy.request_bytes();
    let answer = stream_long_answer(store).await;
    let sent = proxy.request_bytes() - before;
    say(&format!("Redis, bytes: {sent} bytes sent for {answer:?}"));
    assert!(sent <= answer.permitted_bytes(), "{sent} bytes sent for {answer:?}");
}
