//! Counts the commands of a turn. All users of a Redis share its one thread.

use std::sync::Arc;

use chat_test_support::turn_costs::costs_of_ten_turns;
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream_redis::RedisStore;

#[tokio::test]
async fn the_commands_of_a_turn_are_counted() {
    // Turns do not wait for a disk that other tests use.
    let Some(redis) = RedisServer::start_with(&[]) else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let commands = async || [redis.executed_commands()];
    let [commands] = costs_of_ten_turns(Arc::new(store), commands).await;
    // The median: in a slow turn a server subscribes, and its connection pings every few seconds.
    assert_eq!(commands[5], 63, "{commands:?}");
}
