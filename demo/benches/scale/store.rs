//! [`StartedStore`]: a store, the process that has it, and what it has used.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use test_support::external_processes::DataFolder;
use test_support::external_processes::postgres_server::PostgresServer;
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore};
use ui_message_stream_chat::store::{InMemoryLogStore, LogStore};
use ui_message_stream_postgres::PostgresStore;
use ui_message_stream_redis::{RedisOptions, RedisStore};
use ui_message_stream_sqlite::SqliteStore;

/// Where chats and approvals are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
    Cluster,
    Postgres,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Memory, Kind::Sqlite, Kind::Redis, Kind::Cluster, Kind::Postgres];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Sqlite => "sqlite",
            Kind::Redis => "redis",
            Kind::Cluster => "cluster",
            Kind::Postgres => "postgres",
        }
    }
}

/// A store of this program, with nothing in it at first.
pub(crate) struct StartedStore {
    home: Home,
    /// In memory there is one store, which each opening returns.
    in_memory: Stores,
}

/// Both stores of a chat server.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) logs: Arc<dyn LogStore>,
    pub(crate) ledger: Arc<dyn LedgerStore>,
}

enum Home {
    Memory,
    Sqlite(DataFolder),
    Redis(RedisServer),
    Cluster(RedisCluster),
    Postgres(PostgresServer),
}

impl StartedStore {
    /// Starts a store. Returns `None` if its program is not installed.
    pub(crate) async fn start(kind: Kind) -> Option<Self> {
        let home = match kind {
            Kind::Memory => Home::Memory,
            Kind::Sqlite => Home::Sqlite(DataFolder::new()),
            Kind::Redis => Home::Redis(RedisServer::start_with(&["--appendonly", "yes"])?),
            Kind::Cluster => {
                let cluster = RedisCluster::start()?;
                for node in cluster.nodes() {
                    node.command("CONFIG SET appendfsync everysec");
                }
                Home::Cluster(cluster)
            }
            Kind::Postgres => Home::Postgres(PostgresServer::start()?),
        };
        let max = usize::MAX;
        let logs = InMemoryLogStore::new().with_max_user_bytes(max).with_max_store_bytes(max);
        let in_memory = Stores {
            logs: Arc::new(logs),
            ledger: Arc::new(InMemoryLedger::new().with_max_user_bytes(max)),
        };
        Some(StartedStore { home, in_memory })
    }

    /// Opens the store, as each server does when it starts.
    pub(crate) async fn open(&self) -> Stores {
        fn both<S: LogStore + LedgerStore>(store: S) -> Stores {
            let store = Arc::new(store);
            Stores { logs: store.clone(), ledger: store }
        }
        match &self.home {
            Home::Memory => self.in_memory.clone(),
            Home::Sqlite(folder) => {
                both(SqliteStore::open(folder.path().join("chats.db")).await.expect("a file"))
            }
            Home::Redis(redis) => both(RedisStore::connect(&redis.url()).await.expect("a Redis")),
            Home::Cluster(cluster) => {
                let store = RedisOptions::new().connect_cluster(cluster.urls()).await;
                both(store.expect("a cluster"))
            }
            Home::Postgres(postgres) => {
                both(PostgresStore::open(&postgres.url()).await.expect("a Postgres"))
            }
        }
    }

    /// Returns how long to wait until each chat can be swept for the second time, if the store sweeps twice.
    pub(crate) fn pause_between_sweeps(&self) -> Option<Duration> {
        let is_redis = matches!(self.home, Home::Redis(_) | Home::Cluster(_));
        is_redis.then_some(Duration::from_secs(61))
    }

