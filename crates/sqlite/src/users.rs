//! [`SqliteStore::delete_user`]: deletes everything of one user.

use ui_message_stream::approval::Principal;

use crate::error::SqliteError;
use crate::file::Durability;
use crate::{SqliteStore, owner_key};

/// What [`SqliteStore::delete_user`] has deleted.
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

impl SqliteStore {
    /// Deletes everything of a user in one step: the chats, the logs of their runs, and the approvals
    /// that were requested from the user. After a crash, either all of it is there or nothing.
    ///
    /// Sign the user out first: a request that comes later begins new chats. A live run ends when it
    /// writes next, and stores nothing. A tool that is running is not stopped, and its outcome is not
    /// stored. Decisions of the user about approvals of others stay in the records of those others.
    ///
    /// The bytes stay in free parts of the file until SQLite writes others there. Backups keep them.
    ///
    /// # Errors
    /// [`SqliteError`] if the file cannot be written. It is then not known whether the user was
    /// deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, everything is deleted or nothing.
    pub async fn delete_user(&self, user: &Principal) -> Result<DeletedUser, SqliteError> {
        let owner = owner_key(user);
        self.write_logs(Durability::Synced, move |transaction, _, logs| {
            // Else the journal would hold entries of the user for a while.
            logs.move_all(transaction)?;
            logs.forget_runs();
            let delete = |statement| transaction.execute(statement, [&owner]);
            Ok(DeletedUser {
                chats: delete("DELETE FROM chats WHERE owner = ?1")?,
                runs: delete("DELETE FROM runs WHERE owner = ?1")?,
                approvals: delete("DELETE FROM approvals WHERE requester = ?1")?,
            })
        })
        .await
    }
}
