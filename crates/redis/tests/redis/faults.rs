//! A Redis that ends, hangs or is full, and replies that are lost: chats and logs are as the
//! callers were told.

use std::error::Error;
use std::time::Duration;

use futures::future::join_all;
use test_support::contention;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::number;
#[cfg(feature = "cluster")]
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use test_support::faulted_operations::{operate, operate_during_faults};
use test_support::run_hints::{within, woken_at};
use test_support::store_requests::{appended, begin, chat_of, frame, holder, page, run_key, saved};
use tokio::time::sleep;
use ui_message_stream::approval::{Principal, RecordId};
#[cfg(feature = "cluster")]
use ui_message_stream::chat::Chat;
use ui_message_stream::chat::log::{AppendEntries, BeginResult, BeginRun, Fence, ReadLog};
use ui_message_stream::chat::store::{
    ChatStore, ListChats, ReloadedChat, RunStore, SaveChat, SaveResult, VersionedChat,
};
#[cfg(feature = "cluster")]
use ui_message_stream_redis::RedisOptions;
use ui_message_stream_redis::{RedisStore, RedisStoreError};

use crate::backend::keys;
use crate::retention::move_back;

#[tokio::test]
async fn an_operation_whose_reply_is_lost_takes_effect_once_and_reports_it() {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = FaultProxy::before_redis(&redis);
    let store = RedisStore::connect(&proxy.url).await.unwrap();
    // The first round loads the scripts.
    for round in 0..=number("LOST_REPLIES", 20) {
        let lost = usize::from(round > 0);
        let before = || {
            assert!(proxy.has_lost());
            proxy.lose_replies(lost);
        };
        assert_eq!(operate(&store, round, &before).await, 0);

        let ada = Principal::new("ada");
        let chat = chat_of(&ada, &format!("chat {round}"), 2);
        let revision = saved(&store, SaveChat::new(&chat)).await;
        proxy.lose_replies(lost);
        match store.reload(&ada, &chat.id, revision + 1).await.unwrap() {
            ReloadedChat::Changed(stored) => {
                assert_eq!((stored.revision, &stored.chat), (revision, &chat));
            }
            other => panic!("{other:?}"),
        }
        proxy.lose_replies(lost);
        let listed = store.list(&ada, ListChats { limit: 9, after: None }).await.unwrap();
        assert_eq!(listed.chats.len(), 1);
        proxy.lose_replies(lost);
        assert!(store.delete(&ada, &chat.id, revision).await.unwrap());
        assert!(!store.delete(&ada, &chat.id, revision).await.unwrap());
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
async fn an_operation_whose_reply_is_lost_reports_it_also_if_others_change_the_chat_since() {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = FaultProxy::before_redis(&redis);
    let store = RedisStore::connect(&proxy.url).await.unwrap();
    let other = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    // The scripts are loaded: the next reply is that of the operation.
    let chat = chat_of(&ada, "loads", 1);
    let revision = saved(&store, SaveChat::new(&chat)).await;
    assert!(store.delete(&ada, &chat.id, revision).await.unwrap());

    let chat = chat_of(&ada, "chat", 1);
    let stored = async || other.load(&ada, &chat.id).await.unwrap();
    let lose = || {
        proxy.delay_losses(true);
        proxy.lose_replies(1);
    };
    let save_by_other = async |revision| {
        let stored = stored_after(&stored, revision).await.unwrap();
        let saved = saved(&other, SaveChat::replacing(&stored, &chat)).await;
        proxy.delay_losses(false);
        saved
    };

    // A new chat that the other replaces.
    lose();
    let (own, others) = tokio::join!(saved(&store, SaveChat::new(&chat)), save_by_other(None));
    assert_ne!(own, others);
    // A save of a chat that the other replaces.
    let replaced = stored().await.unwrap();
    lose();
    let save = SaveChat::replacing(&replaced, &chat);
    let (own, others) = tokio::join!(saved(&store, save), save_by_other(Some(others)));
    assert_ne!(own, others);
    assert_eq!(stored().await.unwrap().revision, others);
    // The reply to a deletion is lost, and the other server creates the chat again.
    lose();
    let create = async {
        assert!(stored_after(&stored, Some(others)).await.is_none());
        let created = saved(&other, SaveChat::new(&chat)).await;
        proxy.delay_losses(false);
        created
    };
    let (is_deleted, created) = tokio::join!(store.delete(&ada, &chat.id, others), create);
    assert!(is_deleted.unwrap());
    assert_eq!(stored().await.unwrap().revision, created);
    assert!(other.delete(&ada, &chat.id, created).await.unwrap());
    // A new chat that the other deletes.
    lose();
    let delete = async {
        let revision = stored_after(&stored, None).await.unwrap().revision;
        assert!(other.delete(&ada, &chat.id, revision).await.unwrap());
        proxy.delay_losses(false);
    };
    let _ = tokio::join!(saved(&store, SaveChat::new(&chat)), delete);
    assert!(stored().await.is_none());
}

#[tokio::test]
async fn requests_that_arrive_again_after_all_others_change_nothing() {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = FaultProxy::before_redis(&redis);
    let store = RedisStore::connect(&proxy.url).await.unwrap();
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

    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 2);
    for begins_again in [false, true] {
        proxy.record_requests();
        let revision = saved(&store, SaveChat::new(&chat)).await;
        assert!(store.delete(&ada, &chat.id, revision).await.unwrap());
        if begins_again {
            saved(&store, SaveChat::new(&chat)).await;
        }
        repeat().await;
    }

    // Saves that were refused, because there is such a chat, and because there are too many.
    let other = RedisStore::connect(&redis.url()).await.unwrap();
    let mut next = chat_of(&ada, "next", 1);
    let revision = saved(&other, SaveChat::new(&next)).await;
    proxy.record_requests();
    let refused = store.save(SaveChat::new(&next)).await.unwrap();
    assert_eq!(refused, SaveResult::Conflict);
    assert!(!store.delete(&ada, &next.id, revision + 1).await.unwrap());
    next.id = "third".into();
    let refused = store.save(SaveChat::new(&next).with_max_user_chats(Some(2))).await;
    assert_eq!(refused.unwrap(), SaveResult::TooManyChats);
    assert!(other.delete(&ada, &"next".into(), revision).await.unwrap());
    repeat().await;

    let key = run_key(&ada, "run");
    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    record.requester = ada.clone();
    assert!(test_support::contention::InsertOne::insert(&store, &record).await.unwrap());
    assert_eq!(begin(&store, &key, 1).await, BeginResult::Begun(Fence(1)));
    // A deleted user who begins again.
    proxy.record_requests();
    let deleted = store.delete_user(&ada).await.unwrap();
    assert_eq!((deleted.chats, deleted.runs, deleted.approvals), (1, 1, 1));
    saved(&store, SaveChat::new(&chat)).await;
    let key = run_key(&ada, "next");
    assert_eq!(begin(&store, &key, 1).await, BeginResult::Begun(Fence(1)));
    appended(&store, &key, 0, &[frame("a")], false).await;
    record.id = RecordId::from_bytes([2; 16]);
    record.chat_id = chat.id.clone();
    assert!(test_support::contention::InsertOne::insert(&store, &record).await.unwrap());
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

/// Loads a chat until it does not have this revision any more.
async fn stored_after(
    load: &impl AsyncFn() -> Option<VersionedChat>,
    revision: Option<u64>,
) -> Option<VersionedChat> {
    loop {
        let stored = load().await;
        if stored.as_ref().map(|stored| stored.revision) != revision {
            return stored;
        }
    }
}

#[tokio::test]
async fn after_a_restart_redis_has_all_confirmed_writes_and_the_store_reconnects() {
    let Some(mut redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 3);
    let revision = saved(&store, SaveChat::new(&chat)).await;
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], false).await;
    redis.kill();
    expect_errors(&store, &ada, "chat").await;
    redis.start_again();
    store.ping().await.unwrap();
    let stored = store.load(&ada, &chat.id).await.unwrap().unwrap();
    assert_eq!((stored.revision, &stored.chat), (revision, &chat));
    appended(&store, &key, 1, &[frame("b")], true).await;
    assert_eq!(page(&store, &key).await.unwrap().entries, [frame("a"), frame("b")]);
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn after_a_node_of_a_cluster_has_restarted_its_users_have_their_chats() {
    let Some(mut cluster) = RedisCluster::start() else { return };
    let store = RedisOptions::new().connect_cluster(cluster.urls()).await.unwrap();
    let chats: Vec<Chat> = (0..12)
        .map(|number| chat_of(&Principal::new(format!("user {number}")), "chat", 2))
        .collect();
    let mut revisions = Vec::new();
    for chat in &chats {
        revisions.push(saved(&store, SaveChat::new(chat)).await);
    }
    let load = async |chat: &Chat| ChatStore::load(&store, &chat.owner, &chat.id).await;
    cluster.node_mut(1).kill();
    let loaded = join_all(chats.iter().map(load)).await;
    // The users of the other nodes have theirs meanwhile.
    assert!(loaded.iter().any(Result::is_err) && loaded.iter().any(Result::is_ok));
    assert!(loaded.iter().flatten().all(Option::is_some));
    cluster.node_mut(1).start_again();
    for (chat, revision) in chats.iter().zip(revisions) {
        let stored = async {
            loop {
                match load(chat).await {
                    Ok(stored) => return stored.unwrap(),
                    // The nodes do not know yet that the node is back.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let stored = tokio::time::timeout(Duration::from_secs(60), stored).await.unwrap();
        assert_eq!((stored.revision, &stored.chat), (revision, chat));
    }
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn while_a_node_of_a_cluster_hangs_the_users_of_the_others_run_scripts_that_are_new() {
    let Some(cluster) = RedisCluster::start() else { return };
    let store = RedisOptions::new().connect_cluster(cluster.urls()).await.unwrap();
    let users: Vec<_> = (0..12).map(|number| Principal::new(format!("user {number}"))).collect();
    let first = || ListChats { limit: 1, after: None };
    // The first is that of the store.
    let clients = cluster.nodes()[0].command("CLIENT LIST");
    let address = |field: &&str| field.starts_with("addr=");
    let client = clients.split_whitespace().find(address).unwrap();
    cluster.nodes()[1].hang(true);
    // No node knows the script of a list yet.
    let listed = join_all(users.iter().map(|user| store.list(user, first()))).await;
    cluster.nodes()[1].hang(false);
    assert!(listed.iter().any(Result::is_err) && listed.iter().any(Result::is_ok));
    // No other connection can be opened to the node: the store keeps what it has.
    let listed = join_all(users.iter().map(|user| store.list(user, first()))).await;
    assert!(listed.iter().all(Result::is_ok));
    let now = cluster.nodes()[0].command("CLIENT LIST");
    assert!(now.split_whitespace().any(|field| field == client), "{clients}");
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn half_open_connections_to_one_or_all_nodes_of_a_cluster_are_replaced() {
    let Some((_cluster, proxies)) = RedisCluster::start_behind_proxies() else { return };
    let urls = proxies.iter().map(|proxy| &proxy.url);
    let store = RedisOptions::new().connect_cluster(urls).await.unwrap();
    let users: Vec<_> = (0..12).map(|number| Principal::new(format!("user {number}"))).collect();
    let list = async |user| store.list(user, ListChats { limit: 1, after: None }).await;
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
        let key = run_key(&ada, "run");
        let _ = begin(&store, &key, 1).await;
        // The follower is connected.
        let wait = woken_at(&store, &key, 0, |page| page.length == 1);
        let entries = [frame("a")];
        tokio::join!(wait, appended(&store, &key, 0, &entries, false));

        old.command(&format!("CONFIG SET replica-serve-stale-data {serves_stale_data}"));
        old.command("REPLICAOF 127.0.0.1 1");
        // The address still leads to the old Redis.
        let pings = join_all((0..9).map(|_| store.ping())).await;
        assert!(pings.iter().all(Result::is_err));
        proxy.point_to(&new);
        let pings = join_all((0..9).map(|_| store.ping())).await;
        assert!(pings.iter().all(Result::is_ok), "{pings:?}");
        saved(&store, SaveChat::new(&chat_of(&ada, "chat", 1))).await;
        let writer = RedisStore::connect(&new.url()).await.unwrap();
        let _ = begin(&writer, &key, 1).await;
        // A reader that relies on messages and gets none waits for five seconds each time.
        let alternately = async {
            for position in 0..30 {
                let wait = woken_at(&store, &key, position, |page| page.length > position);
                tokio::join!(wait, appended(&writer, &key, position, &entries, false));
            }
        };
        within(alternately).await;
    }
}

#[tokio::test]
async fn while_redis_is_full_writes_fail_and_change_nothing() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 3);
    let revision = saved(&store, SaveChat::new(&chat)).await;
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 9).await;
    move_back(&redis, "run", "read", 2);
    redis.command("CONFIG SET maxmemory 1");
    let full = store.ping().await.unwrap_err();
    assert!(matches!(full, RedisStoreError::Refused { code: "OOM", .. }), "{full:?}");
    // A client that reads is noted, but not now.
    let read = ReadLog { key: &key, after: 0, max_bytes: 1, is_reader: true };
    assert!(store.read(read).await.unwrap().is_some());
    let mut longer = chat.clone();
    longer.messages.truncate(1);
    let stored = VersionedChat { chat: chat.clone(), revision };
    assert!(store.save(SaveChat::replacing(&stored, &longer)).await.is_err());
    let append = AppendEntries {
        key: &key,
        fence: Fence(1),
        position: 0,
        entries: &[frame("a")],
        end: true,
    };
    assert!(store.append(append).await.is_err());
    let other = run_key(&ada, "other");
    let lease = Duration::from_secs(1);
    let begin_other = BeginRun { key: &other, holder: holder(1), lease, max_user_runs: 9 };
    assert!(store.begin(begin_other).await.is_err());
    redis.command("CONFIG SET maxmemory 0");
    store.ping().await.unwrap();
    let loaded = store.load(&ada, &chat.id).await.unwrap().unwrap();
    assert_eq!((loaded.revision, &loaded.chat), (revision, &chat));
    assert_eq!(page(&store, &key).await.unwrap().length, 0);
    assert!(page(&store, &other).await.is_none());
    let _ = saved(&store, SaveChat::replacing(&stored, &longer)).await;
}

#[tokio::test]
async fn operations_fail_while_redis_hangs_and_succeed_afterwards() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    redis.hang(true);
    expect_errors(&store, &ada, "chat").await;
    redis.hang(false);
    store.ping().await.unwrap();
    // What was sent before the store gave up may have taken place.
    let deleted = store.delete_user(&ada).await.unwrap();
    assert!(deleted.chats <= 1 && deleted.runs <= 1, "{deleted:?}");
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
        let operations = 200;
        for _ in 0..operations {
            assert!(refused(&store.ping().await.unwrap_err()));
        }
        // The store pauses between its attempts.
        let made = connections(&redis, "other") - before;
        assert!(made < operations / 10, "{made} attempts in {operations} operations");

        redis.commands(&["AUTH other", "CONFIG SET requirepass right"]);
        let recovered = async {
            while store.ping().await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        within(recovered).await;
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

#[cfg(feature = "cluster")]
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
    let recovered = async {
        while store.ping().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    within(recovered).await;
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
async fn an_owner_or_an_id_that_looks_like_a_key_is_none() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    // Two runs whose ids are the same text when they are joined.
    for (chat, run, text) in [("a", "bc", "one"), ("ab", "c", "other")] {
        let mut key = run_key(&ada, run);
        key.chat = chat.into();
        assert_eq!(begin(&store, &key, 9).await, BeginResult::Begun(Fence(1)));
        appended(&store, &key, 0, &[frame(text)], false).await;
        assert_eq!(page(&store, &key).await.unwrap().entries, [frame(text)]);
    }
    for id in ["one}:chats", "{other}", "s", "\r\n*1"] {
        saved(&store, SaveChat::new(&chat_of(&ada, id, 1))).await;
    }
    assert_eq!(store.delete_user(&ada).await.unwrap().chats, 4);
}

/// Each kind of operation is an error.
async fn expect_errors(store: &RedisStore, owner: &Principal, id: &str) {
    let (chat, key) = (chat_of(owner, "new", 1), run_key(owner, "new"));
    let id = id.into();
    let lease = Duration::from_secs(1);
    let begin = BeginRun { key: &key, holder: holder(1), lease, max_user_runs: 9 };
    let list = ListChats { limit: 1, after: None };
    let (ping, load, save, list, begin) = tokio::join!(
        store.ping(),
        store.load(owner, &id),
        store.save(SaveChat::new(&chat)),
        store.list(owner, list),
        store.begin(begin),
    );
    let errors: [Box<dyn Error>; 5] = [
        ping.unwrap_err().into(),
        load.unwrap_err().into(),
        save.unwrap_err().into(),
        list.unwrap_err().into(),
        begin.unwrap_err().into(),
    ];
    for error in errors {
        assert!(error.source().is_some() || error.to_string().contains("within"), "{error}");
    }
}