    /// Returns what the server and the store have used since they were started.
    pub(crate) async fn used(&self) -> Used {
        // A session of Postgres reports its numbers when it was idle for 10 seconds.
        if matches!(self.home, Home::Postgres(_)) {
            tokio::time::sleep(Duration::from_millis(10_500)).await;
        }
        let mut used = Used { server_cpu: cpu_of("self"), ..Used::default() };
        match &self.home {
            Home::Memory => {}
            Home::Sqlite(_) => {
                let io = fs::read_to_string("/proc/self/io").expect("Linux");
                used.bytes = number_after(&io, "wchar: ");
            }
            Home::Redis(redis) => used.add_node(0, redis),
            Home::Cluster(cluster) => {
                for (number, node) in cluster.nodes().iter().enumerate() {
                    used.add_node(number, node);
                }
            }
            Home::Postgres(postgres) => {
                let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
                used.operations = leading_number(&query(postgres, sql));
                let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')";
                used.bytes = leading_number(&query(postgres, sql));
                used.store_cpu[0] =
                    Some(processes_named("postgres").iter().map(|id| cpu_of(id)).sum());
            }
        }
        used
    }

    /// Returns the bytes that the store holds, in memory or in its files.
    pub(crate) async fn bytes(&self) -> u64 {
        match &self.home {
            Home::Memory => {
                let status = fs::read_to_string("/proc/self/status").expect("Linux");
                number_after::<u64>(&status, "VmRSS:") * 1024
            }
            Home::Sqlite(folder) => {
                let path = folder.path().join("chats.db");
                SqliteStore::open(&path).await.expect("a file").checkpoint().await.expect("a copy");
                size(&path)
            }
            Home::Redis(redis) => memory_of(redis),
            Home::Cluster(cluster) => cluster.nodes().iter().map(memory_of).sum(),
            Home::Postgres(postgres) => {
                leading_number(&query(postgres, "SELECT pg_database_size('postgres')"))
            }
        }
    }
}

/// What was used until a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) server_cpu: Duration,
    /// The CPU of each node of a cluster, or that of the store first. `None` in memory and of SQLite, which work in the
    /// process of the server.
    pub(crate) store_cpu: [Option<Duration>; 3],
    /// The bytes that SQLite writes to its files, that Redis receives, and that Postgres writes to its write-ahead log.
    pub(crate) bytes: u64,
    /// The commands of Redis, also those of scripts, or the transactions of Postgres.
    pub(crate) operations: u64,
}

impl Used {
    pub(crate) fn since(self, before: Used) -> Used {
        Used {
            server_cpu: self.server_cpu.saturating_sub(before.server_cpu),
            store_cpu: std::array::from_fn(|node| {
                Some(self.store_cpu[node]?.saturating_sub(before.store_cpu[node]?))
            }),
            bytes: self.bytes.saturating_sub(before.bytes),
            operations: self.operations.saturating_sub(before.operations),
        }
    }

    fn add_node(&mut self, number: usize, redis: &RedisServer) {
        let info = redis.command("INFO everything");
        let seconds = |name| number_after::<f64>(&info, name);
        let cpu = seconds("\nused_cpu_user:") + seconds("\nused_cpu_sys:");
        self.store_cpu[number] = Some(Duration::from_secs_f64(cpu));
        self.bytes += number_after::<u64>(&info, "\ntotal_net_input_bytes:");
        self.operations += redis.executed_commands();
    }
}

fn memory_of(redis: &RedisServer) -> u64 {
    number_after(&redis.command("INFO memory"), "used_memory:")
}

/// Returns the CPU time of a process, in ticks of 10 ms.
fn cpu_of(process: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, in brackets, may contain spaces.
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

fn processes_named(name: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let ids = processes.map(|process| process.file_name().to_string_lossy().into_owned());
    let is_named = |id: &String| {
        let found = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        found.trim() == name
    };
    ids.filter(is_named).collect()
}

fn query(postgres: &PostgresServer, sql: &str) -> String {
    let output = Command::new("psql").args([&postgres.url(), "-At", "-c", sql]).output();
    String::from_utf8(output.expect("psql").stdout).expect("UTF-8")
}

fn number_after<N: std::str::FromStr + Default>(text: &str, name: &str) -> N {
    text.split_once(name).map(|(_, rest)| leading_number(rest)).unwrap_or_default()
}

fn leading_number<N: std::str::FromStr + Default>(text: &str) -> N {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].parse().unwrap_or_default()
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map(|file| file.len()).unwrap_or_default()
}
