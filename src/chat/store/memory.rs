//! [`InMemoryChatStore`]: conversations in the memory of one process, lost when the process ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
/// those with open questions last. If the user has no other, one of the user whose conversations
/// have the most bytes is removed. Each removal is logged.
///
/// When the client of a removed conversation sends its next request,
/// [`ChatServer`](crate::chat::ChatServer) imports the conversation again from the client's
/// messages: only their texts, files and the user's data parts.
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
    /// The users, by the bytes of their conversations.
    users_by_bytes: BTreeSet<(usize, Principal)>,
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
        let bytes = stored.chat.messages.bytes() + CHAT_BYTES;
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
        self.users_by_bytes.remove(&(chats.bytes, user.clone()));
        change(chats);
        if chats.ids.is_empty() {
            self.users.remove(user);
        } else {
            self.users_by_bytes.insert((chats.bytes, user.clone()));
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
        let exceeded = |checks: [(usize, usize, &'static str); 2]| {
            let mut exceeded = checks.into_iter().filter(|(value, limit, _)| value > limit);
            exceeded.next().map(|(_, limit, setting)| (setting, limit))
        };
        let by_user = exceeded([
            (own.ids.len(), limits.max_user_chats(), "with_max_user_chats"),
            (own.bytes, limits.max_user_bytes(), "with_max_user_bytes"),
        ]);
        if let Some((setting, limit)) = by_user.filter(|_| own.ids.len() > 1) {
            return Some((saver.clone(), setting, limit));
        }
        let (setting, limit) = exceeded([
            (self.chats.len(), limits.max_store_chats(), "with_max_store_chats"),
            (self.bytes, limits.max_store_bytes(), "with_max_store_bytes"),
        ])?;
        if own.ids.len() > 1 {
            return Some((saver.clone(), setting, limit));
        }
        let mut users = self.users_by_bytes.iter().rev().map(|(_, user)| user);
        let user = users.find(|user| *user != saver)?;
        Some((user.clone(), setting, limit))
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

/// The bytes that a conversation counts besides its messages.
const CHAT_BYTES: usize = 1024;
