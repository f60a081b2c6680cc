//! Deletions of users, and the sweep.
//!
//! The list of the chats that are to be swept is on one node. A chat is in it before something of the chat
//! has to go, so that no crash leaves anything.

use std::time::Duration;

use ui_message_stream::approval::Principal;
use ui_message_stream::chat::chat_log::LogKey;

use super::LogKeys;
use crate::chats::millis;
use crate::error::RedisStoreError;
use crate::{RedisStore, scripts};

impl RedisStore {
    /// Deletes all logs of a user, one by one.
    pub(super) async fn delete_logs(&self, owner: &Principal) -> Result<usize, RedisStoreError> {
        let user = self.inner.keys.user(owner);
        let mut deleted = 0;
        loop {
            let [.., updated] = user.log_of_chat("");
            let chats: Vec<String> = self.run(&scripts::LOG_CHATS.key(updated)).await?;
            if chats.is_empty() {
                return Ok(deleted);
            }
            for chat in chats {
                let log = LogKeys::new(&user, &chat);
                let mut delete = log.prepare(&scripts::LOG_DELETE);
                let was_there: bool = self.run(delete.arg(&log.channel).arg("")).await?;
                self.inner.hints.forget(&log.channel);
                deleted += usize::from(was_there);
            }
        }
    }

    /// Lets a chat be swept after this time.
    pub(super) async fn sweep_later(
        &self,
        key: &LogKey,
        time: Duration,
    ) -> Result<(), RedisStoreError> {
        let keys = &self.inner.keys;
        let mut invocation = scripts::SWEEP_ADD.key(keys.ledger("sweep"));
        invocation.arg(keys.swept(&key.owner, &key.chat)).arg(millis(time));
        self.run(&invocation).await
    }

    pub(super) async fn sweep_logs(&self) -> Result<(), RedisStoreError> {
        let keys = &self.inner.keys;
        let list = keys.ledger("sweep");
        loop {
            let mut next = scripts::SWEEP_NEXT.key(&list);
            let (later, chats): (String, Vec<String>) = self.run(next.arg(CHATS_PER_STEP)).await?;
            for swept in &chats {
                let (user, chat) = keys.of_swept(swept);
                let trim = LogKeys::new(&user, chat).prepare(&scripts::LOG_TRIM);
                let due: Option<String> = self.run(&trim).await?;
                let mut done = scripts::SWEEP_DONE.key(&list);
                done.arg(swept).arg(&later).arg(due.unwrap_or_default());
                self.run::<()>(&done).await?;
            }
            if chats.len() < CHATS_PER_STEP {
                return Ok(());
            }
        }
    }
}

const CHATS_PER_STEP: usize = 100;
