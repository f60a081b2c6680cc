//! Servers are killed at random moments while they deliver the events of approvals.

use std::process::Command;
use std::sync::Arc;

use test_support::external_processes::redis_server::RedisServer;
use test_support::notifier_kills::{Server, kill_at_random};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream_redis::RedisOptions;

pub(crate) async fn each_event_is_delivered_at_least_once_and_in_order(
    redis: &RedisServer,
) -> String {
    let server = || {
        let mut server = Command::new(std::env::current_exe().unwrap());
        server.env("REDIS", redis.url());
        server
    };
    kill_at_random(server, async || connect(&redis.url()).await).await
}

/// In the process: delivers until it is killed.
pub(crate) async fn serve(server: Server) {
    server.serve(connect(&std::env::var("REDIS").unwrap()).await).await;
}

async fn connect(redis: &str) -> Arc<dyn LedgerStore> {
    let options = RedisOptions::new().with_prefix("notices:");
    Arc::new(options.connect(redis).await.unwrap())
}
