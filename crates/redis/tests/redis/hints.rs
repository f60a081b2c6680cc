//! Readers that wait are woken by changes of another connection, as in another process.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::poll;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::redis_server::RedisServer;
use test_support::run_hints::{
    check_appends_and_takes, check_ends_and_deletions, check_many_readers, within, woken_at,
};
use test_support::store_requests::{appended, begin, frame, holder, page, run_key};
use tokio::time::timeout;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{Fence, RunKey, TakeCondition, TakeResult, TakeRun};
use ui_message_stream::chat::store::RunStore;
use ui_message_stream_redis::RedisStore;

use crate::backend::{Backend, keys};

#[tokio::test]
async fn a_reader_is_woken_by_what_another_server_changes() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        check_appends_and_takes(&writer, &reader).await;
    }
}

#[tokio::test]
async fn a_reader_is_woken_when_a_log_ends_or_is_deleted() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let ada = Principal::new("ada");
        let delete = async { assert!(writer.delete_user(&ada).await.unwrap().runs > 0) };
        check_ends_and_deletions(&writer, &reader, delete).await;
    }
}

#[tokio::test]
async fn one_connection_follows_all_runs_and_no_command_waits_in_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let (writer, reader) = (
        RedisStore::connect(&redis.url()).await.unwrap(),
        RedisStore::connect(&redis.url()).await.unwrap(),
    );
    let keys: Vec<RunKey> =
        (0..30).map(|number| run_key(&Principal::new(format!("user {number}")), "run")).collect();
    for key in &keys {
        let _ = begin(&writer, key, 1).await;
    }
    let waits: Vec<_> = keys
        .iter()
        .map(|key| {
            let (reader, key) = (reader.clone(), key.clone());
            tokio::spawn(async move { woken_at(&reader, &key, 0, |page| page.length == 1).await })
        })
        .collect();
    while redis.command(COUNT_CHANNELS) != ":30" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Two connections of the stores, one that follows, and the one that asks.
    let clients = redis.command("CLIENT LIST");
    assert_eq!(clients.lines().count(), 4, "{clients}");
    assert_eq!(clients.matches(" flags=P ").count(), 1, "{clients}");
    assert_eq!(clients.matches(" flags=b ").count(), 0, "{clients}");
    for key in &keys {
        appended(&writer, key, 0, &[frame("a")], false).await;
    }
    for wait in waits {
        within(wait).await.unwrap();
    }
}

#[tokio::test]
async fn while_the_connection_that_follows_is_away_readers_look_themselves() {
    let Some(redis) = RedisServer::start() else { return };
    let (writer, reader) = (
        RedisStore::connect(&redis.url()).await.unwrap(),
        RedisStore::connect(&redis.url()).await.unwrap(),
    );
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&writer, &key, 1).await;
    // No channel can be subscribed.
    redis.command("ACL SETUSER default -subscribe");
    for position in 0..3 {
        let wait = woken_at(&reader, &key, position, |page| page.length > position);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&writer, &key, position, &entries, false));
    }
    redis.command("ACL SETUSER default +subscribe");
    for position in 3..6 {
        redis.command("CLIENT KILL TYPE pubsub");
        let wait = woken_at(&reader, &key, position, |page| page.length > position);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&writer, &key, position, &entries, false));
    }
}

#[tokio::test]
async fn a_reader_is_woken_again_after_all_its_connections_were_half_open() {
    for (backend, proxies) in Backend::all_behind_proxies() {
        let (writer, reader) = (backend.connect().await, backend.connect_through(&proxies).await);
        let key = run_key(&Principal::new("ada"), "run");
        let _ = begin(&writer, &key, 1).await;
        let entries = [frame("a")];
        let is_followed = |node: &RedisServer| node.command(COUNT_CHANNELS) == ":1";
        let append = async {
            while !backend.nodes().iter().any(is_followed) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            appended(&writer, &key, 0, &entries, false).await;
        };
        tokio::join!(woken_at(&reader, &key, 0, |page| page.length == 1), append);
        let half_open = followers(backend.nodes());
        proxies.iter().for_each(FaultProxy::half_open);
        let writer = backend.connect().await;
        // A reader waits all the time, so that the channel is not given up.
        let follows_again = async {
            while followers(backend.nodes()).is_subset(&half_open) {
                let _ = tokio::join!(reader.ping(), reader.changed(&key, 1));
            }
        };
        within(follows_again).await;
        // A reader that relies on messages and gets none waits for five seconds each time.
        let alternately = async {
            for position in 1..30 {
                let wait = woken_at(&reader, &key, position, |page| page.length > position);
                tokio::join!(wait, appended(&writer, &key, position, &entries, false));
            }
        };
        within(alternately).await;
    }
}

