//! [`PostgresStore`]: the logs of chats and the approvals of several servers in Postgres.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Without the feature, what only the log store uses is not used.
#![cfg_attr(not(feature = "chat"), allow(dead_code))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

#[cfg(feature = "chat")]
mod batches;
mod error;
mod guard;
#[cfg(feature = "chat")]
mod hints;
mod ledger;
mod options;
#[cfg(feature = "chat")]
mod rows;
mod schema;
mod sweep;
mod users;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use deadpool_postgres::{Client, Pool};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};
use ui_message_stream::approval::Principal;
use ui_message_stream::approval::store::FailureLog;
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::rows::KnownLogs;

pub use self::error::PostgresError;
pub use self::options::PostgresOptions;
pub use self::users::DeletedUser;

use self::error::DbResult;
#[cfg(feature = "chat")]
use self::{batches::Batches, hints::Hints, rows::Clock};

/// The logs of chats and the approvals of all servers that share a Postgres database.
///
/// A clone is cheap and shares everything with the original. It implements
/// [`LogStore`](ui_message_stream_chat::store::LogStore),
/// [`LedgerStore`](ui_message_stream::approval::store::LedgerStore) and
/// [`ReplayGuard`](ui_message_stream::approval::store::ReplayGuard):
///
/// ```no_run
/// use std::sync::Arc;
///
/// use ui_message_stream::approval::{Approvals, KeyRing, Toolbox};
/// use ui_message_stream_chat::{ChatAgent, ChatServer};
/// use ui_message_stream_postgres::PostgresStore;
///
/// # async fn server(
/// #     agent: impl ChatAgent,
/// #     tools: impl Toolbox,
/// #     secret: &[u8],
/// # ) -> Result<ChatServer, Box<dyn std::error::Error>> {
/// let store = Arc::new(PostgresStore::open("postgresql://server@127.0.0.1/shop").await?);
/// // Servers that share a store must share the key, too.
/// let keys = KeyRing::new(1, secret)?;
/// let approvals = Approvals::new(tools).with_keys(keys).with_ledger(store.clone());
/// let server = ChatServer::new(agent, approvals).with_store(store);
/// # Ok(server)
/// # }
/// ```
///
/// It needs Postgres 12 or later (it is tested with 15) and a database whose encoding is UTF-8. The
/// connections have no TLS. Connect it to Postgres itself: each connection sets values such as `synchronous_commit`
/// with the startup parameter `options`. The store also works behind PgBouncer in transaction mode, with
/// `ignore_startup_parameters = options`. Then the role must have `default_transaction_isolation` and
/// `synchronous_commit` as Postgres has them by default, and should have a `statement_timeout` of 4500 ms.
///
/// # What is lost when Postgres fails
/// Nothing that was reported as saved, if Postgres runs with `fsync=on` (the default). The store sets
/// `synchronous_commit=on`. After a failover to a replica that is not synchronous, everything is lost
/// that the replica had not received: if it is the claim of an approval, **the call can be executed a
/// second time**.
///
/// # When Postgres is not available
/// Each step of an operation ends within five seconds, if necessary with an error. Most operations are
/// one step, which is a statement or a transaction. An operation that several servers do at once to one
/// approval may have more. An append of a user whose chats another transaction changes at that moment has
/// two.
///
/// The store connects again by itself, also if Postgres does not answer on a connection. An
/// operation whose reply is lost is not repeated by the store: its caller repeats it, and the store
/// recognizes what has taken effect, except as a guard of stateless approvals.
/// [`ping`](Self::ping) is a check for a load balancer. Each cause of failures is logged at most once in
/// 30 seconds.
///
/// The store uses only sessions that can write, so not those of a standby. If the URL names several
/// hosts, it connects to the first that accepts such a session.
///
/// If a guard has stored a use and its reply is lost, the use counts as that of an earlier request.
/// An approved call is then not executed, also if the request is repeated, and its outcome is
/// [unknown](ui_message_stream::UserText::OutcomeUnknown). A denied call stays denied.
///
/// # The clock
/// The time is that of Postgres. If its clock is set back by up to a minute, the time of the ledger
/// does not go back behind the last write, nor behind the time that this process has seen. If the
/// clock is set back by more, it was wrong before, and the store follows it.
///
/// # Readers that wait
/// One connection of each server listens on a channel that has the name of the schema. Each transaction
/// that appends to logs or deletes them is notified there. While this connection is away, and behind PgBouncer, readers
/// look twice a second.
///
/// # Formats
/// The tables have a schema number, and each approval the number of its format. Newer tables and newer
/// approvals are refused. The store decodes no entry of a log. [`open`](Self::open) creates the tables. To
/// create them in a step of its own, call [`PostgresOptions::create_tables`] and open the store
/// [with existing tables](PostgresOptions::with_existing_tables).
#[doc(alias = "database")]
#[doc(alias = "persist")]
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

/// A value of a statement, and its type.
type Value<'v> = (&'v (dyn ToSql + Sync), Type);

