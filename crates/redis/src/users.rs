//! [`RedisStore::delete_user`]: deletes everything of one user.

use ui_message_stream::approval::Principal;
#[cfg(feature = "chat")]
use ui_message_stream_chat::store::LogStore;

use crate::error::RedisStoreError;
use crate::{RedisStore, scripts};

/// What [`RedisStore::delete_user`] has deleted.
///
/// The numbers are too small if the connection was lost meanwhile, or slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeletedUser {
    /// The number of chats.
    #[cfg(feature = "chat")]
    pub chats: usize,
    /// The number of approvals, open and decided ones.
    pub approvals: usize,
}

impl RedisStore {
    /// Deletes everything of a user: the approvals that were requested from the user, the chats with their
    /// live runs, and then the approvals again, because a live run can request more. It does this in
    /// steps, so that Redis serves others in between. If it fails or is dropped, call it again: it
    /// deletes the rest.
    ///
    /// Sign the user out first: a request that comes later begins new chats. A live run ends when
    /// it writes next, stores nothing and requests no approvals. A tool that is running is not
    /// stopped, and its outcome is not stored. Decisions of the user about approvals of others stay
    /// in the records of those others, and so do the ids of used stateless approvals until they
    /// expire. A digest of the id of the user is kept for a day, so that those runs are known. If the deletion is cut
    /// off, the [lists](Self#keys) of the chats of all users may keep the ids of the user and of a chat until they are
    /// swept, and in Redis Cluster a list of an audience or of all users may keep the id of an approval for a
    /// while, and nothing else of it.
    ///
    /// Snapshots, replicas and backups keep the data as long as they exist, and the file of
    /// `appendonly` until Redis rewrites it.
    ///
    /// ```no_run
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_redis::RedisStore;
    ///
    /// # async fn forget(
    /// #     store: RedisStore,
    /// # ) -> Result<(), ui_message_stream_redis::RedisStoreError> {
    /// let deleted = store.delete_user(&Principal::new("ada")).await?;
    /// println!("{} chats deleted", deleted.chats);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Without the feature `chat`, the chats of the user stay.
    ///
    /// # Errors
    /// [`RedisStoreError`] if Redis fails. Part may have been deleted.
    pub async fn delete_user(&self, user: &Principal) -> Result<DeletedUser, RedisStoreError> {
        let mut approvals = self.delete_approvals(user).await?;
        #[cfg(feature = "chat")]
        let chats = self.delete_chats(user).await?;
        approvals += self.delete_approvals(user).await?;
        Ok(DeletedUser {
            #[cfg(feature = "chat")]
            chats,
            approvals,
        })
    }

    /// Deletes the chats of a user, and lets their runs request no more approvals.
    #[cfg(feature = "chat")]
    async fn delete_chats(&self, user: &Principal) -> Result<usize, RedisStoreError> {
        let connection = &self.inner.connection;
        let keys = self.inner.keys.user(user);
        // A user without chats here may have them in another store, and then this store does not know which runs have
        // begun since.
        let mut exists = scripts::EXISTS.key(keys.row_of_user());
        if !connection.run(exists.key(keys.list("chats"))).await? {
            return Ok(0);
        }
        self.mark_deleted(user).await?;
        let chats = LogStore::delete_user(self, user).await.map_err(RedisStoreError::from_chat)?;
        // An approval request that has found a chat before looks for it again under the new mark.
        self.mark_deleted(user).await?;
        Ok(chats)
    }

    #[cfg(feature = "chat")]
    async fn mark_deleted(&self, user: &Principal) -> Result<(), RedisStoreError> {
        let mark = self.inner.keys.of_requester(user).deleted(user);
        self.inner.connection.run(&scripts::LEDGER_MARK.key(mark)).await
    }

    /// Deletes the approvals that were requested from a user. Returns their number.
    async fn delete_approvals(&self, user: &Principal) -> Result<usize, RedisStoreError> {
        let connection = &self.inner.connection;
        let keys = self.inner.keys.of_requester(user);
        let mut deleted = 0;
        loop {
            let mut list = scripts::LEDGER_IDS.key(keys.records_of(user));
            let ids: Vec<String> = connection.run(list.arg(100)).await?;
            if ids.is_empty() {
                return Ok(deleted);
            }
            let records: Vec<String> = ids.iter().map(|id| keys.record(id)).collect();
            let mut lists = scripts::LEDGER_LISTS.prepare_invoke();
            lists.key(&records);
            let lists: Vec<String> = connection.run(&lists).await?;
            let mut invocation = scripts::LEDGER_DELETE.key(keys.records_of(user));
            invocation.key(&records).key(lists).arg(ids.len()).arg(&ids);
            let (count, places): (usize, _) = connection.run(&invocation).await?;
            deleted += count;
            self.leave(places).await;
        }
    }
}
