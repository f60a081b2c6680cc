//! Readers that wait are woken by changes of another connection, as in another process.

use std::collections::BTreeSet;
use std::time::Duration;

use chat_test_support::log_hints::{
    check_appends_and_takeovers, check_ends_and_deletions, check_lists, check_many_readers,
    more_than_without_hints, woken_at,
};
use chat_test_support::store_requests::{
    EPOCH, adas, append_at, appended, begin, create, end, frame, key, read_from,
};
use futures::poll;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::redis_server::RedisServer;
use test_support::{eventually, within_patience};
use tokio::time::timeout;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{AppendLog, LogKey, LogStore};
use ui_message_stream_redis::RedisStore;

use crate::backend::{Backend, key_with, redis_and_store};

#[tokio::test]
async fn a_reader_is_woken_by_what_another_server_changes() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        check_appends_and_takeovers(&writer, &reader).await;
        check_lists(&writer, &reader).await;
    }
}

#[tokio::test]
async fn a_reader_is_woken_when_a_run_ends_or_its_log_is_deleted() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let ada = Principal::new("ada");
        let delete = async { assert_eq!(writer.delete_user(&ada).await.unwrap().chats, 2) };
        check_ends_and_deletions(&writer, &reader, delete).await;
    }
}

#[tokio::test]
async fn one_connection_follows_all_logs_and_no_command_waits_in_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let (writer, reader) = two_stores(&redis).await;
    let keys: Vec<LogKey> =
        (0..30).map(|number| key(&Principal::new(format!("user {number}")), "chat")).collect();
    for key in &keys {
        begin(&writer, key).await;
    }
    let waits: Vec<_> = keys
        .iter()
        .map(|key| {
            let (reader, key) = (reader.clone(), key.clone());
            tokio::spawn(
                async move { woken_at(&reader, &key, 1, |page| page.head.length == 2).await },
            )
        })
        .collect();
    eventually(async || redis.command(COUNT_CHANNELS) == ":30").await;
    // Two connections of the stores, one that follows, and the one that asks.
    let clients = redis.command("CLIENT LIST");
    assert_eq!(clients.lines().count(), 4, "{clients}");
    assert_eq!(clients.matches(" flags=P ").count(), 1, "{clients}");
    assert_eq!(clients.matches(" flags=b ").count(), 0, "{clients}");
    for key in &keys {
        appended(&writer, append_at(key, 1, &[frame("a")])).await;
    }
    for wait in waits {
        within_patience(wait).await.unwrap();
    }
}

#[tokio::test]
async fn while_the_connection_that_follows_is_away_readers_look_themselves() {
    let Some(redis) = RedisServer::start() else { return };
    let (writer, reader) = two_stores(&redis).await;
    let key = adas("chat");
    begin(&writer, &key).await;
    // No channel can be subscribed.
    redis.command("ACL SETUSER default -subscribe");
    for position in 1..4 {
        woken_by_an_append(&writer, &reader, &key, position).await;
    }
    redis.command("ACL SETUSER default +subscribe");
    for position in 4..7 {
        redis.command("CLIENT KILL TYPE pubsub");
        woken_by_an_append(&writer, &reader, &key, position).await;
    }
}

#[tokio::test]
async fn a_reader_is_woken_again_after_all_its_connections_were_half_open() {
    for (backend, proxies) in Backend::all_behind_proxies() {
        let (writer, reader) = (backend.connect().await, backend.connect_through(&proxies).await);
        let key = adas("chat");
        begin(&writer, &key).await;
        let entries = [frame("a")];
        let is_followed = |node: &RedisServer| {
            [COUNT_CHANNELS, COUNT_SHARD_CHANNELS].iter().any(|count| node.command(count) == ":1")
        };
        let append = async {
            eventually(async || backend.nodes().iter().any(is_followed)).await;
            appended(&writer, append_at(&key, 1, &entries)).await;
        };
        tokio::join!(woken_at(&reader, &key, 1, |page| page.head.length == 2), append);
        let half_open = followers(backend.nodes());
        proxies.iter().for_each(FaultProxy::half_open);
        let writer = backend.connect().await;
        // A reader waits all the time, so that the channel is not given up.
        let follows_again = async {
            while followers(backend.nodes()).is_subset(&half_open) {
                let _ = tokio::join!(reader.ping(), reader.changed(&key, 2));
            }
        };
        within_patience(follows_again).await;
        // A reader that relies on messages and gets none waits for five seconds each time.
        let alternately = async {
            for position in 2..2 + more_than_without_hints() {
                let wait = woken_at(&reader, &key, position, |page| page.head.length > position);
                tokio::join!(wait, appended(&writer, append_at(&key, position, &entries)));
            }
        };
        within_patience(alternately).await;
    }
}

/// Returns the addresses of the connections that have subscribed a channel.
fn followers(nodes: &[RedisServer]) -> BTreeSet<String> {
    let clients = nodes.iter().map(|node| node.command("CLIENT LIST TYPE pubsub"));
    let address_of = |client: &str| {
        let mut fields = client.split(' ');
        let address = fields.find(|field| field.starts_with("addr="))?.to_owned();
        fields.any(|field| matches!(field, "sub=1" | "ssub=1")).then_some(address)
    };
    clients.flat_map(|list| list.lines().filter_map(address_of).collect::<Vec<_>>()).collect()
}

#[tokio::test]
async fn many_readers_of_one_server_read_the_whole_log_of_another() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        check_many_readers(&writer, &reader).await;
    }
}

