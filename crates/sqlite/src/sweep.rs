//! [`SqliteStore::sweep`]: deletes what is kept no longer.

use rusqlite::Transaction;

use crate::error::SqliteError;
use crate::file::Durability;
use crate::{SqliteStore, ledger};

impl SqliteStore {
    /// Deletes what is kept no longer: chats whose time has passed, approvals
    /// [24 hours](ui_message_stream::approval::store::RECORD_RETENTION) after they have expired, and entries
    /// of logs that are in a snapshot and that no reader needs.
    ///
    /// A chat server calls it once a minute. Without one, call it. Each step is a short transaction, so that
    /// other writers get their turn.
    ///
    /// Without the feature `chat`, chats and their entries stay.
    ///
    /// # Errors
    /// [`SqliteError`] if something cannot be deleted: the first failure. What can be deleted was deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, the rest is deleted by the next call.
    pub async fn sweep(&self) -> Result<(), SqliteError> {
        let rest = self.sweep_rest().await;
        #[cfg(feature = "chat")]
        let rest = self.sweep_logs().await.and(rest);
        rest
    }

    /// Deletes what is not of a log.
    async fn sweep_rest(&self) -> Result<(), SqliteError> {
        loop {
            let deleted = self.write(Durability::Written, |transaction: &Transaction<'_>, now| {
                let users = transaction.prepare_cached(SWEEP_DELETED_USERS)?.execute([now])?;
                let deletions = transaction.prepare_cached(SWEEP_DELETIONS)?.execute([now])?;
                Ok(users + deletions + ledger::sweep(transaction, now)?)
            });
            if deleted.await? == 0 {
                return Ok(());
            }
        }
    }
}

// A day.
const SWEEP_DELETED_USERS: &str = "DELETE FROM deleted_users WHERE owner IN \
    (SELECT owner FROM deleted_users WHERE deleted_at <= ?1 - 86400000 LIMIT 200)";
// 30 days.
const SWEEP_DELETIONS: &str = "DELETE FROM log_deliveries WHERE (owner, chat) IN \
    (SELECT owner, chat FROM log_deliveries \
        WHERE position = 9007199254740991 AND due_at <= ?1 - 2592000000 LIMIT 200)";
