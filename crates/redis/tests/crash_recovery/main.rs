//! Processes on one Redis, or on one Redis Cluster, are killed with SIGKILL while they work, as on each store. This
//! program is each of these processes, and the test. `KILLS` and `POINT_KILLS` set the number of kills. Each third
//! trial is on the cluster, or each one of another number that `CLUSTER_EACH` sets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use chat_test_support::kill_trials::{self, block_on};
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{DataFolder, number};
use test_support::kills::{Backend, Role};
use ui_message_stream_redis::{RedisOptions, RedisStore};

fn main() {
    if let Some(role) = Role::from_environment() {
        return block_on(kill_trials::act::<Keys>(role));
    }
    let (Some(redis), Some(cluster)) = (RedisServer::start(), RedisCluster::start()) else {
        return;
    };
    let trials = AtomicUsize::new(0);
    kill_trials::run("redis", || {
        let trial = trials.fetch_add(1, Ordering::Relaxed);
        let urls = match trial % number("CLUSTER_EACH", 3) {
            0 => cluster.urls().join(","),
            _ => redis.url(),
        };
        Keys { folder: DataFolder::new(), address: format!("{urls} trial-{trial}:") }
    });
}

/// The keys of a trial.
struct Keys {
    folder: DataFolder,
    /// The URL of the Redis or the URLs of the cluster, and the prefix of the keys.
    address: String,
}

impl Backend for Keys {
    type Store = RedisStore;

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    async fn open(address: &str) -> Arc<RedisStore> {
        let (urls, prefix) = address.split_once(' ').unwrap();
        let options = RedisOptions::new().with_prefix(prefix);
        Arc::new(match urls.contains(',') {
            true => options.connect_cluster(urls.split(',')).await.unwrap(),
            false => options.connect(urls).await.unwrap(),
        })
    }
}
