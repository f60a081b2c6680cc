//! [`PostgresStore::sweep`]: deletes what is kept no longer.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::time::sleep;

use crate::error::PostgresError;
use crate::{PostgresStore, query};

impl PostgresStore {
    /// Deletes what is kept no longer: chats whose time has passed, approvals
    /// [24 hours](ui_message_stream::approval::store::RECORD_RETENTION) after they have expired, and
    /// logs 10 minutes after their end, or 7 days after the lease of a lost run has passed.
    ///
    /// The store calls it once a minute. Several servers may do this at once.
    ///
    /// # Errors
    /// [`PostgresError`] if Postgres cannot be written. Part may have been deleted.
    pub async fn sweep(&self) -> Result<(), PostgresError> {
        sweep(&self.inner.pool).await
    }
}

async fn sweep(pool: &Pool) -> Result<(), PostgresError> {
    for statement in [CHATS, APPROVALS, APPROVAL_USES, ENDED_RUNS, LOST_RUNS, DELETED_USERS] {
        while query(pool, statement, &[]).await?.len() >= MAX_ROWS {}
    }
    Ok(())
}

pub(crate) async fn sweep_often(pool: Pool) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        if let Err(error) = sweep(&pool).await {
            tracing::warn!(%error, "what is kept no longer was not deleted");
        }
    }
}

/// Deletes some rows, and returns their keys. A row that another transaction changes is left out.
macro_rules! delete {
    ($table:literal, $key:literal, $condition:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE ",
            $key,
            " IN (SELECT ",
            $key,
            " FROM ",
            $table,
            " WHERE ",
            $condition,
            " LIMIT 200 FOR UPDATE SKIP LOCKED) RETURNING ",
            $key,
        )
    };
}

const CHATS: &str = delete!("chats", "key", "expires_at <= (SELECT now_ms())");
const APPROVALS: &str = delete!(
    "approvals",
    "id",
    "delete_at < (SELECT now_not_before(latest_time) FROM ledger_clock)"
);
const APPROVAL_USES: &str = delete!("approval_uses", "id", "delete_at < (SELECT now_ms())");
const ENDED_RUNS: &str = delete!("runs", "key", "ended_at + 600000 <= (SELECT now_ms())");
// 7 days.
const LOST_RUNS: &str = delete!(
    "runs",
    "key",
    "ended_at IS NULL AND renewed_at + lease + 604800000 <= (SELECT now_ms())"
);
// A day.
const DELETED_USERS: &str =
    delete!("deleted_users", "owner", "deleted_at + 86400000 <= (SELECT now_ms())");

/// How many rows a statement deletes at most.
const MAX_ROWS: usize = 200;

const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
