//! [`InMemoryChatStore`]: conversations in the memory of one process, lost when the process ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::chat_page::{ChatPage, ChatSummary, ListChats};
use super::chat_store::ChatStore;
use super::error::ChatStoreError;
use super::save_chat::{ReloadedChat, SaveChat, SaveResult, VersionedChat};
use crate::approval::store::system_time;
use crate::approval::{Principal, UnixMillis};
use crate::boxed::BoxFuture;
use crate::id::ChatId;

/// A store that keeps conversations in the memory of this process, within its limits.
///
/// | setting | default | at the limit |
/// |---|---|---|
/// | [`ChatLimits::with_max_user_chats`](crate::limits::ChatLimits::with_max_user_chats) | 4 096 | the user's oldest conversation is removed |
/// | [`with_max_user_bytes`](Self::with_max_user_bytes) | 256 MiB | the user's oldest conversation is removed |
/// | [`with_max_store_chats`](Self::with_max_store_chats) | 100 000 | a conversation is removed |
/// | [`with_max_store_bytes`](Self::with_max_store_bytes) | 1 GiB | a conversation is removed |
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
    clock: Clock,
    limits: Limits,
}

#[derive(Debug)]
struct Limits {
    user_bytes: usize,
    store_chats: usize,
    store_bytes: usize,
}

#[derive(Debug)]
enum Clock {
    /// The system's time when the store was created, and the time since then.
    Monotonic(UnixMillis, Instant),
    Test(Mutex<UnixMillis>),
}

impl fmt::Debug for InMemoryChatStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryChatStore")
            .field("chats", &self.lock().1.chats.len())
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
    /// The conversations that are not kept forever.
    by_expiry: BTreeSet<(UnixMillis, Key)>,
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
    updated_at: UnixMillis,
    expires_at: Option<UnixMillis>,
}

/// The conversations of one user.
#[derive(Debug, Default)]
struct UserChats {
    ids: BTreeMap<EvictionOrder, ChatId>,
    /// The same conversations, by the time of their last save.
    by_time: BTreeSet<(UnixMillis, ChatId)>,
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
    /// Creates a store with the default limits.
    pub fn new() -> Self {
        let clock = Clock::Monotonic(system_time(), Instant::now());
        InMemoryChatStore { entries: Mutex::default(), clock, limits: DEFAULT_LIMITS }
    }

    /// Sets the maximum number of bytes of all conversations of a user, as
    /// [`Chat::bytes`](crate::chat::Chat::bytes) counts them, and 1 KiB for each conversation.
    #[must_use]
    pub fn with_max_user_bytes(mut self, bytes: usize) -> Self {
        self.limits.user_bytes = bytes;
        self
    }

    /// Sets the maximum number of conversations of all users.
    #[must_use]
    pub fn with_max_store_chats(mut self, chats: usize) -> Self {
        self.limits.store_chats = chats;
        self
    }

    /// Sets the maximum number of bytes of the conversations of all users, counted as in
    /// [`with_max_user_bytes`](Self::with_max_user_bytes).
    #[must_use]
    pub fn with_max_store_bytes(mut self, bytes: usize) -> Self {
        self.limits.store_bytes = bytes;
        self
    }

    /// Creates a store for tests, with the default limits. Its clock stands at `now` until
    /// [`set_test_time`](Self::set_test_time) sets it.
    pub fn with_test_clock(now: UnixMillis) -> Self {
        InMemoryChatStore { clock: Clock::Test(Mutex::new(now)), ..Self::new() }
    }

    /// Sets the clock of a store that was created by [`with_test_clock`](Self::with_test_clock). A
    /// store with the system's clock is not changed. A time before the current one has no effect.
    pub fn set_test_time(&self, now: UnixMillis) {
        if let Clock::Test(time) = &self.clock {
            let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
            *time = now.max(*time);
        }
    }

    /// Locks the conversations and returns them with the current time, after those were removed
    /// whose time has passed.
    fn lock(&self) -> (UnixMillis, MutexGuard<'_, Entries>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &self.clock {
            Clock::Monotonic(created_at, created) => created_at.after(created.elapsed()),
            Clock::Test(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        };
        entries.expire(now);
        (now, entries)
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
        let found = self.lock().1.chats.get(&key).map(|entry| entry.stored.clone());
        Box::pin(ready(Ok(found)))
    }