#[tokio::test]
async fn a_reader_waits_for_a_log_of_which_redis_has_lost_entries() {
    let Some(redis) = RedisServer::start() else { return };
    let (writer, reader) = two_stores(&redis).await;
    let key = adas("chat");
    begin(&writer, &key).await;
    for position in 1..4 {
        woken_by_an_append(&writer, &reader, &key, position).await;
    }
    let knows_of_the_third = async {
        while poll!(reader.changed(&key, 3)).is_pending() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within_patience(knows_of_the_third).await;
    redis.command(&format!("LTRIM {} 0 0", key_with(&redis, ":0:hchat")));
    assert_eq!(read_from(&reader, &key, 0).await.unwrap().head.length, 1);
    assert!(poll!(reader.changed(&key, 1)).is_pending());
    let wait = woken_at(&reader, &key, 1, |page| page.head.length == 2);
    let entries = [frame("b")];
    tokio::join!(wait, appended(&writer, append_at(&key, 1, &entries)));
}

#[tokio::test]
async fn a_user_of_redis_without_channels_changes_logs_and_reads_them() {
    let Some(redis) = RedisServer::start() else { return };
    redis.command("ACL SETUSER default resetchannels");
    let (writer, reader) = two_stores(&redis).await;
    let ada = Principal::new("ada");
    let key = key(&ada, "chat");
    begin(&writer, &key).await;
    let entries = [frame("a")];
    for (position, lease) in [(1, None), (2, Some(Duration::from_secs(10)))] {
        let wait = woken_at(&reader, &key, position, |page| page.head.length > position);
        let append = AppendLog { lease, ..append_at(&key, position, &entries) };
        tokio::join!(wait, appended(&writer, append));
    }
    end(&writer, &key, 3).await;
    assert_eq!(writer.delete_user(&ada).await.unwrap().chats, 1);
}

#[tokio::test]
async fn what_was_known_of_a_deleted_log_does_not_wake_the_readers_of_the_next_one() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let key = adas("chat");
        create(&writer, &key).await;
        let entries = [frame("a")];
        // The first wait subscribes the channel.
        let wait = woken_at(&reader, &key, 1, |page| page.head.length > 1);
        tokio::join!(wait, appended(&writer, append_at(&key, 1, &entries)));
        let wait = woken_at(&reader, &key, 2, |page| page.head.length > 2);
        tokio::join!(wait, appended(&writer, append_at(&key, 2, &entries)));
        assert!(writer.delete(&key, EPOCH, 1).await.unwrap());
        create(&writer, &key).await;
        while timeout(SHORT, reader.changed(&key, 1)).await.is_ok() {}
        let wait = woken_at(&reader, &key, 1, |page| page.head.length > 1);
        tokio::join!(wait, appended(&writer, append_at(&key, 1, &entries)));
    }
}

#[tokio::test]
async fn logs_without_a_reader_are_forgotten_also_if_no_channel_can_be_subscribed() {
    let Some(redis) = RedisServer::start() else { return };
    redis.command("ACL SETUSER default resetchannels");
    let reader = RedisStore::connect(&redis.url()).await.unwrap();
    let keys = (0..30).map(|chat| adas(&chat.to_string()));
    for key in keys {
        assert!(poll!(reader.changed(&key, 0)).is_pending());
    }
    let key = adas("read");
    // Each wait takes as long as the follower waits before it tries again.
    for _ in 0..8 {
        within_patience(reader.changed(&key, 0)).await;
    }
    redis.command("ACL SETUSER default allchannels");
    let channels = async {
        loop {
            let _ = timeout(Duration::from_millis(10), reader.changed(&key, 0)).await;
            let channels = redis.command(COUNT_CHANNELS);
            if channels != ":0" {
                return channels;
            }
        }
    };
    assert_eq!(within_patience(channels).await, ":1");
}

#[tokio::test]
async fn a_dropped_store_leaves_no_task_also_if_redis_is_away() {
    let Some((mut redis, store)) = redis_and_store().await else { return };
    let key = adas("chat");
    redis.kill();
    {
        let mut changed = store.changed(&key, 0);
        assert!(poll!(&mut changed).is_pending());
        // The task tries to connect.
        tokio::task::yield_now().await;
    }
    drop(store);
    let tasks = tokio::runtime::Handle::current().metrics();
    eventually(async || tasks.num_alive_tasks() == 0).await;
}

/// A command that counts the channels that are subscribed.
pub(crate) const COUNT_CHANNELS: &str = "EVAL \"return #redis.call('PUBSUB', 'CHANNELS')\" 0";

/// A command that counts the channels that are subscribed at this node of a cluster.
pub(crate) const COUNT_SHARD_CHANNELS: &str =
    "EVAL \"return #redis.call('PUBSUB', 'SHARDCHANNELS')\" 0";

/// Readers that wait so long have no hint.
const SHORT: Duration = Duration::from_millis(300);

/// Connects two stores, as two servers do.
async fn two_stores(redis: &RedisServer) -> (RedisStore, RedisStore) {
    let store = async || RedisStore::connect(&redis.url()).await.unwrap();
    (store().await, store().await)
}

/// Appends an entry at this position, which wakes the reader.
async fn woken_by_an_append(writer: &RedisStore, reader: &RedisStore, key: &LogKey, position: u64) {
    let wait = woken_at(reader, key, position, |page| page.head.length > position);
    let entries = [frame("a")];
    tokio::join!(wait, appended(writer, append_at(key, position, &entries)));
}
