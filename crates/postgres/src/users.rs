//! [`PostgresStore::delete_user`]: deletes everything of one user.

use ui_message_stream::approval::Principal;

use crate::error::PostgresError;
use crate::{PostgresStore, number, owner_key};

/// What [`PostgresStore::delete_user`] has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeletedUser {
    /// The number of chats.
    pub chats: usize,
    /// The number of runs, live ones included.
    pub runs: usize,
    /// The number of approvals, open and decided ones.
    pub approvals: usize,
}

impl PostgresStore {
    /// Deletes everything of a user in one step: the chats, the logs of their runs, and the approvals
    /// that were requested from the user. After a crash, either all of it is there or nothing.
    ///
    /// Sign the user out first: a request that comes later begins new chats. A live run ends when it
    /// writes next, and stores nothing. A tool that is running is not stopped, and its outcome is not
    /// stored. Decisions of the user about approvals of others stay in the records of those others,
    /// and so do the ids of used stateless approvals until they expire.
    ///
    /// Postgres keeps the bytes in its files until `VACUUM` and later writes replace them. Its
    /// write-ahead log, replicas and backups keep them, too.
    ///
    /// # Errors
    /// [`PostgresError`] if Postgres fails. It is then not known whether the user was deleted.
    pub async fn delete_user(&self, user: &Principal) -> Result<DeletedUser, PostgresError> {
        let rows = self.query(DELETE, &[&owner_key(user)]).await?;
        let row = rows.first().ok_or(PostgresError::Unreadable("number"))?;
        let count = |at| number(row, at).map(|count| count.try_into().unwrap_or(usize::MAX));
        Ok(DeletedUser { chats: count(0)?, runs: count(1)?, approvals: count(2)? })
    }
}

const DELETE: &str = "WITH chats AS (DELETE FROM chats WHERE owner = $1 RETURNING key), \
    runs AS (DELETE FROM runs WHERE owner = $1 RETURNING *), \
    told AS (SELECT publish(owner, chat, run, length, fence, TRUE) FROM runs), \
    approvals AS (DELETE FROM approvals WHERE requester = $1 RETURNING id) \
    SELECT (SELECT count(*) FROM chats), (SELECT count(*) FROM told), \
        (SELECT count(*) FROM approvals)";
