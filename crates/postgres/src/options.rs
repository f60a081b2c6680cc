//! [`PostgresOptions`]: how a [`PostgresStore`] uses Postgres.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tokio::task::JoinSet;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Config, NoTls};

use crate::error::PostgresError;
#[cfg(feature = "chat")]
use crate::hints::{self, Hints};
use crate::{Inner, OPERATION_TIMEOUT, PostgresStore, STATEMENT_TIMEOUT, schema, within_time};

/// How a [`PostgresStore`] uses Postgres.
///
/// ```no_run
/// use ui_message_stream_postgres::PostgresOptions;
///
/// # async fn open() -> Result<(), ui_message_stream_postgres::PostgresError> {
/// let options = PostgresOptions::new().with_schema("shop_chats").with_max_connections(20);
/// let store = options.open("postgresql://server:password@127.0.0.1/shop").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    schema: Box<str>,
    max_connections: usize,
    creates_tables: bool,
}

impl PostgresOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        let schema = DEFAULT_SCHEMA.into();
        PostgresOptions { schema, max_connections: DEFAULT_MAX_CONNECTIONS, creates_tables: true }
    }

    /// Sets the schema of the database that holds the tables. The default is `ui_message_stream`.
    ///
    /// Stores with different schemas in one database are independent.
    #[must_use]
    pub fn with_schema(mut self, name: impl Into<Box<str>>) -> Self {
        self.schema = name.into();
        self
    }

    /// Sets the maximum number of connections that execute operations, at least 1. The default is
    /// 10. One more connection receives the changes of logs.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections.max(1);
        self
    }

    /// Opens the store only if its tables exist. Call [`create_tables`](Self::create_tables) before,
    /// for example in a step of the deployment with a role that may create tables.
    ///
    /// By default [`open`](Self::open) creates them.
    #[must_use]
    pub fn with_existing_tables(mut self) -> Self {
        self.creates_tables = false;
        self
    }

    /// Creates the tables if they do not exist. Of several servers that do this at once, one does it,
    /// and the others wait.
    ///
    /// A role of the servers that is not the owner of the tables needs `USAGE` on the schema and on its
    /// sequences, and `SELECT`, `INSERT`, `UPDATE` and `DELETE` on its tables.
    ///
    /// # Errors
    /// As [`open`](Self::open). Nothing is created then.
    pub async fn create_tables(&self, url: &str) -> Result<(), PostgresError> {
        self.create_or_check(&self.config(url)?, true).await.map(drop)
    }

    /// Connects to the Postgres at a URL such as `postgresql://user:password@host:5432/database`,
    /// creates the tables or checks their schema, and starts the tasks of the store, which run as
    /// long as the current tokio runtime.
    ///
    /// # Errors
    /// - [`PostgresError::Url`] and [`PostgresError::SchemaName`] if the arguments are wrong.
    /// - [`PostgresError::NewerSchema`] or [`PostgresError::OlderSchema`] if another version of this package
    ///   has created the tables, and this one does not read them.
    /// - [`PostgresError::NoTables`] if there are none and they are not to be created.
    /// - [`PostgresError::Unreachable`] if there is no connection in time.
    /// - The other errors if Postgres refuses the connection.
    pub async fn open(&self, url: &str) -> Result<PostgresStore, PostgresError> {
        let config = self.config(url)?;
        let pool = self.create_or_check(&config, self.creates_tables).await?;
        #[cfg_attr(not(feature = "chat"), allow(unused_mut))]
        let mut tasks = JoinSet::new();
        #[cfg(feature = "chat")]
        let hints = Arc::new(Hints::default());
        #[cfg(feature = "chat")]
        tasks.spawn(hints::listen(Arc::clone(&hints), config, self.schema.clone()));
        let (latest_time, failures) = Default::default();
        let inner = Inner {
            pool,
            #[cfg(feature = "chat")]
            hints,
            schema: self.schema.clone(),
            #[cfg(feature = "chat")]
            clock: Default::default(),
            #[cfg(feature = "chat")]
            known: Default::default(),
            #[cfg(feature = "chat")]
            appends: Default::default(),
            #[cfg(feature = "chat")]
            reads: Default::default(),
            latest_time,
            failures,
            _tasks: tasks,
        };
        Ok(PostgresStore { inner: Arc::new(inner) })
    }

    async fn create_or_check(&self, config: &Config, creates: bool) -> Result<Pool, PostgresError> {
        let pool = self.pool(config.clone())?;
        let checked = match within_time(schema::check(&pool, &self.schema)).await {
            // The role needs the right to create tables only if there are none.
            Err(PostgresError::NoTables) if creates => {
                schema::create_tables(&pool, &self.schema).await.map_err(|failure| failure.0)
            }
            checked => checked,
        };
        checked.map(|()| pool).map_err(|error| error.at(config))
    }

    /// Returns the settings of each connection.
    fn config(&self, url: &str) -> Result<Config, PostgresError> {
        let name = &self.schema;
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        let is_name = name.len() < 64
            && name.bytes().next().is_some_and(is_letter)
            && name.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit());
        if !is_name {
            return Err(PostgresError::SchemaName);
        }
        let mut config: Config = url.parse().map_err(|_| PostgresError::Url)?;
        let own = config.get_options().unwrap_or_default();
        // The role may have other settings. The statements need this isolation, and approvals that were
        // confirmed must be on the disk. Without statistics, as on a new database, Postgres would compile
        // some statements each time, which can take a second.
        let options = format!(
            "{own} -c default_transaction_isolation=read\\ committed -c synchronous_commit=on \
             -c jit=off -c statement_timeout={timeout} -c idle_in_transaction_session_timeout={timeout}",
            timeout = STATEMENT_TIMEOUT.as_millis(),
        );
        config.options(options).connect_timeout(CONNECT_TIMEOUT);
        config.keepalives_idle(KEEPALIVE_INTERVAL).keepalives_interval(KEEPALIVE_INTERVAL);
        config.tcp_user_timeout(OPERATION_TIMEOUT);
        // A session on a standby stays read-only when another server is promoted.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("ui-message-stream");
        }
        Ok(config)
    }

    fn pool(&self, config: Config) -> Result<Pool, PostgresError> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config, NoTls, recycling))
            .max_size(self.max_connections)
            .build();
        pool.map_err(|error| PostgresError::Connection(Arc::new(error)))
    }
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self::new()
    }
}

const DEFAULT_SCHEMA: &str = "ui_message_stream";
const DEFAULT_MAX_CONNECTIONS: usize = 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