    fn reload<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<ReloadedChat, ChatStoreError>> {
        let key = (owner.clone(), id.clone());
        let reloaded = match self.lock().1.chats.get(&key) {
            Some(entry) if entry.stored.revision == revision => ReloadedChat::Unchanged,
            Some(entry) => ReloadedChat::Changed(Box::new(entry.stored.clone())),
            None => ReloadedChat::NotFound,
        };
        Box::pin(ready(Ok(reloaded)))
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        let chat = save.chat;
        let key = (chat.owner.clone(), chat.id.clone());
        let (now, mut entries) = self.lock();
        let current = entries.chats.get(&key).map(|entry| entry.stored.revision);
        if current != save.revision {
            return Box::pin(ready(Ok(SaveResult::Conflict)));
        }
        let (bytes, limits) = (chat.bytes() + CHAT_BYTES, &self.limits);
        for (limit, setting) in [
            (limits.user_bytes, "with_max_user_bytes"),
            (limits.store_bytes, "with_max_store_bytes"),
        ] {
            if bytes > limit {
                return Box::pin(ready(Err(ChatStoreError::new(format!(
                    "a chat of {bytes} bytes is larger than `InMemoryChatStore::{setting}` allows: {limit}"
                )))));
            }
        }
        entries.remove(&key);
        entries.last_revision += 1;
        let revision = entries.last_revision;
        let stored = VersionedChat { chat: chat.clone(), revision };
        entries.insert(key, stored, now, save.keep_for);
        let max_user_chats = save.max_user_chats.filter(|_| save.revision.is_none());
        while let Some((user, setting, limit)) =
            entries.find_excess(&chat.owner, max_user_chats, limits)
            && let Some(id) = entries.oldest_of(&user, revision)
        {
            entries.evict(&(user, id), setting, limit);
        }
        Box::pin(ready(Ok(SaveResult::Saved(revision))))
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        let before = list.after.map_or(Bound::Unbounded, |after| {
            Bound::Excluded((after.updated_at, after.id.clone()))
        });
        let (_, entries) = self.lock();
        let times = entries.users.get(owner).map(|user| &user.by_time);
        let times = times.map(|times| times.range((Bound::Unbounded, before)).rev());
        let times = times.into_iter().flatten();
        let chats = times.take(list.limit.saturating_add(1)).filter_map(|(updated_at, id)| {
            let entry = entries.chats.get(&(owner.clone(), id.clone()))?;
            let (id, title) = (id.clone(), entry.stored.chat.title());
            Some(ChatSummary { id, title, updated_at: *updated_at })
        });
        Box::pin(ready(Ok(ChatPage::new(chats.collect(), list.limit))))
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let key = (owner.clone(), id.clone());
        let (_, mut entries) = self.lock();
        let current = entries.chats.get(&key).map(|entry| entry.stored.revision);
        let is_deleted = current == Some(revision) && entries.remove(&key).is_some();
        Box::pin(ready(Ok(is_deleted)))
    }
}

impl Entries {
    fn insert(
        &mut self,
        key: Key,
        stored: VersionedChat,
        now: UnixMillis,
        keep_for: Option<Duration>,
    ) {
        let bytes = stored.chat.bytes() + CHAT_BYTES;
        let has_open_questions = stored.chat.has_open_questions();
        let order = EvictionOrder { has_open_questions, revision: stored.revision };
        let expires_at = keep_for.map(|time| now.after(time));
        self.change_user(&key.0, |user| {
            user.ids.insert(order, key.1.clone());
            user.by_time.insert((now, key.1.clone()));
            user.bytes += bytes;
        });
        self.bytes += bytes;
        self.by_expiry.extend(expires_at.map(|at| (at, key.clone())));
        self.chats.insert(key, Entry { stored, bytes, order, updated_at: now, expires_at });
    }

    /// Removes the conversations whose time has passed.
    fn expire(&mut self, now: UnixMillis) {
        while let Some((at, _)) = self.by_expiry.first()
            && *at <= now
            && let Some((_, key)) = self.by_expiry.pop_first()
        {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.chats.remove(key)?;
        self.bytes -= entry.bytes;
        if let Some(at) = entry.expires_at {
            self.by_expiry.remove(&(at, key.clone()));
        }
        self.change_user(&key.0, |user| {
            user.ids.remove(&entry.order);
            user.by_time.remove(&(entry.updated_at, key.1.clone()));
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
        max_user_chats: Option<usize>,
        limits: &Limits,
    ) -> Option<(Principal, &'static str, usize)> {
        let own = self.users.get(saver)?;
        let has_others = own.ids.len() > 1;
        let max_user_chats = max_user_chats.unwrap_or(usize::MAX);
        for (value, limit, setting) in [
            (own.ids.len(), max_user_chats, "ChatLimits::with_max_user_chats"),
            (own.bytes, limits.user_bytes, "InMemoryChatStore::with_max_user_bytes"),
        ] {
            if value > limit && has_others {
                return Some((saver.clone(), setting, limit));
            }
        }
        for (value, limit, setting, users) in [
            (
                self.chats.len(),
                limits.store_chats,
                "InMemoryChatStore::with_max_store_chats",
                &self.by_chats,
            ),
            (
                self.bytes,
                limits.store_bytes,
                "InMemoryChatStore::with_max_store_bytes",
                &self.by_bytes,
            ),
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
            %setting,
            limit,
            "a chat was evicted"
        );
    }
}

const DEFAULT_LIMITS: Limits =
    Limits { user_bytes: 256 << 20, store_chats: 100_000, store_bytes: 1 << 30 };

/// The bytes that a conversation counts besides its messages and lists.
const CHAT_BYTES: usize = 1024;
