//! [`PostgresError`]: why Postgres cannot be used, without what is stored.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::PoolError;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use ui_message_stream::approval::store::LedgerStoreError;

/// A failure of a [`PostgresStore`](crate::PostgresStore).
///
/// The functions of the store traits return it as the source of their own errors. It holds no SQL
/// and nothing that is stored.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The text is not the URL of a Postgres.
    #[error(
        "the URL of Postgres cannot be read: it has the form \
         `postgresql://user:password@host:5432/database`"
    )]
    Url,
    /// No connection was made when the store was opened.
    #[error(
        "cannot connect to Postgres at {addresses}, or it does not allow writes; start it, or \
         correct its URL"
    )]
    Unreachable {
        /// Where Postgres was expected, without user and password.
        addresses: String,
        /// Why there is no connection.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The name of the schema is not one that this package takes.
    #[error(
        "the name of the schema must have 1 to 63 lowercase ASCII letters, digits and `_`, and \
         not begin with a digit"
    )]
    SchemaName,
    /// There are no tables, and the store was opened
    /// [with existing tables](crate::PostgresOptions::with_existing_tables).
    #[error(
        "there are no tables: call `PostgresOptions::create_tables`, or open the store without \
         `with_existing_tables`"
    )]
    NoTables,
    /// A newer version of this package has created the tables.
    #[error(
        "the tables have schema {schema}, which is newer than this version of \
         ui-message-stream-postgres reads ({known}); upgrade the server"
    )]
    NewerSchema {
        /// The schema of the tables.
        schema: i32,
        /// The schema that this version reads.
        known: i32,
    },
    /// An older version of this package has created the tables.
    #[error(
        "the tables have schema {schema}, which is older than this version of \
         ui-message-stream-postgres reads ({known}); name another schema with \
         `PostgresOptions::with_schema`, or drop this one with all that it holds"
    )]
    OlderSchema {
        /// The schema of the tables.
        schema: i32,
        /// The schema that this version reads.
        known: i32,
    },
    /// Postgres is not reachable or does not allow writes, or the connection was lost. It is not known
    /// whether the operation took place.
    #[error("Postgres is not reachable or does not allow writes, or the connection was lost")]
    Connection(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// Postgres has refused the connection or the operation. An operation has changed nothing.
    #[error("{} (SQLSTATE {sqlstate})", reason(sqlstate))]
    Refused {
        /// The code of the reason, for example `28P01` for a wrong password.
        sqlstate: String,
    },
    /// Postgres has not answered in time. It is not known whether the operation took place.
    #[error(
        "Postgres has not answered within {0:?}: it hangs, has too much to do, or is not reachable"
    )]
    Timeout(Duration),
    /// The user was [deleted](crate::PostgresStore::delete_user) during a run, which requests no more
    /// approvals.
    #[error("the user was deleted, and has no such chat since")]
    UserDeleted,
    /// What is stored is not what this version writes.
    #[error("a stored {0} cannot be read")]
    Unreadable(&'static str),
}

impl PostgresError {
    /// Returns the cause of a failure of the logs.
    #[cfg(feature = "chat")]
    pub(crate) fn from_chat(error: ui_message_stream_chat::store::ChatStoreError) -> Self {
        let cause =
            std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Self>());
        cause.cloned().unwrap_or(PostgresError::Unreadable("row"))
    }

    /// Adds to an error of opening the store where Postgres was expected.
    pub(crate) fn at(self, config: &Config) -> Self {
        let source: Arc<dyn std::error::Error + Send + Sync> = match self {
            PostgresError::Connection(source) => source,
            timeout @ PostgresError::Timeout(_) => Arc::new(timeout),
            other => return other,
        };
        let addresses = config.get_hosts().iter().enumerate().map(|(at, host)| {
            // One port is that of all hosts.
            let ports = config.get_ports();
            let port = ports.get(at).or(ports.first()).unwrap_or(&5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                #[cfg(unix)]
                Host::Unix(folder) => format!("{} (port {port})", folder.display()),
            }
        });
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        PostgresError::Unreachable { addresses, source }
    }
}

/// Returns what a SQLSTATE means, and what to do.
fn reason(sqlstate: &str) -> &'static str {
    match sqlstate {
        "28P01" | "28000" => {
            "Postgres refuses the user or the password: correct them in the URL, or extend pg_hba.conf"
        }
        "3D000" => "the database does not exist: create it, or correct its name in the URL",
        "25006" => {
            "this Postgres cannot be written, it is probably a standby: connect to the primary"
        }
        "42501" => "the role may not use the schema or its tables: grant it the rights",
        "53100" => "the disk of Postgres is full: free space on it",
        "53200" => "Postgres has no memory left: see its log",
        "53300" => "Postgres has no connection left: raise its max_connections",
        "57P01" | "57P02" | "57P03" => {
            "Postgres is stopping or starting: wait until it has done so"
        }
        "57014" => {
            "Postgres was too slow and has cancelled the operation: see what locks its tables"
        }
        _ => "Postgres failed",
    }
}

/// An error inside this package: `?` converts the errors of the client and the pool, whose types are
/// not public here.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) PostgresError);

impl From<PostgresError> for Failure {
    fn from(error: PostgresError) -> Self {
        Failure(error)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        // The text of an error of the database may hold what is stored.
        Failure(match error.code() {
            Some(code) => PostgresError::Refused { sqlstate: code.code().to_owned() },
            None => PostgresError::Connection(Arc::new(error)),
        })
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            error => Failure(PostgresError::Connection(Arc::new(error))),
        }
    }
}

pub(crate) type DbResult<T> = Result<T, Failure>;

impl From<PostgresError> for LedgerStoreError {
    fn from(error: PostgresError) -> Self {
        LedgerStoreError::new(error)
    }
}
