//! [`Backend`]: a Redis, or a Redis Cluster, and the requests that the tests make.

use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "cluster")]
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream::approval::{LeaseHolderId, Principal};
use ui_message_stream::chat::Chat;
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, LogPage, ReadLog, RunKey,
};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat, SaveResult};
use ui_message_stream::message::{Part, Role, UiMessage};
use ui_message_stream_redis::{RedisOptions, RedisStore};

/// What the stores of a test are connected to.
pub(crate) enum Backend {
    Single(RedisServer),
    #[cfg(feature = "cluster")]
    Cluster(RedisCluster),
}

impl Backend {
    /// Starts one of each kind. Returns none if `redis-server` is not installed.
    pub(crate) fn all() -> Vec<Self> {
        let single = RedisServer::start().map(Backend::Single).into_iter();
        #[cfg(feature = "cluster")]
        let single = single.chain(RedisCluster::start().map(Backend::Cluster));
        single.collect()
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Backend::Single(_) => "Redis",
            #[cfg(feature = "cluster")]
            Backend::Cluster(_) => "Redis Cluster",
        }
    }

    pub(crate) async fn connect(&self) -> RedisStore {
        self.connect_with(RedisOptions::new()).await
    }

    pub(crate) async fn connect_with(&self, options: RedisOptions) -> RedisStore {
        match self {
            Backend::Single(redis) => options.connect(&redis.url()).await.unwrap(),
            #[cfg(feature = "cluster")]
            Backend::Cluster(cluster) => options.connect_cluster(cluster.urls()).await.unwrap(),
        }
    }

    /// Returns all keys, without those that live for a minute.
    pub(crate) fn keys(&self) -> Vec<String> {
        let nodes = match self {
            Backend::Single(redis) => std::slice::from_ref(redis),
            #[cfg(feature = "cluster")]
            Backend::Cluster(cluster) => cluster.nodes(),
        };
        let mut keys: Vec<String> = nodes.iter().flat_map(keys).collect();
        keys.sort();
        keys
    }
}

/// Returns all keys of a Redis, without those that live for a minute.
pub(crate) fn keys(redis: &RedisServer) -> Vec<String> {
    let list = "return table.concat(redis.call('KEYS', '*'), ' ')";
    let keys = redis.command(&format!("EVAL \"{list}\" 0"));
    let keys = keys.split_whitespace().map(str::to_owned);
    keys.filter(|key| !key.ends_with("clock") && !key.contains(":attempts:")).collect()
}

pub(crate) fn chat_of(owner: &Principal, id: &str, messages: usize) -> Chat {
    let mut chat = Chat::new(id, owner.clone());
    for at in 0..messages {
        let part = Part::text(format!("text {at}"));
        chat.messages.push(UiMessage::new(format!("m{at}"), Role::User, vec![part]));
    }
    chat
}

pub(crate) async fn saved(store: &RedisStore, save: SaveChat<'_>) -> u64 {
    match store.save(save).await.unwrap() {
        SaveResult::Saved(revision) => revision,
        SaveResult::Conflict => panic!("a conflict"),
    }
}

pub(crate) fn run_key(owner: &Principal, run: &str) -> RunKey {
    RunKey { owner: owner.clone(), chat: "chat".into(), run: run.into() }
}

pub(crate) async fn begin(store: &RedisStore, key: &RunKey, max_user_runs: usize) -> BeginResult {
    let lease = Duration::from_secs(10);
    store.begin(BeginRun { key, holder: holder(1), lease, max_user_runs }).await.unwrap()
}

pub(crate) fn holder(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

pub(crate) fn frame(text: &str) -> LogEntry {
    LogEntry::Frame(Bytes::copy_from_slice(text.as_bytes()))
}

/// Appends with the fence of the holder that began the run.
pub(crate) async fn append(
    store: &RedisStore,
    key: &RunKey,
    position: u64,
    entries: &[LogEntry],
    end: bool,
) -> AppendResult {
    let append = AppendEntries { key, fence: Fence(1), position, entries, end };
    store.append(append).await.unwrap()
}

/// Appends, which must not be refused.
pub(crate) async fn appended(
    store: &RedisStore,
    key: &RunKey,
    position: u64,
    entries: &[LogEntry],
    end: bool,
) {
    let result = append(store, key, position, entries, end).await;
    assert!(matches!(result, AppendResult::Appended(_)), "{result:?}");
}

pub(crate) async fn page(store: &RedisStore, key: &RunKey) -> Option<LogPage> {
    let read = ReadLog { key, after: 0, max_bytes: usize::MAX, is_reader: false };
    store.read(read).await.unwrap()
}
