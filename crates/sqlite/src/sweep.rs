//! [`SqliteStore::sweep`]: deletes what is kept no longer.

use rusqlite::Transaction;
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::LogStore;

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
    /// [`SqliteError`] if something cannot be deleted: the first failure, unless something is left to a chat server.
    /// What can be deleted was deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, the rest is deleted by the next call.
    pub async fn sweep(&self) -> Result<(), SqliteError> {
        #[cfg(feature = "chat")]
        {
            LogStore::sweep(self).await.map(drop).map_err(SqliteError::from_chat)
        }
        #[cfg(not(feature = "chat"))]
        {
            self.sweep_rest().await
        }
    }

    /// Deletes what is not of a log.
    pub(crate) async fn sweep_rest(&self) -> Result<(), SqliteError> {
        loop {
            let deleted = self.write(Durability::Written, |transaction: &Transaction<'_>, now| {
                let users = transaction.prepare_cached(SWEEP_DELETED_USERS)?.execute([now])?;
                Ok(users + ledger::sweep(transaction, now)?)
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
