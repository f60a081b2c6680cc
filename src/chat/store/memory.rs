//! [`InMemoryChatStore`]: conversations in the memory of one process, lost when the process ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ChatStore, ChatStoreError, VersionedChat};
use crate::approval::Principal;
use crate::boxed::BoxFuture;
use crate::chat::Chat;
use crate::id::ChatId;
use crate::limits::ChatLimits;

/// A store that keeps conversations in the memory of this process, within [`ChatLimits`].
///
/// If saving a conversation exceeds a limit, others are removed: the oldest ones of the same user,
/// those with open questions last. If the user has no other and the store is full, one of another
/// user is removed: of the user with the most conversations or bytes, depending on the limit, and
/// one without open questions if there is any. Each removal is logged.
///
/// A conversation that has more bytes than one user may have is not saved, so that it removes no
/// other user's. The error names the limit.
///
/// When the client of a removed conversation sends its next request,
/// [`ChatServer`](crate::chat::ChatServer) imports the conversation again from the client's
/// messages. [`HistoryImport`](crate::chat::HistoryImport) says what of them.
pub struct InMemoryChatStore {
    entries: Mutex<Entries>,
    limits: ChatLimits,
}

impl fmt::Debug for InMemoryChatStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryChatStore")
            .field("chats", &self.lock().chats.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

type Key = (Principal, ChatId);

#[derive(Debug, Default)]
struct Entries {
    chats: HashMap<Key, Entry>,
    users: HashMap<Principal, UserChats>,
    /// The users, in the order in which they lose a conversation to another user.
    by_chats: BTreeMap<Rank, Principal>,
    by_bytes: BTreeMap<Rank, Principal>,
    bytes: usize,
    /// The latest revision of all conversations. No revision is used twice, because a conversation
    /// that was removed and created again is another conversation.
    last_revision: u64,
}

#[derive(Debug)]
struct Entry {
    stored: VersionedChat,
    bytes: usize,
    order: EvictionOrder,
}

/// The conversations of one user.
#[derive(Debug, Default)]
struct UserChats {
    ids: BTreeMap<EvictionOrder, ChatId>,
    bytes: usize,
}

/// The place of a user among all users: whether the conversation that is removed first has no open
/// questions, the number of conversations or bytes, and the age of that conversation. The user with
/// the greatest rank loses a conversation first.
type Rank = (bool, usize, Reverse<u64>);

impl UserChats {
    /// Returns the rank by the number of conversations, and the rank by the bytes.
    fn ranks(&self) -> Option<[Rank; 2]> {
        let (first, _) = self.ids.first_key_value()?;
        let rank = |amount| (!first.has_open_questions, amount, Reverse(first.revision));
        Some([rank(self.ids.len()), rank(self.bytes)])
    }
}

/// The order in which the conversations of a user are removed: those without open questions first,
/// and of them the one whose last save is the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionOrder {
    has_open_questions: bool,
    revision: u64,
}

impl InMemoryChatStore {
    /// Creates a store with the default [`ChatLimits`].
    pub fn new() -> Self {
        Self::with_limits(ChatLimits::default())
    }

    /// Creates a store with these limits of the chats and bytes of a user and of all users.
    pub fn with_limits(limits: ChatLimits) -> Self {
        InMemoryChatStore { entries: Mutex::default(), limits }
    }

    /// Creates a store that keeps at most this number of conversations, and else has the default
    /// limits.
    pub fn with_capacity(chats: usize) -> Self {
        Self::with_limits(ChatLimits::default().with_max_store_chats(chats))
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
        let found = self.lock().chats.get(&key).map(|entry| entry.stored.clone());
        Box::pin(ready(Ok(found)))
    }

    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let key = (chat.owner.clone(), chat.id.clone());
        let mut entries = self.lock();
        let current = entries.chats.get(&key).map(|entry| entry.stored.revision);
        if current != revision {
            return Box::pin(ready(Ok(false)));
        }
        let (bytes, limits) = (chat.bytes() + CHAT_BYTES, &self.limits);
        for (limit, setting) in [
            (limits.max_user_bytes(), "with_max_user_bytes"),
            (limits.max_store_bytes(), "with_max_store_bytes"),
        ] {
            if bytes > limit {
                return Box::pin(ready(Err(ChatStoreError::new(format!(
                    "a chat of {bytes} bytes is larger than `ChatLimits::{setting}` allows: {limit}"
                )))));
            }
        }
        entries.remove(&key);
        entries.last_revision += 1;
        let revision = entries.last_revision;
        entries.insert(key, VersionedChat { chat: chat.clone(), revision });
        while let Some((user, setting, limit)) = entries.find_excess(&chat.owner, &self.limits)
            && let Some(id) = entries.oldest_of(&user, revision)
        {
            entries.evict(&(user, id), setting, limit);
        }
        Box::pin(ready(Ok(true)))
    }
}

