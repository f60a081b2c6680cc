//! Readers that wait are woken by changes of another connection, as in another process.

use std::time::Duration;

use futures::poll;
use test_support::external_processes::redis_server::RedisServer;
use test_support::store_requests::{appended, begin, frame, holder, page, run_key};
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{Fence, RunKey, TakeCondition, TakeResult, TakeRun};
use ui_message_stream::chat::store::RunStore;
use ui_message_stream_redis::RedisStore;

use crate::backend::{Backend, keys};

#[tokio::test]
async fn a_reader_is_woken_by_what_another_server_changes() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let key = run_key(&Principal::new("ada"), "run");
        let _ = begin(&writer, &key, 1).await;

        let wait = woken_at(&reader, &key, 0, |length, _| length == 1);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&writer, &key, 0, &entries, false));

        let wait = woken_at(&reader, &key, 1, |_, fence| fence == 2);
        let take = async {
            let fence = page(&writer, &key).await.unwrap().fence;
            let condition = TakeCondition::Any;
            let take = TakeRun { key: &key, fence, holder: holder(2), condition };
            assert_eq!(writer.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
        };
        tokio::join!(wait, take);
    }
}

#[tokio::test]
async fn a_reader_that_only_waits_reads_each_append_of_another_server() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let key = run_key(&Principal::new("ada"), "run");
        let _ = begin(&writer, &key, 1).await;
        // A reader without hints waits for five seconds each time.
        let alternately = async {
            for position in 0..30 {
                let wait = woken_at(&reader, &key, position, |length, _| length > position);
                let entries = [frame("a")];
                tokio::join!(wait, appended(&writer, &key, position, &entries, false));
            }
        };
        within(alternately).await;
    }
}

#[tokio::test]
async fn a_reader_is_woken_when_a_log_ends_or_is_deleted() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let ada = Principal::new("ada");
        let (ended, deleted) = (run_key(&ada, "ended"), run_key(&ada, "deleted"));
        for key in [&ended, &deleted] {
            let _ = begin(&writer, key, 2).await;
        }
        let wait = async |key| {
            while page(&reader, key).await.is_some_and(|page| page.length == 0) {
                changed_after(&reader, key, 0).await;
            }
        };
        let waits = async { tokio::join!(wait(&ended), wait(&deleted)) };
        let ends = async {
            appended(&writer, &ended, 0, &[frame("a")], true).await;
            writer.delete_user(&ada).await.unwrap();
        };
        tokio::join!(waits, ends);
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
            tokio::spawn(async move { woken_at(&reader, &key, 0, |length, _| length == 1).await })
        })
        .collect();
    while redis.command("EVAL \"return #redis.call('PUBSUB', 'CHANNELS')\" 0") != ":30" {
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
        let wait = woken_at(&reader, &key, position, |length, _| length > position);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&writer, &key, position, &entries, false));
    }
    redis.command("ACL SETUSER default +subscribe");
    for position in 3..6 {
        redis.command("CLIENT KILL TYPE pubsub");
        let wait = woken_at(&reader, &key, position, |length, _| length > position);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&writer, &key, position, &entries, false));
    }
}

#[tokio::test]
async fn many_readers_of_one_server_read_the_whole_log_of_another() {
    for backend in Backend::all() {
        let (writer, store) = (backend.connect().await, backend.connect().await);
        let key = run_key(&Principal::new("ada"), "run");
        let _ = begin(&writer, &key, 1).await;
        let readers: Vec<_> = (0..20)
            .map(|_| {
                let (store, key) = (store.clone(), key.clone());
                tokio::spawn(async move {
                    loop {
                        let page = page(&store, &key).await.unwrap();
                        if page.length == 100 {
                            return page.entries.len();
                        }
                        store.changed(&key, page.length).await;
                    }
                })
            })
            .collect();
        for position in 0..100 {
            appended(&writer, &key, position, &[frame("x")], position == 99).await;
        }
        for reader in readers {
            assert_eq!(within(reader).await.unwrap(), 100);
        }
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
        let wait = woken_at(&reader, &key, position, |length, _| length > position);
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
    let wait = woken_at(&reader, &key, 1, |length, _| length == 2);
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
    let wait = woken_at(&reader, &key, 0, |length, _| length == 1);
    let entries = [frame("a")];
    tokio::join!(wait, appended(&writer, &key, 0, &entries, false));
    let take = TakeRun { key: &key, fence: Fence(1), holder: holder(2), condition };
    assert_eq!(writer.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
    assert_eq!(writer.delete_user(&ada).await.unwrap().runs, 1);
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

/// Waits until the run is in this state, and fails if the hints stop before.
async fn woken_at(
    store: &RedisStore,
    key: &RunKey,
    after: u64,
    is_there: impl Fn(u64, u64) -> bool,
) {
    loop {
        changed_after(store, key, after).await;
        let page = page(store, key).await.unwrap();
        if is_there(page.length, page.fence.0) {
            return;
        }
    }
}

async fn changed_after(store: &RedisStore, key: &RunKey, after: u64) {
    within(store.changed(key, after)).await;
}

/// A hint that does not come fails the test.
async fn within<T>(run: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), run).await.expect("no hint has come")
}
