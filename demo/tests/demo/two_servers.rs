//! Two demos that share a store, behind a proxy without sticky sessions.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::round_robin::RoundRobin;
use test_support::external_processes::{
    DataFolder, Example, Gate, built_example, node_project, run_node,
};
use test_support::patience;

/// What two demos share.
pub(crate) struct Shared {
    pub(crate) name: &'static str,
    pub(crate) store: Store,
    folder: DataFolder,
    /// Whether the store keeps all that it has confirmed when it is killed.
    pub(crate) is_durable: bool,
    /// The lease of live responses.
    pub(crate) lease: Duration,
    /// How often text is appended, in milliseconds. Empty: as by default.
    append_interval: &'static str,
}

/// The store of the chats, the approvals and the live responses.
pub(crate) enum Store {
    Sqlite,
    Redis(RedisServer),
    Cluster(RedisCluster),
}

impl Shared {
    pub(crate) fn sqlite() -> Option<Self> {
        Some(Self::new("SQLite", Store::Sqlite))
    }

    pub(crate) fn redis() -> Option<Self> {
        Some(Self::new("Redis", Store::Redis(RedisServer::start()?)))
    }

    pub(crate) fn redis_without_persistence() -> Option<Self> {
        let redis = Store::Redis(RedisServer::start_with(&[])?);
        Some(Shared { is_durable: false, ..Self::new("Redis without persistence", redis) })
    }

    pub(crate) fn cluster() -> Option<Self> {
        Some(Self::new("Cluster", Store::Cluster(RedisCluster::start()?)))
    }

    fn new(name: &'static str, store: Store) -> Self {
        // A busy machine lets a server stand still for half a second.
        let lease = Duration::from_secs(2);
        let folder = DataFolder::new();
        Shared { name, store, folder, is_durable: true, lease, append_interval: "" }
    }

    /// Has the demos show only what is stored.
    pub(crate) fn without_interval(self) -> Self {
        Shared { append_interval: "0", ..self }
    }

    /// Returns the Redis that the demos share.
    pub(crate) fn redis_mut(&mut self) -> &mut RedisServer {
        match &mut self.store {
            Store::Redis(redis) => redis,
            _ => panic!("{} is not one Redis", self.name),
        }
    }

    /// Suspends a demo, at a moment at which it does not lock the file that both use.
    pub(crate) fn hang(&self, demo: &Example) {
        let file = Connection::open(self.data()).unwrap();
        file.busy_timeout(Duration::from_millis(200)).unwrap();
        loop {
            demo.hang(true);
            if file.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
                return;
            }
            demo.hang(false);
        }
    }

    /// Returns the file with the world, and with SQLite with everything.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("chat.db")
    }

    /// Closes a gate of the demos.
    pub(crate) fn gate(&self, name: &str) -> Gate {
        Gate::closed(self.folder.path(), name)
    }

    /// Starts a demo on this port.
    pub(crate) fn start_on(&self, port: &str) -> Example {
        self.start_with(port, "")
    }

    /// Starts a demo on this port, with this secret. If it is empty, the file holds the key.
    pub(crate) fn start_with(&self, port: &str, secret: &str) -> Example {
        let store = match &self.store {
            Store::Sqlite => "sqlite".to_owned(),
            Store::Redis(redis) => redis.url(),
            Store::Cluster(cluster) => cluster.urls().join(","),
        };
        let is_durable = match &self.store {
            Store::Sqlite => String::new(),
            Store::Redis(_) | Store::Cluster(_) => self.is_durable.to_string(),
        };
        let variables = [
            ("PORT", port.to_owned()),
            ("CHAT_STORE", store),
            ("UIMS_REDIS_IS_DURABLE", is_durable),
            ("UIMS_DATA", self.data().display().to_string()),
            ("DEMO_GATES", self.folder.path().display().to_string()),
            ("APPROVAL_SECRET", secret.to_owned()),
            ("UIMS_LEASE_MS", self.lease.as_millis().to_string()),
            ("UIMS_APPEND_INTERVAL_MS", self.append_interval.to_owned()),
        ];
        Example::run(built_example("chat", &[]), &variables)
    }
}

/// Runs all scenarios of the real client against two demos behind a proxy.
fn play(shared: Option<Shared>, arguments: &[&str]) {
    let (Some(mut shared), Some(client)) = (shared, node_project("tests/client")) else {
        return;
    };
    // No server is lost here, however slow the machine is.
    shared.lease = 10 * patience();
    let first = shared.start_on("0");
    let second = shared.start_on("0");
    let proxy = RoundRobin::start(&[&first.url, &second.url]);
    let arguments = [&["scenarios.mjs", &proxy.url], arguments].concat();
    let printed = run_node(&client, &arguments);
    assert!(printed.ends_with(" 0 failed\n"), "{}: {printed}", shared.name);
    let is_cut = arguments.contains(&"--cut");
    assert_eq!(proxy.cuts() > 0, is_cut, "{}", shared.name);
}

#[test]
fn the_client_gets_through_every_scenario_with_two_servers_on_sqlite() {
    play(Shared::sqlite(), &["--versions", "6.0.0,6.0.326"]);
}

#[test]
fn the_client_gets_through_every_scenario_with_two_servers_on_redis() {
    play(Shared::redis(), &["--versions", "6.0.0,6.0.326"]);
}

#[test]
fn the_client_gets_through_every_scenario_with_two_servers_on_redis_cluster() {
    play(Shared::cluster(), &["--versions", "6.0.0,6.0.326"]);
}

#[test]
fn responses_that_are_cut_continue_at_the_other_server() {
    std::thread::scope(|threads| {
        for shared in [Shared::sqlite(), Shared::redis(), Shared::cluster()] {
            threads.spawn(|| play(shared, &["--cut", "--versions", "6.0.326"]));
        }
    });
}

#[test]
fn a_store_that_does_not_answer_is_named_at_the_start() {
    let redis = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = redis.local_addr().unwrap().port();
    drop(redis);
    let ended = Command::new(built_example("chat", &[]))
        .env("CHAT_STORE", format!("redis://u:hunter2@127.0.0.1:{port}/"))
        .output()
        .unwrap();
    let error = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success(), "{error}");
    let expected = format!(
        "CHAT_STORE: cannot connect to Redis at 127.0.0.1:{port}; start it, or correct its URL: \
         Connection refused"
    );
    assert!(error.contains(&expected) && !error.contains("hunter2"), "{error}");
}
