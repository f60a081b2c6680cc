//! A Redis that ends, hangs or is full, and replies that are lost: chats and logs are as the
//! callers were told.

use std::error::Error;
use std::time::{Duration, Instant};

use chat_test_support::faulted_operations::{operate, operate_during_faults};
use chat_test_support::log_hints::{more_than_without_hints, woken_at};
use chat_test_support::store_requests::{
    EPOCH, adas, append_at, appended, begin, control, create, creation, end, frame, key, load, put,
    read_all,
};
use futures::future::join_all;
use futures::poll;
use test_support::contention;
use test_support::contention::InsertOne;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::number;
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use test_support::{eventually, within_patience};
use tokio::time::sleep;
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream_chat::store::LogKey;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, Epoch, Expected, ListChats, LiveRunChange, LoadLog, LogStore,
    PutSnapshot, ReadLogEntries,
};
use ui_message_stream_redis::RedisOptions;
use ui_message_stream_redis::{RedisStore, RedisStoreError};

use crate::backend::{Backend, key_with, keys, redis_and_store, redis_behind_proxy};
use crate::retention::START;

#[tokio::test]
async fn an_operation_whose_reply_is_lost_takes_effect_once() {
    let Some((_redis, proxy, store)) = redis_behind_proxy().await else { return };
    // The first round loads the scripts.
    for round in 0..=number("LOST_REPLIES", 20) {
        let lost = usize::from(round > 0);
        let before = || {
            assert!(proxy.has_lost());
            proxy.lose_replies(lost);
        };
        // Two appends fail: they are not sent again. Before the other writes something is read, whose reply is lost,
        // and which is sent again.
        assert_eq!(operate(&store, round, &before).await, 2 * lost);

        let ada = Principal::new("ada");
        let key = key(&ada, &format!("chat {round}"));
        create(&store, &key).await;
        proxy.lose_replies(lost);
        assert_eq!(load(&store, &key).await.unwrap().head.length, 1);
        proxy.lose_replies(lost);
        assert!(store.rename(&key, "renamed").await.unwrap());
        proxy.lose_replies(lost);
        let listed = store.list(&ada, LIST).await.unwrap().chats;
        assert_eq!((listed.len(), &*listed[0].title), (1, "renamed"));
        proxy.lose_replies(lost);
        assert!(store.delete(&key, EPOCH, 1).await.unwrap());
        assert!(load(&store, &key).await.is_none());
    }
}

#[tokio::test]
async fn with_faults_at_random_moments_each_operation_takes_effect_once() {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = FaultProxy::before_redis(&redis);
    let (store, other) =
        (RedisStore::connect(&proxy.url).await, RedisStore::connect(&proxy.url).await);
    let stores = [&store.unwrap(), &other.unwrap()];
    operate_during_faults(&proxy, stores, number("FAULTED_USERS", 10)).await;
}

#[tokio::test]
async fn an_append_whose_reply_is_lost_is_in_the_log_once_also_if_others_append_since() {
    for (backend, proxies) in Backend::all_behind_proxies() {
        let (store, other) = (backend.connect_through(&proxies).await, backend.connect().await);
        let key = adas("chat");
        begin(&store, &key).await;
        // With a lease, the append is one of the frequent kind. The scripts are loaded: the next reply is that
        // of the append.
        for (position, lease) in [(1, None), (3, Some(Duration::from_secs(10)))] {
            appended(&store, AppendLog { lease, ..append_at(&key, position, &[]) }).await;
            for proxy in &proxies {
                proxy.delay_losses(true);
                proxy.lose_replies(1);
            }
            let own = [frame("own")];
            let own = store.append(AppendLog { lease, ..append_at(&key, position, &own) });
            let others = async {
                eventually(async || proxies.iter().any(FaultProxy::has_lost)).await;
                proxies.iter().for_each(|proxy| proxy.lose_replies(0));
                appended(&other, append_at(&key, position + 1, &[frame("others")])).await;
                proxies.iter().for_each(|proxy| proxy.delay_losses(false));
            };
            let (own, ()) = tokio::join!(own, others);
            // It is not sent again.
            assert!(own.is_err(), "{}: {own:?}", backend.name());
        }
        let [own, others] = ["own", "others"].map(frame);
        let expected = [control("begin"), own.clone(), others.clone(), own, others];
        assert_eq!(read_all(&store, &key).await, expected);
    }
}

