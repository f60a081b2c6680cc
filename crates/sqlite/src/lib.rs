//! [`SqliteStore`]: the logs of chats and the approvals of a server in one SQLite file.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Without the feature, what only the log store uses is not used.
#![cfg_attr(not(feature = "chat"), allow(dead_code))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

mod clock;
mod error;
mod file;
mod health;
#[cfg(feature = "chat")]
mod hints;
mod key;
mod ledger;
mod options;
mod queue;
#[cfg(feature = "chat")]
mod rows;
mod schema;
mod state;
mod sweep;
mod users;
#[cfg(feature = "chat")]
mod watch;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, Transaction};
use tokio::time::{Instant, sleep};
use ui_message_stream::approval::store::FailureLog;
use ui_message_stream::approval::{Principal, UnixMillis};
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::rows::KnownLogs;

pub use self::error::SqliteError;
pub use self::options::SqliteOptions;
pub use self::users::DeletedUser;

use self::clock::Clock;
use self::error::DbResult;
use self::file::{Durability, RETRY_INTERVAL};
use self::health::FileHealth;
#[cfg(feature = "chat")]
use self::hints::Hints;
use self::options::run_blocking;
use self::queue::Queue;
use self::writer::{Operation, Writer};

/// The logs of chats, the approvals and the sealing key of a server, in one SQLite file.
///
/// A clone is cheap and shares everything with the original. It implements
/// [`LogStore`](ui_message_stream_chat::store::LogStore) and
/// [`LedgerStore`](ui_message_stream::approval::store::LedgerStore):
///
/// ```
/// use std::sync::Arc;
///
/// use ui_message_stream::approval::{Approvals, Toolbox};
/// use ui_message_stream_chat::{ChatAgent, ChatServer};
/// use ui_message_stream_sqlite::SqliteStore;
///
/// async fn server(
///     agent: impl ChatAgent,
///     tools: impl Toolbox,
///     store: SqliteStore,
/// ) -> Result<ChatServer, Box<dyn std::error::Error>> {
///     let keys = store.sealing_key().await?;
///     let store = Arc::new(store);
///     let approvals = Approvals::new(tools).with_keys(keys).with_ledger(store.clone());
///     Ok(ChatServer::new(agent, approvals).with_store(store))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("sqlite-store-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let file = folder.join("chats.db");
///
/// let store = SqliteStore::open(&file).await?;
/// let key = store.sealing_key().await?.active_key_id();
/// drop(store);
///
/// let store = SqliteStore::open(&file).await?;
/// assert_eq!(store.sealing_key().await?.active_key_id(), key);
/// # drop(store);
/// # // A thread of the store may still close the file.
/// # let _ = std::fs::remove_dir_all(&folder);
/// # Ok(())
/// # }
/// ```
///
/// # The file
/// - It is created with mode 0600, and SQLite gives its `-wal` and `-shm` the same mode. A file that
///   gives other users access, that another user owns, or that is behind a link into a folder to which
///   others can write, is refused and not repaired, because they may have read it already. On systems without such modes, protect the folder.
/// - Several processes of one machine may use it at once. It must not be on a network file system,
///   because SQLite's write-ahead log does not work there.
/// - Back it up with SQLite's `VACUUM INTO` or its backup command, not by copying the file: the
///   newest data may be in the `-wal`. After [`checkpoint`](Self::checkpoint), and after some seconds
///   without a write, the file alone holds everything. Make a copy under `umask 077`: it has the mode
///   that the umask gives it. **A backup holds the [sealing key](Self::sealing_key)** and all chats.
/// - Before a restored backup is used, delete the key in it (`DELETE FROM sealing_key`), so that all
///   open approval requests are void. The file does not know which approvals were used after the
///   backup, and would accept them again.
/// - Delete it only together with `-wal` and `-shm`, and only if no process uses it. The `-wal` may
///   stay when the last process has ended: it belongs to the file.
///
/// # What is lost when something fails
///
/// | | the process is killed | the power fails |
/// |---|---|---|
/// | control entries of logs and all entries before them, snapshots, approvals, the sealing key | nothing | nothing |
/// | frames and notes after them | nothing | what was appended since the last write of another kind, or since SQLite moved its log into the file |
///
/// This is what was reported as saved; what was under way is there as a whole or not at all. It
/// holds if the disk has written what it has confirmed.
///
/// # When the file is not available
/// If the disk is full or fails, or if another process keeps the file locked for longer than
/// [`with_busy_timeout`](SqliteOptions::with_busy_timeout), each operation is an error, whose
/// [source](std::error::Error::source) is a [`SqliteError`]. Nothing was changed, and no approval
/// was claimed; only after [`SqliteError::Io`] a change may still be found after a crash. The same holds
/// while the file or its `-wal` is not at its place, because what is written then is lost. The store
/// recovers by itself. If the disk hangs, operations wait for it; those that have waited for their turn
/// for longer than the busy timeout are then [`SqliteError::Timeout`]. [`ping`](Self::ping) is a check
/// for a load balancer, which must give it a time limit. Each cause is logged at most once in 30 seconds.
///
/// # Threads
/// All work is done on threads of the store: one that writes, two that read, and one that looks for
/// appends of other processes five times a second while readers wait. Writes that wait at the same
/// time share a transaction, half of which is for frames if more wait than it holds. After such a
/// transaction, appends of frames wait for up to ten milliseconds, so that more of them share the next
/// one; any other write begins it at once. At most 64 reads for each thread, 256 appends of frames and
/// 256 other writes wait for their turn; further ones wait in the caller. If a future is dropped, its
/// operation takes place as a whole or not at all.
///
/// # The clock
/// The time is that of the system, which all processes of the machine share. If the system's clock is
/// set back by up to a minute, the store's time stands still until the clock has caught up. If it is
/// set back by more, it was wrong before, and the store follows it.
///
/// # Formats
/// The tables have a schema number, and each approval the number of its format. A file with another schema
/// is refused, and so is an approval of a newer format. The store decodes no entry of a log.
#[doc(alias = "database")]
#[doc(alias = "persist")]
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

