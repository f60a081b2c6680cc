//! [`SqliteStore::delete_user`]: deletes everything of one user.

use rusqlite::{Transaction, params};
use ui_message_stream::approval::Principal;
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::LogStore;

use crate::error::SqliteError;
use crate::file::Durability;
use crate::{SqliteStore, owner_key};

/// What [`SqliteStore::delete_user`] has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeletedUser {
    /// The number of chats.
    #[cfg(feature = "chat")]
    pub chats: usize,
    /// The number of approvals, open and decided ones.
    pub approvals: usize,
}

impl SqliteStore {
    /// Deletes everything of a user: the approvals that were requested from the user, the chats with
    /// their logs, and then the approvals again, because a live run can request more. It does this in
    /// short transactions, so that other writers get their turn. If it fails or is dropped, call it
    /// again: it deletes the rest.
    ///
    /// Sign the user out first: a request that comes later begins new chats. A live run ends when it
    /// writes next, stores nothing and requests no approvals. A tool that is running is not stopped, and
    /// its outcome is not stored. Decisions of the user about approvals of others stay in the records of
    /// those others. The id of the user is kept for a day, so that those runs are known.
    ///
    /// The bytes stay in free parts of the file until SQLite writes others there. Backups keep them.
    ///
    /// Without the feature `chat`, the chats of the user stay.
    ///
    /// # Errors
    /// [`SqliteError`] if the file cannot be written. Part may have been deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, part may have been deleted.
    pub async fn delete_user(&self, user: &Principal) -> Result<DeletedUser, SqliteError> {
        let owner = owner_key(user);
        let marked = owner.clone();
        let mark = move |transaction: &Transaction<'_>, now: i64| {
            Ok(transaction.execute(MARK, params![marked, now])?)
        };
        self.write(Durability::Written, mark).await?;
        let mut approvals = self.delete_approvals(&owner).await?;
        #[cfg(feature = "chat")]
        let chats = LogStore::delete_user(self, user).await.map_err(SqliteError::from_chat)?;
        #[cfg(feature = "chat")]
        self.purge_removed().await?;
        approvals += self.delete_approvals(&owner).await?;
        // What was written before is then on the disk, too.
        self.ping().await?;
        Ok(DeletedUser {
            #[cfg(feature = "chat")]
            chats,
            approvals,
        })
    }

    async fn delete_approvals(&self, owner: &str) -> Result<usize, SqliteError> {
        let mut deleted = 0;
        loop {
            let owner = owner.to_owned();
            let delete = move |transaction: &Transaction<'_>, _: i64| {
                Ok(transaction.prepare_cached(APPROVALS)?.execute([owner])?)
            };
            match self.write(Durability::Written, delete).await? {
                0 => return Ok(deleted),
                rows => deleted += rows,
            }
        }
    }
}

/// A user without chats here may have them in another store, and then this store does not know which
/// runs have begun since.
const MARK: &str = "INSERT INTO deleted_users SELECT ?1, ?2 \
    WHERE EXISTS (SELECT 1 FROM rows WHERE partition = ?1) \
    ON CONFLICT (owner) DO UPDATE SET deleted_at = excluded.deleted_at";
const APPROVALS: &str = "DELETE FROM approvals WHERE id IN \
    (SELECT id FROM approvals WHERE requester = ?1 LIMIT 200)";
