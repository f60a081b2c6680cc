//! [`Database`]: a schema in the Postgres of the tests, for one test.

use std::sync::atomic::{AtomicU64, Ordering};

use test_support::external_processes::postgres_server::PostgresServer;
use tokio_postgres::{Client, NoTls};
use ui_message_stream::approval::UnixMillis;
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

    pub(crate) async fn count(&self, table: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM {table}")).await
    }

    pub(crate) async fn connect(&self) -> Client {
        let mut config: tokio_postgres::Config = self.server.url().parse().unwrap();
        config.options(format!("-c search_path={}", self.schema));
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

/// Returns the time of this second in milliseconds.
pub(crate) fn at(second: u64) -> u64 {
    1_700_000_000_000 + second * 1000
}
