//! [`Hints`]: tells the turns of this process that a conversation has changed.
//!
//! A hint may be missed. Each turn also looks at the stores from time to time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::approval::Principal;
use crate::id::ChatId;

type Key = (Principal, ChatId);

/// The conversations in which turns of this process are active.
#[derive(Debug, Clone, Default)]
pub(super) struct Hints(Arc<Mutex<HashMap<Key, watch::Sender<()>>>>);

/// The hints about one conversation.
#[derive(Debug)]
pub(super) struct ChatHints {
    hints: Hints,
    key: Key,
    /// `None` only while this value is dropped.
    changed: Option<watch::Receiver<()>>,
}

impl Hints {
    pub(super) fn subscribe(&self, owner: &Principal, chat: &ChatId) -> ChatHints {
        let key = (owner.clone(), chat.clone());
        let changed = Some(self.lock().entry(key.clone()).or_default().subscribe());
        ChatHints { hints: self.clone(), key, changed }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChatHints {
    /// Waits until another turn has changed the conversation.
    pub(super) async fn changed(&mut self) {
        if let Some(changed) = &mut self.changed
            && changed.changed().await.is_ok()
        {
            return;
        }
        // The sender lives as long as its receivers.
        std::future::pending().await
    }

    /// Tells the other turns that this one has changed the conversation.
    pub(super) fn notify_others(&mut self) {
        let Some(changed) = &mut self.changed else { return };
        let is_unchanged = !changed.has_changed().unwrap_or(true);
        if let Some(sender) = self.hints.lock().get(&self.key) {
            sender.send_replace(());
        }
        if is_unchanged {
            changed.mark_unchanged();
        }
    }
}

impl Drop for ChatHints {
    fn drop(&mut self) {
        let mut chats = self.hints.lock();
        // Of two that are dropped at once, the second one finds no receiver.
        self.changed = None;
        if chats.get(&self.key).is_some_and(|sender| sender.receiver_count() == 0) {
            chats.remove(&self.key);
        }
    }
}
