//! [`PostgresStore::delete_user`]: deletes everything of one user.

use tokio_postgres::types::Type;
use ui_message_stream::approval::Principal;
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::LogStore;

use crate::error::PostgresError;
use crate::{PostgresStore, owner_key};

/// What [`PostgresStore::delete_user`] has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeletedUser {
    /// The number of chats.
    #[cfg(feature = "chat")]
    pub chats: usize,
    /// The number of approvals, open and decided ones.
    pub approvals: usize,
}

impl PostgresStore {
    /// Deletes everything of a user: the approvals that were requested from the user, the chats with
    /// their logs, and then the approvals again, because a live run can request more. It does this in
    /// short transactions. If it fails or is dropped, call it again: it deletes the rest.
    ///
    /// Sign the user out first: a request that comes later begins new chats. A live run ends when it
    /// writes next, stores nothing and requests no approvals. A tool that is running is not stopped, and
    /// its outcome is not stored. Decisions of the user about approvals of others stay in the records of
    /// those others, and so do the ids of used stateless approvals until they expire. The id of the user
    /// is kept for a day, so that those runs are known.
    ///
    /// Postgres keeps the bytes in its files until `VACUUM` and later writes replace them. Its
    /// write-ahead log, replicas and backups keep them, too.
    ///
    /// Without the feature `chat`, the chats of the user stay.
    ///
    /// # Errors
    /// [`PostgresError`] if Postgres fails. Part may have been deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, part may have been deleted.
    pub async fn delete_user(&self, user: &Principal) -> Result<DeletedUser, PostgresError> {
        let owner = owner_key(user);
        self.query(MARK, &[(&owner, Type::TEXT)]).await?;
        let mut approvals = self.delete_approvals(&owner).await?;
        #[cfg(feature = "chat")]
        let chats = LogStore::delete_user(self, user).await.map_err(PostgresError::from_chat)?;
        // Insertions of approvals that have found a chat have ended after this.
        self.query(MARK, &[(&owner, Type::TEXT)]).await?;
        approvals += self.delete_approvals(&owner).await?;
        Ok(DeletedUser {
            #[cfg(feature = "chat")]
            chats,
            approvals,
        })
    }

    /// Deletes the approvals of a user, until there are none. Returns their number.
    async fn delete_approvals(&self, owner: &str) -> Result<usize, PostgresError> {
        let mut deleted = 0;
        loop {
            match self.query(APPROVALS, &[(&owner, Type::TEXT)]).await?.len() {
                0 => return Ok(deleted),
                rows => deleted += rows,
            }
        }
    }
}

/// A user without chats here may have them in another store, and then this store does not know which
/// runs have begun since.
const MARK: &str = "SELECT SCHEMA.mark_deleted($1)";
/// It waits for the rows that another transaction deletes, and takes others in their place: it deletes
/// nothing only if nothing is left.
const APPROVALS: &str = "DELETE FROM SCHEMA.approvals WHERE id IN \
    (SELECT id FROM SCHEMA.approvals WHERE requester = $1 LIMIT 200 FOR UPDATE) RETURNING id";
