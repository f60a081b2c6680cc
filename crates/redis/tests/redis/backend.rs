//! [`Backend`]: a Redis, or a Redis Cluster.

use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream_redis::{RedisOptions, RedisStore, RedisStoreError};

/// What the stores of a test are connected to.
pub(crate) enum Backend {
    Single(RedisServer),
    Cluster(RedisCluster),
}

impl Backend {
    /// Starts one of each kind. Returns none if `redis-server` is not installed.
    pub(crate) fn all() -> Vec<Self> {
        let single = RedisServer::start().map(Backend::Single).into_iter();
        let single = single.chain(RedisCluster::start().map(Backend::Cluster));
        single.collect()
    }

    /// Starts one of each kind behind proxies, through which its stores are connected.
    pub(crate) fn all_behind_proxies() -> Vec<(Self, Vec<FaultProxy>)> {
        let single = RedisServer::start().into_iter();
        let single = single.map(|redis| {
            let proxy = FaultProxy::before_redis(&redis);
            (Backend::Single(redis), vec![proxy])
        });
        let single = single.chain(
            RedisCluster::start_behind_proxies()
                .map(|(cluster, proxies)| (Backend::Cluster(cluster), proxies)),
        );
        single.collect()
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Backend::Single(_) => "Redis",
            Backend::Cluster(_) => "Redis Cluster",
        }
    }

    pub(crate) async fn connect(&self) -> RedisStore {
        self.connect_with(RedisOptions::new()).await
    }

    pub(crate) async fn connect_with(&self, options: RedisOptions) -> RedisStore {
        self.try_connect(options).await.unwrap()
    }

    pub(crate) async fn try_connect(
        &self,
        options: RedisOptions,
    ) -> Result<RedisStore, RedisStoreError> {
        match self {
            Backend::Single(redis) => options.connect(&redis.url()).await,
            Backend::Cluster(cluster) => options.connect_cluster(cluster.urls()).await,
        }
    }

    /// Executes a command on the node that has its key.
    pub(crate) fn command(&self, command: &str) -> String {
        let mut replies = self.nodes().iter().map(|node| node.command(command));
        replies.find(|reply| !reply.starts_with("-MOVED")).unwrap()
    }

    pub(crate) async fn connect_through(&self, proxies: &[FaultProxy]) -> RedisStore {
        let options = RedisOptions::new();
        match self {
            Backend::Single(_) => options.connect(&proxies[0].url).await.unwrap(),
            Backend::Cluster(_) => {
                options.connect_cluster(proxies.iter().map(|proxy| &proxy.url)).await.unwrap()
            }
        }
    }

    /// Kills the only Redis, or the nodes of the cluster.
    pub(crate) fn kill(&mut self) {
        match self {
            Backend::Single(redis) => redis.kill(),
            Backend::Cluster(cluster) => {
                (0..cluster.nodes().len()).for_each(|number| cluster.node_mut(number).kill());
            }
        }
    }

    /// Starts what was killed, with the data on its disk.
    pub(crate) fn start_again(&mut self) {
        match self {
            Backend::Single(redis) => redis.start_again(),
            Backend::Cluster(cluster) => {
                for number in 0..cluster.nodes().len() {
                    cluster.node_mut(number).start_again();
                }
                cluster.wait_until_complete();
            }
        }
    }

    /// Returns the only Redis, or the nodes of the cluster.
    pub(crate) fn nodes(&self) -> &[RedisServer] {
        match self {
            Backend::Single(redis) => std::slice::from_ref(redis),
            Backend::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Returns all keys but those that [`keys`] leaves out.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.nodes().iter().flat_map(keys).collect();
        keys.sort();
        keys
    }
}

/// Starts a Redis, and connects a store to it. Returns none if `redis-server` is not installed.
pub(crate) async fn redis_and_store() -> Option<(RedisServer, RedisStore)> {
    let redis = RedisServer::start()?;
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    Some((redis, store))
}

/// As [`redis_and_store`], with a proxy between them.
pub(crate) async fn redis_behind_proxy() -> Option<(RedisServer, FaultProxy, RedisStore)> {
    let redis = RedisServer::start()?;
    let proxy = FaultProxy::before_redis(&redis);
    let store = RedisStore::connect(&proxy.url).await.unwrap();
    Some((redis, proxy, store))
}

/// Returns all keys of a Redis, without those that live for a minute, the marks of deleted users, and the number of
/// the format.
pub(crate) fn keys(redis: &RedisServer) -> Vec<String> {
    let list = "return table.concat(redis.call('KEYS', '*'), ' ')";
    let keys = redis.command(&format!("EVAL \"{list}\" 0"));
    let keys = keys.split_whitespace().map(str::to_owned);
    let is_other = |key: &String| {
        !key.ends_with("clock") && !key.contains("deleted:") && !key.ends_with("format")
    };
    keys.filter(is_other).collect()
}

/// Returns the only key whose name contains this text.
pub(crate) fn key_with(redis: &RedisServer, name: &str) -> String {
    let mut keys = keys(redis);
    keys.retain(|key| key.contains(name));
    assert_eq!(keys.len(), 1, "{name}: {keys:?}");
    keys.remove(0)
}
