//! [`SqliteOptions`]: how a [`SqliteStore`] is opened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use ui_message_stream::approval::UnixMillis;
use ui_message_stream::approval::store::FailureLog;
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::rows::KnownLogs;

use crate::clock::Clock;
use crate::error::{DbResult, SqliteError};
use crate::file;
use crate::health::FileHealth;
#[cfg(feature = "chat")]
use crate::hints::Hints;
use crate::queue::Queue;
#[cfg(feature = "chat")]
use crate::watch;
use crate::writer::Writer;
use crate::{Inner, SqliteStore, schema};

/// How a [`SqliteStore`] is opened.
///
/// ```no_run
/// use std::time::Duration;
/// use ui_message_stream_sqlite::SqliteOptions;
///
/// # async fn open() -> Result<(), ui_message_stream_sqlite::SqliteError> {
/// let options = SqliteOptions::new().with_busy_timeout(Duration::from_secs(2));
/// let store = options.open("data/chats.db").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    pub(crate) busy_timeout: Duration,
    pub(crate) test_time: Option<UnixMillis>,
}

impl SqliteOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        SqliteOptions { busy_timeout: DEFAULT_BUSY_TIMEOUT, test_time: None }
    }

    /// Sets how long an operation waits for its turn, and then for the lock of another process. The
    /// default is 5 seconds each. The maximum is a day each: a longer time counts as a day. For its
    /// turn, an operation waits at least a second. After that the operation fails, and nothing
    /// was changed.
    #[must_use]
    pub fn with_busy_timeout(mut self, time: Duration) -> Self {
        self.busy_timeout = time.min(MAX_BUSY_TIMEOUT);
        self
    }

    /// Sets a clock for tests. It stands at `now` until [`SqliteStore::set_test_time`] sets it.
    #[must_use]
    pub fn with_test_clock(mut self, now: UnixMillis) -> Self {
        self.test_time = Some(now);
        self
    }

    /// Opens the file, or creates it with mode 0600, and starts the threads of the store.
    ///
    /// # Errors
    /// - [`SqliteError::File`] if the file cannot be created, for example because its folder does
    ///   not exist.
    /// - [`SqliteError::FileMode`], [`SqliteError::FileOwner`] or [`SqliteError::SharedFolder`] if
    ///   other users have access to the file.
    /// - [`SqliteError::ReadOnly`] if this process may not write the file.
    /// - [`SqliteError::OtherDatabase`] if the file is not one of this package.
    /// - [`SqliteError::NewerSchema`] or [`SqliteError::OlderSchema`] if another version of this package has
    ///   created the tables.
    /// - The other errors if the file cannot be read or written.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<SqliteStore, SqliteError> {
        let path = path.as_ref().to_owned();
        run_blocking(move || self.open_now(&path).map_err(|failure| failure.0)).await
    }

    fn open_now(self, path: &Path) -> DbResult<SqliteStore> {
        warn_if_old();
        let patience = self.busy_timeout;
        let path = file::create(path)?;
        let mut connection = file::open(&path, patience)?;
        file::use_wal(&connection, patience)?;
        schema::create_tables(&mut connection)?;
        // SQLite opens a file for reading if it may not write it.
        connection.execute("UPDATE state SET latest_time = latest_time", [])?;
        let open = || file::open(&path, patience);
        let readers = (0..READERS).map(|_| open()).collect::<DbResult<Vec<Connection>>>()?;
        #[cfg(feature = "chat")]
        let watched = open()?;
        let health = Arc::new(FileHealth::new(&path));
        let clock = Arc::new(self.test_time.map_or_else(Clock::system, Clock::test));
        let inner = Arc::new(Inner {
            writer: Writer::start(connection, Arc::clone(&clock), Arc::clone(&health), patience)
                .map_err(SqliteError::File)?,
            readers: Queue::start("sqlite-reader", readers, patience).map_err(SqliteError::File)?,
            clock,
            #[cfg(feature = "chat")]
            hints: Arc::new(Hints::default()),
            #[cfg(feature = "chat")]
            known: KnownLogs::default(),
            health,
            path,
            options: self,
            failures: FailureLog::default(),
        });
        #[cfg(feature = "chat")]
        watch::start(&inner, watched).map_err(SqliteError::File)?;
        Ok(SqliteStore { inner })
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs a function that waits for the disk on a thread for such functions.
pub(crate) async fn run_blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, SqliteError> + Send + 'static,
) -> Result<T, SqliteError> {
    tokio::task::spawn_blocking(run).await.map_err(|_| SqliteError::Panicked)?
}

/// Logs a warning if this SQLite may damage a file that several processes write.
fn warn_if_old() {
    let version = rusqlite::version_number();
    let is_fixed = version >= 3_051_003
        || (3_050_007..3_051_000).contains(&version)
        || (3_044_006..3_045_000).contains(&version);
    if !is_fixed {
        tracing::warn!(
            version = rusqlite::version(),
            "this SQLite may damage a file that several processes write (the WAL-reset bug): use \
             3.51.3 or later, which comes with rusqlite 0.39, or let one process write the file"
        );
    }
}

const DEFAULT_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// SQLite accepts at most 24 days, and a time too far in the future cannot be represented.
const MAX_BUSY_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The number of threads that read.
const READERS: usize = 2;
