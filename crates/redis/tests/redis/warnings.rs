//! Warnings about a Redis that may lose data.

use test_support::external_processes::redis_server::RedisServer;
use test_support::thread_subscriber::{CapturedLog, subscribe};
use ui_message_stream_redis::RedisOptions;

use test_support::external_processes::redis_cluster::RedisCluster;

#[tokio::test]
async fn connecting_to_a_redis_that_may_evict_keys_logs_a_warning() {
    let Some(redis) = RedisServer::start() else { return };
    assert_eq!(warnings(RedisOptions::new(), &redis).await, "");
    redis.command("CONFIG SET maxmemory-policy allkeys-lru");
    let warned = warnings(RedisOptions::new(), &redis).await;
    assert!(warned.contains("WARN") && warned.contains("allkeys-lru"), "{warned}");
}

#[tokio::test]
async fn connecting_to_a_redis_that_may_lose_writes_logs_a_warning() {
    let Some(redis) = RedisServer::start_with(&[]) else { return };
    let warned = warnings(RedisOptions::new(), &redis).await;
    assert!(warned.contains("set appendonly to yes"), "{warned}");
    assert!(warned.contains("declared_durable=false"), "{warned}");
    assert!(!warned.contains("a second time"), "{warned}");
    let warned = warnings(RedisOptions::new().assume_durable(), &redis).await;
    let lines =
        ["after a restart an approved call may be executed a second time", "set appendonly to yes"];
    assert!(lines.iter().all(|line| warned.contains(line)), "{warned}");
    assert!(warned.contains("remove `RedisOptions::assume_durable`"), "{warned}");
    redis.command("CONFIG SET appendonly yes");
    let warned = warnings(RedisOptions::new().assume_durable(), &redis).await;
    assert!(warned.contains("everysec") && warned.contains("declared_durable=true"), "{warned}");
    assert!(warned.contains("remove `RedisOptions::assume_durable`"), "{warned}");
    redis.command("CONFIG SET appendfsync always");
    assert_eq!(warnings(RedisOptions::new().assume_durable(), &redis).await, "");
}

#[tokio::test]
async fn a_redis_that_does_not_tell_its_settings_is_used_with_a_warning() {
    let Some(redis) = RedisServer::start() else { return };
    redis.command("ACL SETUSER default -config");
    assert_eq!(warnings(RedisOptions::new(), &redis).await, "");
    let warned = warnings(RedisOptions::new().assume_durable(), &redis).await;
    assert!(warned.contains("the persistence settings of Redis cannot be read"), "{warned}");
    redis.command("ACL SETUSER default -info");
    let warned = warnings(RedisOptions::new(), &redis).await;
    assert!(warned.contains("the persistence settings of Redis cannot be read"), "{warned}");
    assert!(warned.contains("the maxmemory-policy of Redis cannot be read"), "{warned}");
}

#[tokio::test]
async fn one_node_of_a_cluster_with_other_settings_is_enough_for_a_warning() {
    let Some(cluster) = RedisCluster::start() else { return };
    let warned = async || {
        let (log, writer) = log();
        let _subscription = subscribe(writer);
        RedisOptions::new().connect_cluster(cluster.urls()).await.unwrap();
        log.text()
    };
    assert_eq!(warned().await, "");
    cluster.nodes()[2].command("CONFIG SET maxmemory-policy allkeys-lru");
    assert!(warned().await.contains("allkeys-lru"));
    cluster.nodes()[1].command("CONFIG SET appendonly no");
    assert!(warned().await.contains("set appendonly to yes"));
}

/// Connects, and returns the text of the log.
async fn warnings(options: RedisOptions, redis: &RedisServer) -> String {
    let (log, writer) = log();
    let _subscription = subscribe(writer);
    options.connect(&redis.url()).await.unwrap();
    log.text()
}

pub(crate) fn log() -> (CapturedLog, impl tracing::Subscriber + Send + Sync) {
    let log = CapturedLog::default();
    let writer = log.writer();
    (log, tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish())
}
