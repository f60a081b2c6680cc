//! [`PostgresStore::sweep`]: deletes what is kept no longer.

use tokio_postgres::types::Type;
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::LogStore;

use crate::error::PostgresError;
use crate::{PostgresStore, stored};

impl PostgresStore {
    /// Deletes what is kept no longer: chats whose time has passed, approvals
    /// [24 hours](ui_message_stream::approval::store::RECORD_RETENTION) after they have expired, and
    /// entries before the snapshot of a log 10 minutes after the end of the run that has written them.
    ///
    /// A chat server calls it once a minute. Without one, call it. Several servers may do this at once. It
    /// deletes a few rows at a time, and fewer if Postgres cancels the statement because it takes too long.
    ///
    /// Without the feature `chat`, chats and their entries stay.
    ///
    /// # Errors
    /// [`PostgresError`] if something cannot be deleted: the first failure, unless something is left to a chat server.
    /// What can be deleted was deleted.
    pub async fn sweep(&self) -> Result<(), PostgresError> {
        #[cfg(feature = "chat")]
        {
            LogStore::sweep(self).await.map(drop).map_err(PostgresError::from_chat)
        }
        #[cfg(not(feature = "chat"))]
        {
            self.sweep_rest().await
        }
    }

    /// Deletes what is not of a log.
    pub(crate) async fn sweep_rest(&self) -> Result<(), PostgresError> {
        let mut result = Ok(());
        for statement in STATEMENTS {
            // The others are executed also if one fails.
            result = result.and(self.delete_all(statement, MAX_ROWS).await);
        }
        result
    }

    /// Repeats a statement until there is nothing to delete.
    pub(crate) async fn delete_all(
        &self,
        statement: &str,
        mut max_rows: i64,
    ) -> Result<(), PostgresError> {
        loop {
            match self.query(statement, &[(&max_rows, Type::INT8)]).await {
                Ok(rows) if stored(rows.len() as u64) < max_rows => return Ok(()),
                Ok(_) => {}
                // Many other rows may be deleted with each of these.
                Err(error) if is_too_slow(&error) && max_rows > 1 => max_rows /= 2,
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_too_slow(error: &PostgresError) -> bool {
    match error {
        PostgresError::Refused { sqlstate } => sqlstate == CANCELED,
        PostgresError::Timeout(_) => true,
        _ => false,
    }
}

/// Deletes at most `$1` rows, and returns their keys. A row that another transaction changes is
/// left out.
macro_rules! delete {
    ($table:literal, $key:literal, $condition:literal) => {
        concat!(
            "DELETE FROM SCHEMA.",
            $table,
            " WHERE ",
            $key,
            " IN (SELECT ",
            $key,
            " FROM SCHEMA.",
            $table,
            " WHERE ",
            $condition,
            " LIMIT $1::BIGINT FOR UPDATE SKIP LOCKED) RETURNING ",
            $key,
        )
    };
}

const APPROVALS: &str = delete!(
    "approvals",
    "id",
    "delete_at < (SELECT SCHEMA.now_not_before(latest_time) FROM SCHEMA.ledger_clock)"
);
const APPROVAL_USES: &str = delete!("approval_uses", "id", "delete_at < (SELECT SCHEMA.now_ms())");
// A day.
const DELETED_USERS: &str =
    delete!("deleted_users", "owner", "deleted_at + 86400000 <= (SELECT SCHEMA.now_ms())");

/// The statements, each of which deletes at most [`MAX_ROWS`] rows.
const STATEMENTS: [&str; 3] = [APPROVALS, APPROVAL_USES, DELETED_USERS];

const MAX_ROWS: i64 = 200;

/// The code of a statement that has taken longer than the time that it may take.
const CANCELED: &str = "57014";