/// What the clones of a store share.
struct Inner {
    writer: Writer,
    readers: Queue<Connection>,
    clock: Arc<Clock>,
    #[cfg(feature = "chat")]
    hints: Arc<Hints>,
    #[cfg(feature = "chat")]
    known: KnownLogs,
    health: Arc<FileHealth>,
    path: PathBuf,
    options: SqliteOptions,
    failures: FailureLog,
}

impl SqliteStore {
    /// Opens a file with the default [`SqliteOptions`], or creates it.
    ///
    /// # Errors
    /// As [`SqliteOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, SqliteError> {
        SqliteOptions::new().open(path).await
    }

    /// Checks that the file can be written: writes a row and waits until it is on the disk. Then checks
    /// that the file and its `-wal` are still at their place, and that the tables can be read.
    ///
    /// # Errors
    /// [`SqliteError`] if the file cannot be written now, or if it was removed, replaced or damaged.
    pub async fn ping(&self) -> Result<(), SqliteError> {
        self.write(Durability::Synced, state::ping).await?;
        let health = Arc::clone(&self.inner.health);
        run_blocking(move || health.check()).await
    }

    /// Moves what is in the `-wal` into the file, so that the file alone holds everything. Call this
    /// when the server has stopped. The store does it itself when it is idle.
    ///
    /// # Errors
    /// [`SqliteError::Busy`] if others use the file for longer than the
    /// [busy timeout](SqliteOptions::with_busy_timeout), or the other errors of a write. The `-wal` then
    /// belongs to the file as before.
    ///
    /// ```
    /// use ui_message_stream_sqlite::SqliteStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("sqlite-checkpoint-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let store = SqliteStore::open(folder.join("chats.db")).await?;
    /// store.checkpoint().await?;
    /// # assert_eq!(std::fs::metadata(folder.join("chats.db-wal"))?.len(), 0);
    /// # // The store still has the file open.
    /// # let _ = std::fs::remove_dir_all(&folder);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn checkpoint(&self) -> Result<(), SqliteError> {
        let until = Instant::now() + self.inner.options.busy_timeout;
        loop {
            match self.inner.writer.run(Durability::Moved, nothing).await {
                Err(SqliteError::Busy) if Instant::now() < until => sleep(RETRY_INTERVAL).await,
                moved => return self.logged(moved),
            }
        }
    }

    /// Sets the clock of a store that was opened
    /// [with a test clock](SqliteOptions::with_test_clock). A store with the system's clock is not
    /// changed. A time before the current one has no effect.
    pub fn set_test_time(&self, now: UnixMillis) {
        self.inner.clock.set_test_time(now);
    }

    /// Runs an operation in a transaction that writes, with the time. Other processes wait for its end.
    async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        operation: impl Operation<T>,
    ) -> Result<T, SqliteError> {
        self.logged(self.inner.writer.run(durability, operation).await)
    }

    /// Runs a transaction that reads, with the time. It sees everything that was committed before it began.
    async fn read<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Transaction<'_>, i64) -> DbResult<T> + Send + 'static,
    ) -> Result<T, SqliteError> {
        let clock = Arc::clone(&self.inner.clock);
        let job = move |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            let now = state::now(&transaction, &clock)?;
            run(&transaction, now)
        };
        self.logged(self.inner.readers.run(job).await)
    }

    /// Logs a failure of the file, and remembers that the file is damaged, if it is.
    pub(crate) fn logged<T>(&self, result: Result<T, SqliteError>) -> Result<T, SqliteError> {
        let result = result.map_err(|error| self.inner.health.note(error));
        result.inspect_err(|error| match error {
            SqliteError::UserDeleted => {}
            error => self.inner.failures.log(error),
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

#[cfg(feature = "chat")]
impl Drop for Inner {
    fn drop(&mut self) {
        // The thread that watches waits for this, and ends.
        self.hints.wanted.notify_one();
    }
}

/// The operation of a job that is there for its [`Durability`] alone.
fn nothing(_: &Transaction<'_>, _: i64) -> DbResult<()> {
    Ok(())
}

/// Returns an owner as it is stored: different owners never have the same text.
/// It is the name of the partition of the user.
fn owner_key(owner: &Principal) -> String {
    serde_json::json!([owner.tenant(), owner.id()]).to_string()
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