/// What the clones of a store share.
struct Inner {
    pool: Pool,
    #[cfg(feature = "chat")]
    hints: Arc<Hints>,
    schema: Box<str>,
    #[cfg(feature = "chat")]
    clock: Clock,
    #[cfg(feature = "chat")]
    known: KnownLogs,
    #[cfg(feature = "chat")]
    appends: Arc<Batches>,
    #[cfg(feature = "chat")]
    reads: Arc<Batches>,
    /// The latest time that this process has seen.
    latest_time: AtomicI64,
    failures: FailureLog,
    /// They end when the store is dropped.
    _tasks: JoinSet<()>,
}

impl PostgresStore {
    /// Connects to the Postgres at a URL such as `postgresql://user:password@host:5432/database`,
    /// with the default [`PostgresOptions`].
    ///
    /// # Errors
    /// As [`PostgresOptions::open`].
    pub async fn open(url: &str) -> Result<Self, PostgresError> {
        PostgresOptions::new().open(url).await
    }

    /// Checks that Postgres can be written.
    ///
    /// # Errors
    /// [`PostgresError`] if Postgres cannot be written now, for example because it is a replica.
    pub async fn ping(&self) -> Result<(), PostgresError> {
        self.query("SELECT nextval('SCHEMA.pings')", &[]).await.map(drop)
    }

    /// Executes a statement, which is a transaction, and returns its rows. It needs no state of a session.
    async fn query(
        &self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, PostgresError> {
        self.query_on(self.connection().await?, statement, values).await
    }

    /// Waits for a connection. Returns it, and until when a statement on it may take.
    async fn connection(&self) -> Result<(Client, Instant), PostgresError> {
        let until = Instant::now() + OPERATION_TIMEOUT;
        let client = until_time(until, async { Ok(self.inner.pool.get().await?) }).await;
        Ok((self.logged(client)?, until))
    }

    async fn query_on(
        &self,
        (client, until): (Client, Instant),
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, PostgresError> {
        let begun = Instant::now();
        let statement = schema::named(statement, &self.inner.schema);
        let rows = until_time(until, async { Ok(client.query_typed(&statement, values).await?) });
        let rows = rows.await;
        self.logged(give_back(&self.inner.pool, (client, begun), rows))
    }

    /// Logs a failure of Postgres.
    fn logged<T>(&self, result: Result<T, PostgresError>) -> Result<T, PostgresError> {
        result.inspect_err(|error| self.inner.failures.log(error))
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

/// Gives a connection back to the pool, and returns what the operation on it has returned, which has
/// begun at `begun`.
///
/// If there was no answer for [`STATEMENT_TIMEOUT`], the connection and all idle ones are closed. A
/// connection whose peer is gone can stay open for ever if a proxy in between accepts all bytes. They
/// are also closed if the session is read-only, because it stays so.
fn give_back<T>(
    pool: &Pool,
    (client, begun): (Client, Instant),
    result: Result<T, PostgresError>,
) -> Result<T, PostgresError> {
    let is_lost = match &result {
        Err(PostgresError::Timeout(_)) => begun.elapsed() > STATEMENT_TIMEOUT,
        Err(PostgresError::Refused { sqlstate }) => sqlstate == READ_ONLY,
        _ => false,
    };
    if is_lost {
        drop(Client::take(client));
        pool.retain(|_, _| false);
    }
    result
}

/// Waits for an operation for at most [`OPERATION_TIMEOUT`].
async fn within_time<T>(operation: impl Future<Output = DbResult<T>>) -> Result<T, PostgresError> {
    until_time(Instant::now() + OPERATION_TIMEOUT, operation).await
}

async fn until_time<T>(
    until: Instant,
    operation: impl Future<Output = DbResult<T>>,
) -> Result<T, PostgresError> {
    match timeout_at(until, operation).await {
        Ok(result) => result.map_err(|failure| failure.0),
        Err(_) => Err(PostgresError::Timeout(OPERATION_TIMEOUT)),
    }
}

/// Returns a column of a row.
fn column<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, PostgresError> {
    row.try_get(at).map_err(|_| PostgresError::Unreadable("row"))
}

/// Returns a number of a column that holds no negative one.
fn number(row: &Row, at: usize) -> Result<u64, PostgresError> {
    u64::try_from(column::<i64>(row, at)?).map_err(|_| PostgresError::Unreadable("number"))
}

/// Returns a number as it is stored: the largest numbers become one.
fn stored(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns an owner as it is stored: different owners never have the same text.
/// It is the name of the partition of the user.
fn owner_key(owner: &Principal) -> String {
    serde_json::json!([owner.tenant(), owner.id()]).to_string()
}

const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which Postgres ends a statement itself. A connection on which an operation has taken
/// longer has probably lost its peer: only an operation of several statements, which each waited for a
/// lock, takes longer otherwise.
const STATEMENT_TIMEOUT: Duration = Duration::from_millis(4500);

/// The reason with which Postgres refuses a write on a standby, or in another read-only session.
const READ_ONLY: &str = "25006";

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