/// Returns the addresses of the connections that have subscribed a channel.
fn followers(nodes: &[RedisServer]) -> BTreeSet<String> {
    let clients = nodes.iter().map(|node| node.command("CLIENT LIST TYPE pubsub"));
    let address_of = |client: &str| {
        let mut fields = client.split(' ');
        let address = fields.find(|field| field.starts_with("addr="))?.to_owned();
        fields.any(|field| field == "sub=1").then_some(address)
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
    let (writer, reader) = (
        RedisStore::connect(&redis.url()).await.unwrap(),
        RedisStore::connect(&redis.url()).await.unwrap(),
    );
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&writer, &key, 1).await;
    for position in 0..3 {
        let wait = woken_at(&reader, &key, position, |page| page.length > position);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&writer, &key, position, &entries, false));
    }
    let knows_of_the_third = async {
        while poll!(reader.changed(&key, 2)).is_pending() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(knows_of_the_third).await;
    let log = keys(&redis).into_iter().find(|key| key.contains(":log:")).unwrap();
    redis.command(&format!("LTRIM {log} 0 0"));
    assert_eq!(page(&reader, &key).await.unwrap().length, 1);
    assert!(poll!(reader.changed(&key, 1)).is_pending());
    let wait = woken_at(&reader, &key, 1, |page| page.length == 2);
    let entries = [frame("b")];
    tokio::join!(wait, appended(&writer, &key, 1, &entries, false));
}

#[tokio::test]
async fn a_user_of_redis_without_channels_changes_runs_and_reads_them() {
    let Some(redis) = RedisServer::start() else { return };
    redis.command("ACL SETUSER default resetchannels");
    let (writer, reader) = (
        RedisStore::connect(&redis.url()).await.unwrap(),
        RedisStore::connect(&redis.url()).await.unwrap(),
    );
    let (ada, condition) = (Principal::new("ada"), TakeCondition::Any);
    let key = run_key(&ada, "run");
    let _ = begin(&writer, &key, 1).await;
    let wait = woken_at(&reader, &key, 0, |page| page.length == 1);
    let entries = [frame("a")];
    tokio::join!(wait, appended(&writer, &key, 0, &entries, false));
    let take = TakeRun {
        key: &key,
        fence: Fence(1),
        holder: holder(2),
        condition,
        lease: Duration::from_secs(10),
    };
    assert_eq!(writer.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
    assert_eq!(writer.delete_user(&ada).await.unwrap().runs, 1);
}

#[tokio::test]
async fn runs_without_a_reader_are_forgotten_also_if_no_channel_can_be_subscribed() {
    let Some(redis) = RedisServer::start() else { return };
    redis.command("ACL SETUSER default resetchannels");
    let reader = RedisStore::connect(&redis.url()).await.unwrap();
    let keys = (0..30).map(|run| run_key(&Principal::new("ada"), &run.to_string()));
    for key in keys {
        assert!(poll!(reader.changed(&key, 0)).is_pending());
    }
    let key = run_key(&Principal::new("ada"), "read");
    // Each wait takes as long as the follower waits before it tries again.
    for _ in 0..8 {
        within(reader.changed(&key, 0)).await;
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
    assert_eq!(within(channels).await, ":1");
}

#[tokio::test]
async fn a_dropped_store_leaves_no_task_also_if_redis_is_away() {
    let Some(mut redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let key = run_key(&Principal::new("ada"), "run");
    redis.kill();
    {
        let mut changed = store.changed(&key, 0);
        assert!(poll!(&mut changed).is_pending());
        // The task tries to connect.
        tokio::task::yield_now().await;
    }
    drop(store);
    let ended = async {
        while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(ended).await;
}

/// A command that counts the channels that are subscribed.
const COUNT_CHANNELS: &str = "EVAL \"return #redis.call('PUBSUB', 'CHANNELS')\" 0";