#[tokio::test]
async fn appends_of_several_runs_are_sent_in_one_call_and_fail_each_on_its_own() {
    let Some((redis, store)) = redis_and_store().await else { return };
    let owner = |number: usize| Principal::new(format!("user {number}"));
    let keys: Vec<LogKey> = (0..100).map(|number| key(&owner(number), "chat")).collect();
    for key in &keys {
        begin(&store, key).await;
    }
    // The first call loads the script. Another run has written in one of the chats, and one is deleted.
    let (entries, lease) = ([frame("a"), frame("b")], Some(Duration::from_secs(10)));
    let append = |key, position| AppendLog { lease, ..append_at(key, position, &entries) };
    appended(&store, append(&keys[1], 1)).await;
    assert!(store.delete(&keys[2], EPOCH, 1).await.unwrap());
    // Another program has written a key of a chat.
    let damaged = key(&owner(100), "damaged");
    begin(&store, &damaged).await;
    redis.command(&format!("SET {} text", key_with(&redis, ":0:hdamaged")));
    let calls = || {
        let stats = redis.command("INFO commandstats");
        let calls = stats.split_once("cmdstat_evalsha:calls=").unwrap().1;
        calls.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    let before = calls();
    let mut dropped = Box::pin(store.append(append(&keys[0], 1)));
    assert!(poll!(&mut dropped).is_pending());
    let appends = join_all(keys[1..].iter().map(|key| store.append(append(key, 1))));
    drop(dropped);
    let (results, failed) = tokio::join!(appends, store.append(append(&damaged, 1)));
    let cause = failed.unwrap_err().source().unwrap().to_string();
    assert!(cause.contains("another program has written a key"), "{cause}");
    // There are two calls for 64 appends at most, and one for each of the two that are refused.
    assert_eq!(calls() - before, 4);
    for (number, result) in results.into_iter().enumerate() {
        match (number, result.unwrap()) {
            (0 | 1, AppendResult::Conflict) => {}
            (2.., AppendResult::Appended { first: 1, head }) => assert_eq!(head.length, 3),
            result => panic!("{result:?}"),
        }
    }
    let [a, b] = entries.clone();
    assert_eq!(read_all(&store, &keys[3]).await, [control("begin"), a.clone(), b.clone()]);
    assert_eq!(read_all(&store, &keys[0]).await, [control("begin"), a, b]);
}

#[tokio::test]
async fn requests_that_arrive_again_after_all_others_change_nothing() {
    let Some((redis, proxy, store)) = redis_behind_proxy().await else { return };
    let repeat = async || {
        let stored = contents(&redis);
        let replies = proxy.repeat_requests(&redis).await;
        let is_reply = |line: &str| line.starts_with([':', '*']);
        assert!(replies.lines().any(is_reply) && !replies.contains("\n-"), "{replies}");
        assert_eq!(contents(&redis), stored);
    };
    proxy.record_requests();
    let _ = operate(&store, 1, &|| {}).await;
    repeat().await;

    // A chat that was deleted and begins again.
    let ada = Principal::new("ada");
    let chat = key(&ada, "chat");
    proxy.record_requests();
    begin(&store, &chat).await;
    appended(&store, append_at(&chat, 1, &[frame("a")])).await;
    assert!(store.delete(&chat, EPOCH, 1).await.unwrap());
    let entries = [control("again")];
    let again = Expected::NoLog(Epoch(8));
    appended(&store, AppendLog { expected: again, ..creation(&chat, &entries) }).await;
    repeat().await;

    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    record.requester = ada.clone();
    assert!(store.insert(&record).await.unwrap());
    // A deleted user who begins again.
    proxy.record_requests();
    let deleted = store.delete_user(&ada).await.unwrap();
    assert_eq!((deleted.chats, deleted.approvals), (1, 1));
    begin(&store, &chat).await;
    appended(&store, append_at(&chat, 1, &[frame("a")])).await;
    record.id = RecordId::from_bytes([2; 16]);
    assert!(store.insert(&record).await.unwrap());
    repeat().await;
}

/// Returns each key of a Redis with its value.
fn contents(redis: &RedisServer) -> Vec<String> {
    let value = |key| {
        let kind = redis.command(&format!("TYPE {key}"));
        let read = match &*kind {
            "+hash" => "'HGETALL', KEYS[1]",
            "+list" => "'LRANGE', KEYS[1], 0, -1",
            "+zset" => "'ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'",
            other => panic!("{key} is a {other}"),
        };
        // The fields of a hash have no order.
        let sort = if kind == "+hash" { "table.sort(all)" } else { "" };
        let read = format!("local all = redis.call({read}) {sort} return table.concat(all, ' ')");
        format!("{key} {kind} {}", redis.command(&format!("EVAL \"{read}\" 1 {key}")))
    };
    let mut contents: Vec<String> = keys(redis).into_iter().map(value).collect();
    contents.sort();
    contents
}

#[tokio::test]
async fn after_a_restart_redis_has_all_confirmed_writes_and_the_store_reconnects() {
    let Some((mut redis, store)) = redis_and_store().await else { return };
    let ada = Principal::new("ada");
    let key = key(&ada, "chat");
    begin(&store, &key).await;
    appended(&store, append_at(&key, 1, &[frame("a")])).await;
    assert!(put(&store, &key, 1, &["one", "two"]).await);
    let stored = load(&store, &key).await.unwrap();
    redis.kill();
    expect_errors(&store, &ada, "chat").await;
    redis.start_again();
    store.ping().await.unwrap();
    let loaded = load(&store, &key).await.unwrap();
    assert_eq!((loaded.snapshot, loaded.entries), (stored.snapshot, stored.entries));
    end(&store, &key, 2).await;
    assert_eq!(read_all(&store, &key).await, [control("begin"), frame("a"), control("end")]);
}

#[tokio::test]
async fn after_a_node_of_a_cluster_has_restarted_its_users_have_their_chats() {
    let Some(mut cluster) = RedisCluster::start() else { return };
    let store = RedisOptions::new().connect_cluster(cluster.urls()).await.unwrap();
    let chats = (0..12).map(|number| key(&Principal::new(format!("user {number}")), "chat"));
    let chats: Vec<LogKey> = chats.collect();
    for chat in &chats {
        create(&store, chat).await;
        assert!(put(&store, chat, 1, &[chat.owner.id().unwrap()]).await);
    }
    let load = async |key: &LogKey| {
        store.load(LoadLog { key, has_frames: true, has_messages: true }).await
    };
    cluster.node_mut(1).kill();
    let loaded = join_all(chats.iter().map(load)).await;
    // The users of the other nodes have theirs meanwhile.
    assert!(loaded.iter().any(Result::is_err) && loaded.iter().any(Result::is_ok));
    assert!(loaded.iter().flatten().all(Option::is_some));
    cluster.node_mut(1).start_again();
    for chat in &chats {
        let stored = async {
            loop {
                match load(chat).await {
                    Ok(stored) => return stored.unwrap(),
                    // The nodes do not know yet that the node is back.
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let stored = within_patience(stored).await;
        assert_eq!(stored.snapshot.unwrap().messages, [chat.owner.id().unwrap()]);
    }
}

#[tokio::test]
async fn while_a_node_of_a_cluster_hangs_the_users_of_the_others_run_scripts_that_are_new() {
    let Some(cluster) = RedisCluster::start() else { return };
    let store = RedisOptions::new().connect_cluster(cluster.urls()).await.unwrap();
    let users: Vec<_> = (0..12).map(|number| Principal::new(format!("user {number}"))).collect();
    // The first is that of the store.
    let clients = cluster.nodes()[0].command("CLIENT LIST");
    let address = |field: &&str| field.starts_with("addr=");
    let client = clients.split_whitespace().find(address).unwrap();
    cluster.nodes()[1].hang(true);
    // No node knows the script of a list yet.
    let listed = join_all(users.iter().map(|user| store.list(user, LIST))).await;
    cluster.nodes()[1].hang(false);
    assert!(listed.iter().any(Result::is_err) && listed.iter().any(Result::is_ok));
    // No other connection can be opened to the node: the store keeps what it has.
    let listed = join_all(users.iter().map(|user| store.list(user, LIST))).await;
    assert!(listed.iter().all(Result::is_ok));
    let now = cluster.nodes()[0].command("CLIENT LIST");
    assert!(now.split_whitespace().any(|field| field == client), "{clients}");
}

#[tokio::test]
async fn half_open_connections_to_one_or_all_nodes_of_a_cluster_are_replaced() {
    let Some((_cluster, proxies)) = RedisCluster::start_behind_proxies() else { return };
    let urls = proxies.iter().map(|proxy| &proxy.url);
    let store = RedisOptions::new().connect_cluster(urls).await.unwrap();
    let users: Vec<_> = (0..12).map(|number| Principal::new(format!("user {number}"))).collect();
    let list = async |user| store.list(user, LIST).await;
    for half_open in [&[], &proxies[1..2], &proxies] {
        half_open.iter().for_each(FaultProxy::half_open);
        for listed in join_all(users.iter().map(list)).await {
            listed.unwrap();
        }
    }
}

#[tokio::test]
async fn after_redis_has_become_a_replica_the_store_connects_to_the_new_primary() {
    for serves_stale_data in ["yes", "no"] {
        let (Some(old), Some(new)) = (RedisServer::start(), RedisServer::start()) else { return };
        let proxy = FaultProxy::before_redis(&old);
        let store = RedisStore::connect(&proxy.url).await.unwrap();
        let ada = Principal::new("ada");
        let key = key(&ada, "chat");
        begin(&store, &key).await;
        // The follower is connected.
        let wait = woken_at(&store, &key, 1, |page| page.head.length == 2);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&store, append_at(&key, 1, &entries)));

        old.command(&format!("CONFIG SET replica-serve-stale-data {serves_stale_data}"));
        old.command("REPLICAOF 127.0.0.1 1");
        // The address still leads to the old Redis.
        let pings = join_all((0..9).map(|_| store.ping())).await;
        assert!(pings.iter().all(Result::is_err));
        let refused = store.append(append_at(&key, 2, &entries)).await.unwrap_err();
        let cause = refused.source().unwrap().downcast_ref();
        let is_of_replica = |code| matches!(code, "READONLY" | "MASTERDOWN");
        let Some(RedisStoreError::Refused { code, .. }) = cause else { panic!("{cause:?}") };
        assert!(is_of_replica(*code), "{code}");
        proxy.point_to(&new);
        let pings = join_all((0..9).map(|_| store.ping())).await;
        assert!(pings.iter().all(Result::is_ok), "{pings:?}");
        // The new primary has nothing of the old one here.
        begin(&store, &key).await;
        let writer = RedisStore::connect(&new.url()).await.unwrap();
        // A reader that relies on messages and gets none waits for five seconds each time.
        let alternately = async {
            for position in 1..1 + more_than_without_hints() {
                let wait = woken_at(&store, &key, position, |page| page.head.length > position);
                tokio::join!(wait, appended(&writer, append_at(&key, position, &entries)));
            }
        };
        within_patience(alternately).await;
    }
}

#[tokio::test]
async fn while_redis_is_full_writes_fail_and_change_nothing() {
    let Some(redis) = RedisServer::start_at(START) else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let (chat, other) = (adas("chat"), adas("other"));
    begin(&store, &chat).await;
    appended(&store, append_at(&chat, 1, &[control("a"), frame("b")])).await;
    assert!(put(&store, &chat, 2, &["one", "two"]).await);
    redis.set_time(START + 2000);
    redis.command("CONFIG SET maxmemory 1");
    let full = store.ping().await.unwrap_err();
    assert!(matches!(full, RedisStoreError::Refused { code: "OOM", .. }), "{full:?}");
    let stored = contents(&redis);
    // A client that reads is noted, but not now.
    let read =
        ReadLogEntries { key: &chat, epoch: EPOCH, position: 0, max_bytes: 1, is_reader: true };
    assert!(store.read(read).await.unwrap().is_some());
    let (frames, controls) = ([frame("c")], [control("c")]);
    let lease = Some(Duration::from_secs(10));
    let live_run = LiveRunChange::Ends;
    for append in [
        append_at(&chat, 3, &frames),
        append_at(&chat, 3, &controls),
        AppendLog { lease, ..append_at(&chat, 3, &frames) },
        AppendLog { lease, ..append_at(&chat, 3, &[]) },
        AppendLog { live_run, ..append_at(&chat, 3, &controls) },
        AppendLog { live_run, ..append_at(&chat, 3, &[]) },
        creation(&other, &controls),
    ] {
        let error = store.append(append).await.unwrap_err();
        let cause = error.source().unwrap().downcast_ref();
        assert!(matches!(cause, Some(RedisStoreError::Refused { code: "OOM", .. })), "{cause:?}");
    }
    assert!(store.rename(&chat, "title").await.is_err());
    let put_full = PutSnapshot {
        key: &chat,
        epoch: EPOCH,
        position: 3,
        head: "{}",
        unchanged: None,
        changed: &[],
    };
    assert!(store.put_snapshot(put_full).await.is_err());
    assert_eq!(contents(&redis), stored);
    // What needs no memory is still removed.
    LogStore::sweep(&store).await.unwrap();
    redis.command("CONFIG SET maxmemory 0");
    store.ping().await.unwrap();
    assert_eq!(load(&store, &chat).await.unwrap().head.length, 3);
    assert!(load(&store, &other).await.is_none());
    appended(&store, append_at(&chat, 3, &frames)).await;
}

#[tokio::test]
async fn operations_fail_while_redis_hangs_and_succeed_afterwards() {
    let Some((redis, store)) = redis_and_store().await else { return };
    let ada = Principal::new("ada");
    redis.hang(true);
    expect_errors(&store, &ada, "chat").await;
    redis.hang(false);
    store.ping().await.unwrap();
    // What was sent before the store gave up may have taken place.
    let deleted = store.delete_user(&ada).await.unwrap();
    assert!(deleted.chats <= 1, "{deleted:?}");
}

#[tokio::test]
async fn after_redis_has_refused_the_password_it_is_asked_again_until_it_accepts_it() {
    let Some(redis) = RedisServer::start_with(&["--requirepass", "right"]) else { return };
    let url = format!("redis://:right@127.0.0.1:{}/", redis.port());
    for url in [url.clone(), format!("{url}?protocol=resp3")] {
        let store = RedisStore::connect(&url).await.unwrap();
        redis.commands(&["AUTH right", "CONFIG SET requirepass other", "CLIENT KILL TYPE normal"]);
        let refused = |error: &RedisStoreError| {
            matches!(error, RedisStoreError::Refused { code: "WRONGPASS", .. })
        };
        let error = loop {
            match store.ping().await {
                Err(error) if refused(&error) => break error,
                _ => sleep(Duration::from_millis(10)).await,
            }
        };
        assert!(!format!("{error} {error:?}").contains("right"), "{error:?}");
        let before = connections(&redis, "other");
        let (operations, began) = (200, Instant::now());
        for _ in 0..operations {
            assert!(refused(&store.ping().await.unwrap_err()));
        }
        // The store pauses for at least 200 ms between its attempts.
        let pauses = u32::try_from(began.elapsed().as_millis() / 200).unwrap();
        let made = connections(&redis, "other") - before;
        let most = operations / 10 + pauses;
        assert!(made < most, "{made} attempts in {operations} operations and {pauses} pauses");

        redis.commands(&["AUTH other", "CONFIG SET requirepass right"]);
        eventually(async || store.ping().await.is_ok()).await;
        // Without the connection that was refused.
        join_all((0..9).map(|_| async { store.ping().await.unwrap() })).await;
    }
}

/// Returns how many connections this Redis has accepted.
fn connections(redis: &RedisServer, password: &str) -> u32 {
    let stats = redis.commands(&[&format!("AUTH {password}"), "INFO stats"]);
    let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    count.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn after_a_cluster_has_refused_the_password_it_is_asked_again_until_it_accepts_it() {
    let Some(cluster) = RedisCluster::start() else { return };
    let nodes = cluster.nodes();
    for node in nodes {
        node.commands(&["CONFIG SET requirepass right"]);
    }
    let urls = nodes.iter().map(|node| format!("redis://:right@127.0.0.1:{}/", node.port()));
    let store = RedisOptions::new().connect_cluster(urls).await.unwrap();
    for (old, new) in [("right", "other"), ("other", "right")] {
        for node in nodes {
            let login = format!("AUTH {old}");
            let set = format!("CONFIG SET requirepass {new}");
            node.commands(&[&login, &set, "CLIENT KILL TYPE normal"]);
        }
        if new == "other" {
            assert!(store.ping().await.is_err());
        }
    }
    eventually(async || store.ping().await.is_ok()).await;
}

#[tokio::test]
async fn a_password_that_is_missing_or_wrong_is_named_when_the_store_connects() {
    let Some(redis) = RedisServer::start_with(&["--requirepass", "right"]) else { return };
    let address = format!("127.0.0.1:{}/", redis.port());
    let cases = [("", "NOAUTH"), ("user:wrong@", "WRONGPASS"), (":wrong@", "WRONGPASS")];
    for (login, expected) in cases {
        let error = RedisStore::connect(&format!("redis://{login}{address}")).await.unwrap_err();
        let RedisStoreError::Refused { code, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*code, expected);
        assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");
    }
    RedisStore::connect(&format!("redis://:right@{address}")).await.unwrap();
}

#[tokio::test]
async fn an_id_that_looks_like_a_key_is_none() {
    let Some((_redis, store)) = redis_and_store().await else { return };
    let ada = Principal::new("ada");
    let ids = ["one}:live", "{other}", "s", "\r\n*1", "1 2 3"];
    for id in ids {
        begin(&store, &key(&ada, id)).await;
        appended(&store, append_at(&key(&ada, id), 1, &[frame(id)])).await;
    }
    for id in ids {
        assert_eq!(read_all(&store, &key(&ada, id)).await, [control("begin"), frame(id)]);
    }
    assert_eq!(store.delete_user(&ada).await.unwrap().chats, ids.len());
}

/// Each kind of operation is an error.
async fn expect_errors(store: &RedisStore, owner: &Principal, id: &str) {
    let (new, key) = (key(owner, "new"), key(owner, id));
    let (controls, frames) = ([control("a")], [frame("a")]);
    let lease = Some(Duration::from_secs(10));
    let (ping, load, create, list, append) = tokio::join!(
        store.ping(),
        store.load(LoadLog { key: &key, has_frames: true, has_messages: true }),
        store.append(creation(&new, &controls)),
        store.list(owner, LIST),
        store.append(AppendLog { lease, ..append_at(&key, 2, &frames) }),
    );
    let errors: [Box<dyn Error>; 5] = [
        ping.unwrap_err().into(),
        load.unwrap_err().into(),
        create.unwrap_err().into(),
        list.unwrap_err().into(),
        append.unwrap_err().into(),
    ];
    for error in errors {
        assert!(error.source().is_some() || error.to_string().contains("within"), "{error}");
    }
}

const LIST: ListChats<'static> = ListChats { limit: 9, after: None, search: None };
