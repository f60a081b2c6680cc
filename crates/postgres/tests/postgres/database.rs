//! [`Database`]: a schema in the Postgres of the tests, for one test.

use std::sync::atomic::{AtomicU64, Ordering};

use test_support::external_processes::postgres_server::PostgresServer;
use tokio_postgres::{Client, NoTls};
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream_postgres::{PostgresOptions, PostgresStore};

pub(crate) struct Database {
    pub(crate) server: &'static PostgresServer,
    pub(crate) schema: String,
}

impl Database {
    /// Returns `None` if Postgres is not installed.
    pub(crate) fn new() -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let server = PostgresServer::shared()?;
        let schema = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Some(Database { server, schema })
    }

    /// Returns a database with a store in it.
    pub(crate) async fn with_store() -> Option<(Self, PostgresStore)> {
        let database = Self::new()?;
        let store = database.open().await;
        Some((database, store))
    }

    /// Returns a database with a store in it, whose clock stands at this second until [`Self::set_time`] sets it.
    pub(crate) async fn with_store_at(second: u64) -> Option<(Self, PostgresStore)> {
        let (database, store) = Self::with_store().await?;
        database.set_time(second).await;
        Some((database, store))
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions::new().with_schema(&*self.schema)
    }

    pub(crate) async fn open(&self) -> PostgresStore {
        self.options().open(&self.server.url()).await.unwrap()
    }

    /// Opens the store with a clock that stands at this second until [`Self::set_time`] sets it.
    pub(crate) async fn open_at(&self, second: u64) -> PostgresStore {
        let store = self.open().await;
        self.set_time(second).await;
        store
    }

    /// Sets the clock of Postgres, as the store reads it.
    pub(crate) async fn set_time(&self, second: u64) {
        self.set_time_to(UnixMillis(at(second))).await;
    }

    pub(crate) async fn set_time_to(&self, UnixMillis(now): UnixMillis) {
        self.execute(&format!(
            "CREATE OR REPLACE FUNCTION now_ms() RETURNS BIGINT LANGUAGE SQL AS 'SELECT {now}::BIGINT'"
        ))
        .await;
    }

    /// Executes statements as another program would.
    pub(crate) async fn execute(&self, statements: &str) {
        self.connect().await.batch_execute(statements).await.unwrap();
    }

    pub(crate) async fn number(&self, select: &str) -> i64 {
        self.connect().await.query_one(select, &[]).await.unwrap().get(0)
    }

    /// Counts the rows of a table, or of one kind of the rows of chats.
    pub(crate) async fn count(&self, table: &str) -> i64 {
        let rows = match table {
            "logs" => "rows WHERE substr(name, 1, 1) = 'h'",
            "log_entries" => "items WHERE sequence = 0",
            "log_messages" => "items WHERE sequence = 1",
            "log_snapshots" => "items WHERE sequence = 2",
            table => table,
        };
        self.number(&format!("SELECT count(*) FROM {rows}")).await
    }

    /// Begins a transaction that holds the lock of the partition of a user, as that of another server does.
    pub(crate) async fn lock_partition(&self, user: &Principal) -> Client {
        let partition = serde_json::json!([user.tenant(), user.id()]);
        let [schema, partition] = [&self.schema, &partition.to_string()]
            .map(|text| format!("convert_to('{text}', 'UTF8')"));
        let name = format!(r"{schema} || '\x00'::BYTEA || {partition}");
        let lock = format!("('x' || encode(substr(sha256({name}), 1, 8), 'hex'))::BIT(64) >> 1");
        let client = self.connect().await;
        let begin = format!("BEGIN; SELECT pg_advisory_xact_lock(({lock})::BIGINT)");
        client.batch_execute(&begin).await.unwrap();
        client
    }

    pub(crate) async fn connect(&self) -> Client {
        let mut config: tokio_postgres::Config = self.server.url().parse().unwrap();
        config.options(format!("-c search_path={}", self.schema));
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

/// The rows of logs, with what they hold as `head`.
pub(crate) const LOGS: &str = "(SELECT id, name, convert_from(body, 'UTF8')::JSON AS head FROM rows \
    WHERE substr(name, 1, 1) = 'h') AS logs";

/// Returns the time of this second in milliseconds.
pub(crate) fn at(second: u64) -> u64 {
    1_700_000_000_000 + second * 1000
}

/// The steps of this test that wait for another transaction.
pub(crate) const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
    AND query LIKE '%\"' || current_schema() || '\".run_steps%'";
