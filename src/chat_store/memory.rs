//! [`MemoryChats`]: conversations of one process, gone with it.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{BoxFuture, ChatStore, ChatStoreError, KeptChat};
use crate::history::Chat;
use crate::id::ChatId;

/// Conversations in the memory of this process: the latest ones, up to a number.
///
/// One that is forgotten is imported again when its client comes back, as text and files.
#[derive(Debug)]
pub struct MemoryChats {
    chats: Mutex<Chats>,
    most: usize,
}

type Key = (Option<Box<str>>, ChatId);

#[derive(Debug, Default)]
struct Chats {
    kept: HashMap<Key, KeptChat>,
    /// In the order in which they were saved, by their revisions.
    order: BTreeMap<u64, Key>,
    /// The latest revision. None is given twice: a conversation that was forgotten and begun anew is
    /// another one.
    saved: u64,
}

impl MemoryChats {
    /// Keeps the 10 000 latest conversations.
    pub fn new() -> Self {
        Self::of_at_most(10_000)
    }

    /// Keeps so many conversations, the latest ones.
    pub fn of_at_most(chats: usize) -> Self {
        MemoryChats { chats: Mutex::default(), most: chats }
    }

    fn chats(&self) -> MutexGuard<'_, Chats> {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryChats {
    fn default() -> Self {
        Self::new()
    }
}

impl ChatStore for MemoryChats {
    fn load<'a>(
        &'a self,
        tenant: Option<&'a str>,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<KeptChat>, ChatStoreError>> {
        let key = (tenant.map(Into::into), id.clone());
        let found = self.chats().kept.get(&key).cloned();
        Box::pin(ready(Ok(found)))
    }

    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let key = (chat.owner.tenant().map(Into::into), chat.id.clone());
        let mut chats = self.chats();
        let current = chats.kept.get(&key).map(|kept| kept.revision);
        if current != revision {
            return Box::pin(ready(Ok(false)));
        }
        if let Some(replaced) = current {
            chats.order.remove(&replaced);
        }
        chats.saved += 1;
        let revision = chats.saved;
        chats.order.insert(revision, key.clone());
        chats.kept.insert(key, KeptChat { chat: chat.clone(), revision });
        if chats.kept.len() > self.most
            && let Some((_, oldest)) = chats.order.pop_first()
        {
            chats.kept.remove(&oldest);
        }
        Box::pin(ready(Ok(true)))
    }
}
