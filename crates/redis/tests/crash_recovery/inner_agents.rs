//! Servers are killed at random moments while agents that are tools ask for calls, and go on.

use std::process::Command;
use std::sync::Arc;

use chat_test_support::inner_agent_kills::{Server, kill_at_random};
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream_redis::{RedisOptions, RedisStore};

pub(crate) async fn each_call_runs_at_most_once_and_no_question_is_lost(
    redis: &RedisServer,
) -> String {
    let server = || {
        let mut server = Command::new(std::env::current_exe().unwrap());
        server.env("REDIS", redis.url());
        server
    };
    kill_at_random(server, async || connect(&redis.url()).await).await
}

/// In the process: serves until it is killed.
pub(crate) async fn serve(server: Server) {
    server.serve(connect(&std::env::var("REDIS").unwrap()).await).await;
}

async fn connect(redis: &str) -> Arc<RedisStore> {
    let options = RedisOptions::new().with_prefix("agents:");
    Arc::new(options.connect(redis).await.unwrap())
}
