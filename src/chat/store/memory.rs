//! [`InMemoryChatStore`]: conversations in the memory of one process, lost when the process ends.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ChatStore, ChatStoreError, VersionedChat};
use crate::approval::Principal;
use crate::boxed::BoxFuture;
use crate::chat::Chat;
use crate::id::ChatId;

/// A store that keeps the most recently saved conversations in the memory of this process, up to a
/// maximum number.
///
/// When the store is full, saving a new conversation removes the one whose last save is the oldest.
/// When the client of a removed conversation sends its next request,
/// [`ChatServer`](crate::chat::ChatServer) imports the conversation again from the client's
/// messages: only their texts, files and the user's data parts.
pub struct InMemoryChatStore {
    entries: Mutex<Entries>,
    max_chats: usize,
}

impl fmt::Debug for InMemoryChatStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryChatStore")
            .field("chats", &self.lock().chats.len())
            .field("max_chats", &self.max_chats)
            .finish_non_exhaustive()
    }
}

type Key = (Principal, ChatId);

#[derive(Debug, Default)]
struct Entries {
    chats: HashMap<Key, VersionedChat>,
    /// The keys in the order of their last save. The key of the map is the revision.
    save_order: BTreeMap<u64, Key>,
    /// The latest revision of all conversations. No revision is used twice, because a conversation
    /// that was removed and created again is another conversation.
    last_revision: u64,
}

impl InMemoryChatStore {
    /// Creates a store that keeps the 10 000 most recently saved conversations.
    pub fn new() -> Self {
        Self::with_capacity(10_000)
    }

    /// Creates a store that keeps this number of most recently saved conversations.
    pub fn with_capacity(chats: usize) -> Self {
        InMemoryChatStore { entries: Mutex::default(), max_chats: chats }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for InMemoryChatStore {
    fn default() -> Self {
        Self::new()
    }
}

impl ChatStore for InMemoryChatStore {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        let key = (owner.clone(), id.clone());
        let found = self.lock().chats.get(&key).cloned();
        Box::pin(ready(Ok(found)))
    }

    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let key = (chat.owner.clone(), chat.id.clone());
        let mut entries = self.lock();
        let current = entries.chats.get(&key).map(|stored| stored.revision);
        if current != revision {
            return Box::pin(ready(Ok(false)));
        }
        if let Some(replaced) = current {
            entries.save_order.remove(&replaced);
        }
        entries.last_revision += 1;
        let revision = entries.last_revision;
        entries.save_order.insert(revision, key.clone());
        entries.chats.insert(key, VersionedChat { chat: chat.clone(), revision });
        if entries.chats.len() > self.max_chats
            && let Some((_, oldest)) = entries.save_order.pop_first()
        {
            entries.chats.remove(&oldest);
        }
        Box::pin(ready(Ok(true)))
    }
}
