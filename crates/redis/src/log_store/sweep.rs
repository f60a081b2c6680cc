//! Deletions of users, and the sweep.
//!
//! The list of the chats that are to be swept is on one node. A chat is in it before something of the chat
//! has to go, so that no crash leaves anything. It is removed when it was swept twice, a minute or more apart, and
//! had nothing to remove: an append may come after the first sweep.

use std::time::Duration;

use tokio::time::Instant;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{LeftToServer, LogKey, MAX_SWEPT};

use super::{MAX_MILLIS, chat_of_name, millis};
use crate::error::RedisStoreError;
use crate::keys::chat_name;
use crate::{RedisStore, scripts};

impl RedisStore {
    /// Deletes all logs of a user, one by one, and lets the live runs request no more approvals.
    ///
    /// A chat that was updated since it was listed is listed again: the deletion may be late, and the user may
    /// have begun again.
    pub(crate) async fn delete_logs(&self, owner: &Principal) -> Result<usize, RedisStoreError> {
        let user = self.inner.keys.user(owner);
        let mut deleted = 0;
        let mut is_marked = false;
        loop {
            let list = scripts::LOG_CHATS.key(user.updated());
            let chats: Vec<(String, String)> = self.run(&list).await?;
            if chats.is_empty() {
                break;
            }
            if !is_marked {
                self.mark_deleted(owner, false).await?;
                is_marked = true;
            }
            for (chat, updated_at) in chats {
                let key = LogKey { owner: owner.clone(), chat: chat.into() };
                deleted += usize::from(self.delete_one(&key, "", &updated_at).await?);
            }
            self.forget_list(owner);
        }
        // An approval request that has found a chat before looks for it again under the new mark.
        self.mark_deleted(owner, true).await?;
        Ok(deleted)
    }

    /// Deletes a log if it has this epoch and this number of control entries, or any log of a chat that was last
    /// updated at this time. Returns whether there was one.
    pub(super) async fn delete_one(
        &self,
        key: &LogKey,
        epoch: &str,
        number: &str,
    ) -> Result<bool, RedisStoreError> {
        let log = self.log_of(key);
        for is_listed in [0, 1] {
            let mut delete = log.prepare(self.publishing(&scripts::LOG_DELETE));
            delete.arg(&log.channel).arg(epoch).arg(number).arg(is_listed);
            let deleted: u8 = self.run(&delete).await?;
            if deleted < 2 {
                self.inner.hints.forget(&log.channel);
                if deleted == 1 {
                    // The next sweeps remove the name of the chat. If this fails, a later one does.
                    let _ = self.sweep_later(key, Duration::ZERO).await;
                }
                return Ok(deleted == 1);
            }
            self.deliver_later(&chat_name(&key.owner, key.chat.as_str())).await?;
        }
        Err(RedisStoreError::Unreadable("reply"))
    }

    /// Marks a user who has chats. A user without chats here may have them in another store, and then
    /// this store does not know which runs have begun since.
    async fn mark_deleted(&self, user: &Principal, again: bool) -> Result<(), RedisStoreError> {
        let mut invocation =
            scripts::USER_MARK.key(self.inner.keys.of_requester(user).deleted(user));
        self.run(invocation.arg(u8::from(again))).await
    }

    /// Lets a chat be swept after this time.
    pub(super) async fn sweep_later(
        &self,
        key: &LogKey,
        time: Duration,
    ) -> Result<(), RedisStoreError> {
        let keys = &self.inner.keys;
        let mut invocation = scripts::SWEEP_ADD.key(keys.shared("sweep"));
        invocation.arg(chat_name(&key.owner, key.chat.as_str())).arg(millis(time));
        self.run(&invocation).await
    }

    /// Sweeps the chats whose time has come. Returns what is left to the server.
    pub(super) async fn sweep_logs(&self) -> Result<LeftToServer, RedisStoreError> {
        let list = self.inner.keys.shared("sweep");
        let mut left = LeftToServer::default();
        let mut failed = self.forget_deletions().await.err();
        let until = Instant::now() + MAX_TIME;
        loop {
            let mut next = scripts::DUE_NEXT.key(&list);
            next.arg(CHATS_PER_STEP).arg(millis(PAUSE)).arg(MAX_MILLIS).arg(0);
            let next: Result<(String, Vec<(String, bool)>), _> = self.run(&next).await;
            // What is left to the server is not named again for a while.
            let (later, chats) = next.unwrap_or_else(|error| {
                failed = Some(error);
                Default::default()
            });
            for (swept, was_empty) in &chats {
                // A shard of a cluster may be away.
                let done = self.sweep_log(&list, swept, *was_empty, &later, &mut left).await;
                if let Err(error) = done {
                    failed = Some(error);
                }
            }
            let has_enough =
                left.lost_runs.len() >= MAX_SWEPT || left.old_snapshots.len() >= MAX_SWEPT;
            if chats.len() < CHATS_PER_STEP || has_enough || Instant::now() >= until {
                return match failed {
                    Some(error) if left == LeftToServer::default() => Err(error),
                    _ => Ok(left),
                };
            }
        }
    }

    async fn sweep_log(
        &self,
        list: &str,
        swept: &str,
        was_empty: bool,
        later: &str,
        left: &mut LeftToServer,
    ) -> Result<(), RedisStoreError> {
        let key = chat_of_name(swept)?;
        let trim = self.log_of(&key).prepare(self.publishing(&scripts::LOG_TRIM));
        let (due, is_gone, lost, has_old_snapshot): (String, bool, Option<String>, bool) =
            self.run(&trim).await?;
        if is_gone {
            self.deliver_later(swept).await?;
        }
        let mut done = scripts::DUE_DONE.key(list);
        self.run::<()>(done.arg(swept).arg(later).arg(u8::from(was_empty)).arg(due)).await?;
        left.old_snapshots.extend(has_old_snapshot.then(|| key.clone()));
        left.lost_runs.extend(lost.map(|run| (key, run.into())));
        Ok(())
    }
}

const CHATS_PER_STEP: usize = 100;

/// Until then, other servers sweep other chats.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// The next sweep goes on. Chats whose shard is away come again and again.
const MAX_TIME: Duration = Duration::from_secs(30);
