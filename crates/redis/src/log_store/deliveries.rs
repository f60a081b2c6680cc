//! What a sink has to get of the logs.
//!
//! What is undelivered is stored with the chats of its user. The list of the chats that may have something
//! undelivered is on one node. A chat is in it before it has, so that no crash hides anything. It is removed when
//! it was looked at twice, a minute or more apart, and had nothing: an append may come after the first look.

use std::time::Duration;

use ui_message_stream_chat::store::{Epoch, KEPT_UNDELIVERED, Undelivered};

use super::sweep::PAUSE;
use super::{MAX_MILLIS, chat_of_name, millis};
use crate::error::RedisStoreError;
use crate::{RedisStore, scripts};

impl RedisStore {
    /// Lets a chat be looked at.
    pub(super) async fn deliver_later(&self, chat: &str) -> Result<(), RedisStoreError> {
        let mut add = scripts::DELIVERY_ADD.key(self.inner.keys.shared("undelivered"));
        self.run(add.arg(chat)).await
    }

    pub(super) async fn take_undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> Result<Vec<Undelivered>, RedisStoreError> {
        let list = self.inner.keys.shared("undelivered");
        let mut undelivered = Vec::new();
        let mut failed = None;
        loop {
            let left = (limit - undelivered.len()).min(CHATS_PER_STEP);
            let mut next = scripts::DUE_NEXT.key(&list);
            next.arg(left).arg(millis(retry_after)).arg(millis(MAX_PAUSE)).arg(0);
            let (later, chats): (String, Vec<(String, bool)>) = self.run(&next).await?;
            for (chat, was_empty) in &chats {
                match self.load_delivery(&list, chat, *was_empty, &later).await {
                    Ok(found) => undelivered.extend(found),
                    // A shard of a cluster may be away.
                    Err(error) => failed = Some(error),
                }
            }
            // Without a pause the same chats would be taken again.
            if chats.len() < left || undelivered.len() >= limit || retry_after.is_zero() {
                return match failed {
                    Some(error) if undelivered.is_empty() => Err(error),
                    _ => Ok(undelivered),
                };
            }
        }
    }

    /// Forgets the deletions that no server has asked for in a long time. One for which this fails is kept for
    /// as long again.
    pub(super) async fn forget_deletions(&self) -> Result<(), RedisStoreError> {
        let list = self.inner.keys.shared("undelivered");
        loop {
            let mut next = scripts::DUE_NEXT.key(&list);
            next.arg(CHATS_PER_STEP)
                .arg(millis(PAUSE))
                .arg(MAX_MILLIS)
                .arg(millis(KEPT_UNDELIVERED));
            let (later, chats): (String, Vec<(String, bool)>) = self.run(&next).await?;
            for (chat, _) in &chats {
                // Without anything, the chat is removed from the list.
                while let Some(found) = self.load_delivery(&list, chat, true, &later).await?
                    && found.position == Undelivered::DELETED
                {
                    self.note_delivered(&found).await?;
                }
            }
            if chats.len() < CHATS_PER_STEP {
                return Ok(());
            }
        }
    }

    /// Loads what is undelivered of a chat in the list.
    async fn load_delivery(
        &self,
        list: &str,
        chat: &str,
        was_empty: bool,
        later: &str,
    ) -> Result<Option<Undelivered>, RedisStoreError> {
        let key = chat_of_name(chat)?;
        let load = self.log_of(&key).prepare(&scripts::DELIVERY_LOAD);
        let found: Option<(u64, u64)> = self.run(&load).await?;
        let Some((epoch, position)) = found else {
            let mut done = scripts::DUE_DONE.key(list);
            done.arg(chat).arg(later).arg(u8::from(was_empty)).arg("");
            self.run::<()>(&done).await?;
            return Ok(None);
        };
        Ok(Some(Undelivered { key, epoch: Epoch(epoch), position }))
    }

    pub(super) async fn note_delivered(
        &self,
        delivered: &Undelivered,
    ) -> Result<Option<Undelivered>, RedisStoreError> {
        let Undelivered { key, epoch, position } = delivered;
        let mut note = self.log_of(key).prepare(&scripts::DELIVERY_NOTE);
        note.arg(epoch.0).arg(position);
        let next: Option<(u64, u64)> = self.run(&note).await?;
        Ok(next.map(|(epoch, position)| Undelivered {
            key: key.clone(),
            epoch: Epoch(epoch),
            position,
        }))
    }
}

const CHATS_PER_STEP: usize = 100;

/// No `retry_after` is longer.
const MAX_PAUSE: Duration = Duration::from_secs(60 * 60);