impl Entries {
    fn insert(&mut self, key: Key, stored: VersionedChat) {
        let bytes = stored.chat.bytes() + CHAT_BYTES;
        let has_open_questions = stored.chat.has_open_questions();
        let order = EvictionOrder { has_open_questions, revision: stored.revision };
        self.change_user(&key.0, |user| {
            user.ids.insert(order, key.1.clone());
            user.bytes += bytes;
        });
        self.bytes += bytes;
        self.chats.insert(key, Entry { stored, bytes, order });
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.chats.remove(key)?;
        self.bytes -= entry.bytes;
        self.change_user(&key.0, |user| {
            user.ids.remove(&entry.order);
            user.bytes -= entry.bytes;
        });
        Some(entry)
    }

    /// Changes the list of a user's conversations, and the place of the user among all users.
    fn change_user(&mut self, user: &Principal, change: impl FnOnce(&mut UserChats)) {
        let chats = self.users.entry(user.clone()).or_default();
        if let Some([by_chats, by_bytes]) = chats.ranks() {
            self.by_chats.remove(&by_chats);
            self.by_bytes.remove(&by_bytes);
        }
        change(chats);
        match chats.ranks() {
            Some([by_chats, by_bytes]) => {
                self.by_chats.insert(by_chats, user.clone());
                self.by_bytes.insert(by_bytes, user.clone());
            }
            None => drop(self.users.remove(user)),
        }
    }

    /// Returns the user of whom a conversation has to be removed, and the setting and the value of
    /// the limit, after a conversation of `saver` was saved.
    fn find_excess(
        &self,
        saver: &Principal,
        limits: &ChatLimits,
    ) -> Option<(Principal, &'static str, usize)> {
        let own = self.users.get(saver)?;
        let has_others = own.ids.len() > 1;
        for (value, limit, setting) in [
            (own.ids.len(), limits.max_user_chats(), "with_max_user_chats"),
            (own.bytes, limits.max_user_bytes(), "with_max_user_bytes"),
        ] {
            if value > limit && has_others {
                return Some((saver.clone(), setting, limit));
            }
        }
        for (value, limit, setting, users) in [
            (self.chats.len(), limits.max_store_chats(), "with_max_store_chats", &self.by_chats),
            (self.bytes, limits.max_store_bytes(), "with_max_store_bytes", &self.by_bytes),
        ] {
            if value <= limit {
                continue;
            }
            let mut others = users.values().rev();
            let user = match has_others {
                true => saver,
                false => others.find(|user| *user != saver)?,
            };
            return Some((user.clone(), setting, limit));
        }
        None
    }

    /// Returns the conversation of this user that is removed first, except the one with this
    /// revision, which was just saved.
    fn oldest_of(&self, user: &Principal, saved: u64) -> Option<ChatId> {
        let mut ids = self.users.get(user)?.ids.iter();
        ids.find(|(order, _)| order.revision != saved).map(|(_, id)| id.clone())
    }

    fn evict(&mut self, key: &Key, setting: &str, limit: usize) {
        let Some(entry) = self.remove(key) else { return };
        let has_open_questions = entry.order.has_open_questions;
        tracing::warn!(
            user = %key.0,
            chat = ?key.1,
            bytes = entry.bytes,
            has_open_questions,
            setting = format_args!("ChatLimits::{setting}"),
            limit,
            "a chat was evicted"
        );
    }
}

/// The bytes that a conversation counts besides its messages and lists.
const CHAT_BYTES: usize = 1024;
