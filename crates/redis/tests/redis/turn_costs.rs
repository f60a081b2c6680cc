//! How many commands a turn needs. All users of a Redis share its one thread.

use std::sync::Arc;

use chat_test_support::turn_costs::costs_of_ten_turns;
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream_redis::RedisStore;

#[tokio::test]
async fn a_turn_needs_67_commands() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let commands = async || [redis.executed_commands()];
    let costs = costs_of_ten_turns(Arc::new(store), commands).await;
    // A response that has to wait for its run subscribes, and reads once more. Once in some seconds, a connection
    // pings. Both only add commands.
    assert_eq!(costs.iter().min(), Some(&[67]), "{costs:?}");
}
