//! [`InMemoryLogStore`]: logs in the memory of one process, lost when the process ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::deliveries::Deliveries;
use super::log_store::{
    AppendLog, AppendResult, ChatPage, ChatSummary, EntryKind, Epoch, Expected, KEPT_AFTER_END,
    ListChats, LiveRunChange, LoadLog, LoadedLog, LogHead, LogKey, LogPage, LogStore, PutSnapshot,
    ReadLogEntries, ReadMessages, Snapshot, StoredEntry, Unchanged, Undelivered, UserLimits,
};
use crate::approval::store::system_time;
use crate::approval::{Principal, UnixMillis};
use crate::boxed::BoxFuture;
use crate::chat::store::ChatStoreError;
use crate::id::{ChatId, RunId};

/// A store that keeps logs in the memory of this process, within its limits.
///
/// | limit | default | at the limit |
/// |---|---|---|
/// | the chats of a user | 4 096 | the user's oldest chat without questions is removed; if there is none, the new one is refused |
/// | [`with_max_user_bytes`](Self::with_max_user_bytes) | 256 MiB | the user's oldest chat is removed |
/// | [`with_max_store_bytes`](Self::with_max_store_bytes) | 1 GiB | chats of the user with the most bytes are removed |
///
/// For bytes, chats with questions are removed last. A chat with a live run never is. An append to a log that is
/// larger than a user may have is an error. Each removal is logged.
pub struct InMemoryLogStore {
    logs: Mutex<Logs>,
    clock: Clock,
    limits: Limits,
}

/// The maximum numbers of bytes.
#[derive(Debug, Clone, Copy)]
struct Limits {
    user: usize,
    store: usize,
}

#[derive(Debug)]
enum Clock {
    /// The system's time when the store was created, and the time since then.
    Monotonic(UnixMillis, Instant),
    Test(Mutex<UnixMillis>),
}

#[derive(Default)]
struct Logs {
    users: HashMap<Principal, UserLogs>,
    bytes: usize,
    /// The chats that are not kept forever.
    by_expiry: BTreeSet<(UnixMillis, LogKey)>,
    deliveries: Deliveries,
}

#[derive(Default)]
struct UserLogs {
    logs: BTreeMap<ChatId, Log>,
    /// The same chats, by the time of their last update.
    by_time: BTreeSet<(UnixMillis, ChatId)>,
    bytes: usize,
}

struct Log {
    epoch: Epoch,
    control: u64,
    live: Option<LiveRun>,
    /// The runs that have ended and whose entries are kept for readers, in the order of their ends: where
    /// they begin, and when they ended.
    ended: VecDeque<(u64, UnixMillis)>,
    snapshot: Option<KeptSnapshot>,
    /// The position of the first entry that is stored.
    first: u64,
    entries: VecDeque<StoredEntry>,
    bytes: usize,
    title: String,
    is_renamed: bool,
    has_questions: bool,
    updated_at: UnixMillis,
    expires_at: Option<UnixMillis>,
    changed: Arc<Notify>,
}

/// A snapshot, whose messages are changed in place.
#[derive(Default)]
struct KeptSnapshot {
    position: u64,
    head: String,
    messages: BTreeMap<usize, String>,
    bytes: usize,
}

struct LiveRun {
    run: RunId,
    begin: u64,
    lease_end: UnixMillis,
    read_at: UnixMillis,
    has_to_end: bool,
}

impl fmt::Debug for InMemoryLogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryLogStore")
            .field("users", &self.lock().1.users.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Default for InMemoryLogStore {
    fn default() -> Self {
        Self::new()
    }
}

impl InMemoryLogStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::with_clock(Clock::Monotonic(system_time(), Instant::now()))
    }

    /// Creates a store for tests. Its clock stands at `now` until [`set_test_time`](Self::set_test_time)
    /// sets it.
    pub fn with_test_clock(now: UnixMillis) -> Self {
        Self::with_clock(Clock::Test(Mutex::new(now)))
    }

    fn with_clock(clock: Clock) -> Self {
        InMemoryLogStore { logs: Mutex::default(), clock, limits: DEFAULT_LIMITS }
    }

    /// Sets the clock of a store with a test clock. A time before the current one has no effect.
    pub fn set_test_time(&self, now: UnixMillis) {
        if let Clock::Test(time) = &self.clock {
            let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
            *time = now.max(*time);
        }
    }

    /// Sets the maximum number of bytes of all logs of a user: entries, snapshots, and 1 KiB for each chat.
    #[must_use]
    pub fn with_max_user_bytes(mut self, bytes: usize) -> Self {
        self.limits.user = bytes;
        self
    }

    /// Sets the maximum number of bytes of the logs of all users, counted as in
    /// [`with_max_user_bytes`](Self::with_max_user_bytes).
    #[must_use]
    pub fn with_max_store_bytes(mut self, bytes: usize) -> Self {
        self.limits.store = bytes;
        self
    }

    /// Locks the logs and returns them with the current time, after those were removed whose time has
    /// passed.
    fn lock(&self) -> (UnixMillis, MutexGuard<'_, Logs>) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &self.clock {
            Clock::Monotonic(created_at, created) => created_at.after(created.elapsed()),
            Clock::Test(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        };
        while let Some((at, _)) = logs.by_expiry.first()
            && *at <= now
            && let Some((_, key)) = logs.by_expiry.pop_first()
        {
            logs.remove(&key);
        }
        (now, logs)
    }

    fn append_now(&self, append: AppendLog<'_>) -> Result<AppendResult, ChatStoreError> {
        let (now, mut logs) = self.lock();
        let AppendLog { key, limits, .. } = append;
        let log = logs.get(key);
        let is_expected = match (append.expected, log) {
            (Expected::NoLog(_), log) => log.is_none(),
            (Expected::Control { epoch, control }, Some(log)) => {
                log.epoch == epoch && log.control == control
            }
            (Expected::Position { epoch, position }, Some(log)) => {
                log.epoch == epoch && log.length() == position
            }
            (_, None) => false,
        };
        let live = log.and_then(|log| log.live.as_ref());
        if !is_expected || append.only_lost && live.is_none_or(|live| now < live.lease_end) {
            return Ok(AppendResult::Conflict);
        }
        let added = bytes_of(append.entries);
        let bytes = log.map_or(LOG_BYTES, |log| log.bytes) + added;
        // A run can always renew its lease, and end.
        let is_needed = append.entries.is_empty() || append.live_run == LiveRunChange::Ends;
        if !is_needed && bytes > self.limits.user.min(self.limits.store) {
            return Err(too_large(bytes));
        }
        let begins = matches!(append.live_run, LiveRunChange::Begins(_)) && live.is_none();
        let chats = logs.users.get(&key.owner).map_or(0, |user| user.logs.len());
        let has_room = !matches!(append.expected, Expected::NoLog(_)) || chats < limits.chats;
        if !has_room && logs.evictable(&key.owner, None).is_none() {
            return Ok(AppendResult::TooManyChats);
        }
        if begins && !logs.has_place(&key.owner, limits, now) {
            return Ok(AppendResult::TooManyRuns);
        }
        if !has_room {
            logs.evict(&key.owner, None, "max_user_chats");
        }
        if let Expected::NoLog(epoch) = append.expected {
            logs.insert(key, Log::new(epoch, now));
        }
        let result = logs.change(key, |log| {
            let first = log.append(&append, now);
            AppendResult::Appended { first, head: log.head(now) }
        });
        if let (true, Some(AppendResult::Appended { head, .. })) = (append.is_for_sink, &result) {
            logs.deliveries.has_changed(key, head.epoch, head.length, now);
        }
        logs.limit_bytes(key, self.limits);
        Ok(result.unwrap_or(AppendResult::Conflict))
    }
}

impl Logs {
    fn get(&self, key: &LogKey) -> Option<&Log> {
        self.users.get(&key.owner)?.logs.get(&key.chat)
    }

    fn insert(&mut self, key: &LogKey, log: Log) {
        let user = self.users.entry(key.owner.clone()).or_default();
        user.by_time.insert((log.updated_at, key.chat.clone()));
        user.bytes += log.bytes;
        self.bytes += log.bytes;
        user.logs.insert(key.chat.clone(), log);
    }

    /// Changes a log, and what is counted of it.
    fn change<T>(&mut self, key: &LogKey, change: impl FnOnce(&mut Log) -> T) -> Option<T> {
        let user = self.users.get_mut(&key.owner)?;
        let log = user.logs.get_mut(&key.chat)?;
        let before = (log.bytes, log.updated_at, log.expires_at);
        let result = change(log);
        user.bytes = user.bytes - before.0 + log.bytes;
        self.bytes = self.bytes - before.0 + log.bytes;
        if log.updated_at != before.1 {
            user.by_time.remove(&(before.1, key.chat.clone()));
            user.by_time.insert((log.updated_at, key.chat.clone()));
        }
        if log.expires_at != before.2 {
            let of = |at: Option<UnixMillis>| at.map(|at| (at, key.clone()));
            of(before.2).map(|old| self.by_expiry.remove(&old));
            self.by_expiry.extend(of(log.expires_at));
        }
        Some(result)
    }

    fn remove(&mut self, key: &LogKey) -> Option<Log> {
        let user = self.users.get_mut(&key.owner)?;
        let log = user.logs.remove(&key.chat)?;
        user.by_time.remove(&(log.updated_at, key.chat.clone()));
        user.bytes -= log.bytes;
        self.bytes -= log.bytes;
        if user.logs.is_empty() {
            self.users.remove(&key.owner);
        }
        if let Some(at) = log.expires_at {
            self.by_expiry.remove(&(at, key.clone()));
        }
        self.deliveries.has_deleted(key);
        log.changed.notify_waiters();
        Some(log)
    }

    /// Returns whether the owner may begin a run. Another one may have to end for it.
    fn has_place(&mut self, owner: &Principal, limits: UserLimits, now: UnixMillis) -> bool {
        let Some(user) = self.users.get_mut(owner) else { return limits.runs > 0 };
        let live = user.logs.values_mut().filter_map(|log| log.live.as_mut());
        let counted = live.filter(|live| now < live.lease_end && !live.has_to_end);
        let mut live: Vec<_> = counted.collect();
        if live.len() < limits.runs {
            return true;
        }
        let oldest = live.iter_mut().min_by_key(|live| live.read_at);
        let Some(oldest) = oldest.filter(|it| since(it.read_at, now) >= limits.unread) else {
            return false;
        };
        oldest.has_to_end = true;
        true
    }

    /// Returns the chat of a user that is removed first: the oldest one, those with questions last, and none
    /// with a live run.
    fn evictable(&self, owner: &Principal, kept: Option<&LogKey>) -> Option<ChatId> {
        let user = self.users.get(owner)?;
        let idle = user.by_time.iter().filter_map(|(time, id)| {
            let log = user.logs.get(id)?;
            let may_go = log.live.is_none()
                && kept.is_none_or(|kept| kept.owner != *owner || kept.chat != *id);
            may_go.then_some((log.has_questions, *time, id))
        });
        // Those with questions hold what somebody waits for: they go only for bytes.
        let idle = idle.filter(|(has_questions, ..)| !has_questions || kept.is_some());
        idle.min().map(|(.., id)| id.clone())
    }

    /// Removes a chat of a user. Returns whether there was one that may go.
    fn evict(&mut self, owner: &Principal, kept: Option<&LogKey>, limit: &str) -> bool {
        let Some(chat) = self.evictable(owner, kept) else { return false };
        let key = LogKey { owner: owner.clone(), chat };
        tracing::warn!(chat_id = key.chat.as_str(), limit, "a chat was removed from memory");
        self.remove(&key).is_some()
    }

    /// Removes chats until the limits hold, but not this one.
    fn limit_bytes(&mut self, key: &LogKey, limits: Limits) {
        let owner = &key.owner;
        // Others make no room for a chat that is too large alone.
        let fits = self.get(key).is_none_or(|log| log.bytes <= limits.user);
        while fits
            && self.users.get(owner).is_some_and(|user| user.bytes > limits.user)
            && self.evict(owner, Some(key), "with_max_user_bytes")
        {}
        if self.bytes <= limits.store {
            return;
        }
        // More than needed, so that this is rare: it looks at all users.
        let mut users: Vec<_> =
            self.users.iter().map(|(owner, user)| (user.bytes, owner.clone())).collect();
        users.sort_by_key(|(bytes, _)| Reverse(*bytes));
        for (_, owner) in users {
            while self.bytes > limits.store / 16 * 15 {
                if !self.evict(&owner, Some(key), "with_max_store_bytes") {
                    break;
                }
            }
        }
    }
}

impl Log {
    fn new(epoch: Epoch, now: UnixMillis) -> Self {
        Log {
            epoch,
            control: 0,
            live: None,
            ended: VecDeque::new(),
            snapshot: None,
            first: 0,
            entries: VecDeque::new(),
            bytes: LOG_BYTES,
            title: String::new(),
            is_renamed: false,
            has_questions: false,
            updated_at: now,
            expires_at: None,
            changed: Arc::default(),
        }
    }

    fn length(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn head(&self, now: UnixMillis) -> LogHead {
        let live = self.live.as_ref();
        LogHead {
            epoch: self.epoch,
            length: self.length(),
            control: self.control,
            live_run: live.map(|live| live.run.clone()),
            is_lost: live.is_some_and(|live| now >= live.lease_end),
            unread: live.map_or(Duration::ZERO, |live| since(live.read_at, now)),
            has_to_end: live.is_some_and(|live| live.has_to_end),
        }
    }

    fn append(&mut self, append: &AppendLog<'_>, now: UnixMillis) -> u64 {
        let first = self.length();
        let controls = append.entries.iter().filter(|entry| entry.kind == EntryKind::Control);
        let controls = controls.count() as u64;
        self.control += controls;
        self.bytes += bytes_of(append.entries);
        self.entries.extend(append.entries.iter().cloned());
        if append.live_run != LiveRunChange::None {
            let ended = self.live.take();
            self.ended.extend(ended.map(|ended| (ended.begin, now)));
        }
        if let LiveRunChange::Begins(run) = append.live_run {
            let run = run.clone();
            let (begin, lease_end, read_at) = (first, now, now);
            self.live = Some(LiveRun { run, begin, lease_end, read_at, has_to_end: false });
        }
        if let (Some(lease), Some(live)) = (append.lease, &mut self.live) {
            live.lease_end = now.after(lease);
        }
        if let Some(listed) = append.listed {
            self.has_questions = listed.has_questions;
            if !self.is_renamed && self.title != listed.title {
                self.title = listed.title.to_owned();
            }
        }
        if controls > 0 {
            self.updated_at = now;
            self.expires_at = append.keep_for.map(|time| now.after(time));
        }
        self.changed.notify_waiters();
        first
    }

    /// The stored entries from this position on, with their positions.
    fn from(&self, position: u64) -> impl Iterator<Item = (u64, &StoredEntry)> {
        let skipped = usize::try_from(position.saturating_sub(self.first)).unwrap_or(usize::MAX);
        (self.first..).zip(&self.entries).skip(skipped)
    }

    /// Removes the entries that neither the fold nor a reader needs.
    fn trim(&mut self, now: UnixMillis) {
        while self.ended.front().is_some_and(|(_, ended)| since(*ended, now) >= KEPT_AFTER_END) {
            self.ended.pop_front();
        }
        let live = self.live.as_ref().map(|live| live.begin);
        let begins = self.ended.iter().map(|(begin, _)| *begin).chain(live);
        let kept = begins.min().unwrap_or(self.length());
        let folded = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
        let trimmed = kept.min(folded).saturating_sub(self.first);
        let count = usize::try_from(trimmed).unwrap_or(0).min(self.entries.len());
        self.bytes -= self.entries.drain(..count).map(|entry| entry.bytes.len()).sum::<usize>();
        self.first += trimmed;
    }

    fn put_snapshot(&mut self, put: &PutSnapshot<'_>) -> bool {
        let stored = self.snapshot.as_ref();
        let is_newer = stored.is_none_or(|stored| stored.position < put.position);
        let is_base = |base: Unchanged| {
            stored.is_some_and(|stored| {
                stored.position == base.position && base.messages <= stored.messages.len()
            })
        };
        if put.position > self.length() || !is_newer || !put.unchanged.is_none_or(is_base) {
            return false;
        }
        let mut snapshot = self.snapshot.take().unwrap_or_default();
        self.bytes -= snapshot.bytes;
        let unchanged = put.unchanged.map_or(0, |base| base.messages);
        snapshot.bytes -= snapshot.head.len();
        for (_, removed) in snapshot.messages.split_off(&unchanged) {
            snapshot.bytes -= removed.len();
        }
        (snapshot.position, snapshot.head) = (put.position, put.head.to_owned());
        snapshot.bytes += put.head.len() + put.changed.iter().map(String::len).sum::<usize>();
        snapshot.messages.extend((unchanged..).zip(put.changed.iter().cloned()));
        self.bytes += snapshot.bytes;
        self.snapshot = Some(snapshot);
        true
    }

    fn summary(&self, id: &ChatId) -> ChatSummary {
        ChatSummary {
            id: id.clone(),
            title: self.title.clone(),
            updated_at: self.updated_at,
            is_live: self.live.is_some(),
            has_questions: self.has_questions,
        }
    }
}

fn bytes_of(entries: &[StoredEntry]) -> usize {
    entries.iter().map(|entry| entry.bytes.len()).sum()
}

fn too_large(bytes: usize) -> ChatStoreError {
    ChatStoreError::new(format!(
        "a chat of {bytes} bytes is larger than `InMemoryLogStore::with_max_user_bytes` allows"
    ))
}

fn since(time: UnixMillis, now: UnixMillis) -> Duration {
    Duration::from_millis(now.0.saturating_sub(time.0))
}

impl LogStore for InMemoryLogStore {
    fn load<'a>(
        &'a self,
        load: LoadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>> {
        let (now, logs) = self.lock();
        let loaded = logs.get(load.key).map(|log| {
            let position = log.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
            let is_loaded = |entry: &StoredEntry| load.has_frames || entry.kind != EntryKind::Frame;
            let entries = log.from(position).filter(|(_, entry)| is_loaded(entry));
            let snapshot = log.snapshot.as_ref().map(|stored| Snapshot {
                position,
                head: stored.head.clone(),
                messages: match load.has_messages {
                    true => stored.messages.values().cloned().collect(),
                    false => Vec::new(),
                },
            });
            let entries = entries.map(|(position, entry)| (position, entry.clone())).collect();
            LoadedLog { head: log.head(now), snapshot, entries }
        });
        Box::pin(ready(Ok(loaded)))
    }

    fn messages<'a>(
        &'a self,
        read: ReadMessages<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, ChatStoreError>> {
        let (_, logs) = self.lock();
        let log = logs.get(read.key).filter(|log| log.epoch == read.epoch);
        let snapshot = log.and_then(|log| log.snapshot.as_ref());
        let page = snapshot.filter(|it| it.position == read.position).map(|snapshot| {
            let messages = snapshot.messages.range(read.first..).map(|(_, message)| message);
            within(messages, read.max_bytes, |message| message.len())
        });
        Box::pin(ready(Ok(page)))
    }

    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>> {
        let (now, mut logs) = self.lock();
        let page = logs.change(read.key, |log| {
            let is_stored = log.first <= read.position && read.position <= log.length();
            if log.epoch != read.epoch || !is_stored {
                return None;
            }
            if let Some(live) = log.live.as_mut().filter(|_| read.is_reader) {
                live.read_at = now;
            }
            let entries = log.from(read.position).map(|(_, entry)| entry);
            let entries = within(entries, read.max_bytes, |entry| entry.bytes.len());
            Some(LogPage { entries, head: log.head(now) })
        });
        Box::pin(ready(Ok(page.flatten())))
    }

    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>> {
        Box::pin(ready(self.append_now(append)))
    }

    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let (_, mut logs) = self.lock();
        let is_stored =
            logs.change(put.key, |log| log.epoch == put.epoch && log.put_snapshot(&put));
        logs.limit_bytes(put.key, self.limits);
        Box::pin(ready(Ok(is_stored.unwrap_or(false))))
    }

    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let (_, mut logs) = self.lock();
        let is_same = |log: &Log| log.epoch == epoch && log.control == control;
        let is_deleted = logs.get(key).is_some_and(is_same) && logs.remove(key).is_some();
        Box::pin(ready(Ok(is_deleted)))
    }

    fn delete_user<'a>(
        &'a self,
        owner: &'a Principal,
    ) -> BoxFuture<'a, Result<usize, ChatStoreError>> {
        let (_, mut logs) = self.lock();
        let chats = logs.users.get(owner).map(|user| user.logs.keys().cloned().collect());
        let chats: Vec<ChatId> = chats.unwrap_or_default();
        let keys = chats.into_iter().map(|chat| LogKey { owner: owner.clone(), chat });
        let deleted = keys.filter_map(|key| logs.remove(&key)).count();
        Box::pin(ready(Ok(deleted)))
    }

    fn rename<'a>(
        &'a self,
        key: &'a LogKey,
        title: &'a str,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let (_, mut logs) = self.lock();
        let renamed = logs.change(key, |log| {
            (log.title, log.is_renamed) = (title.to_owned(), true);
        });
        Box::pin(ready(Ok(renamed.is_some())))
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        let before = list.after.map_or(Bound::Unbounded, |after| {
            Bound::Excluded((after.updated_at, after.id.clone()))
        });
        let search = list.search.map(str::to_ascii_lowercase);
        let is_found = |log: &ChatSummary| {
            let mut search = search.iter();
            search.all(|search| log.title.to_ascii_lowercase().contains(search))
        };
        let (_, logs) = self.lock();
        let chats = logs.users.get(owner).map(|user| {
            let times = user.by_time.range((Bound::Unbounded, before)).rev();
            let chats = times.filter_map(|(_, id)| Some(user.logs.get(id)?.summary(id)));
            chats.filter(is_found).take(list.limit.saturating_add(1)).collect()
        });
        Box::pin(ready(Ok(ChatPage::new(chats.unwrap_or_default(), list.limit))))
    }

    fn undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> BoxFuture<'_, Result<Vec<Undelivered>, ChatStoreError>> {
        let (now, mut logs) = self.lock();
        Box::pin(ready(Ok(logs.deliveries.take(limit, now, now.after(retry_after)))))
    }

    fn acknowledge<'a>(
        &'a self,
        delivered: &'a Undelivered,
    ) -> BoxFuture<'a, Result<Option<Undelivered>, ChatStoreError>> {
        let (_, mut logs) = self.lock();
        Box::pin(ready(Ok(logs.deliveries.acknowledge(delivered))))
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        let (now, mut logs) = self.lock();
        let Logs { users, bytes, .. } = &mut *logs;
        for user in users.values_mut() {
            for log in user.logs.values_mut() {
                let before = log.bytes;
                log.trim(now);
                user.bytes -= before - log.bytes;
                *bytes -= before - log.bytes;
            }
        }
        Box::pin(ready(Ok(())))
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        let (_, logs) = self.lock();
        let log = logs.get(key).filter(|log| log.length() <= length);
        let Some(changed) = log.map(|log| Arc::clone(&log.changed)) else {
            return Box::pin(ready(()));
        };
        // It is registered before the lock is released, so that no change is missed.
        let mut notified = Box::pin(changed.notified_owned());
        notified.as_mut().enable();
        Box::pin(notified)
    }
}

/// The first items that have this number of bytes together, and at least one.
fn within<'i, T: Clone + 'i>(
    items: impl Iterator<Item = &'i T>,
    max_bytes: usize,
    bytes: impl Fn(&T) -> usize,
) -> Vec<T> {
    let mut sum = 0;
    let page = items.enumerate().take_while(|(at, item)| {
        sum += bytes(item);
        *at == 0 || sum <= max_bytes
    });
    page.map(|(_, item)| item.clone()).collect()
}

const DEFAULT_LIMITS: Limits = Limits { user: 256 << 20, store: 1 << 30 };

/// What a chat counts beside its entries and its snapshot.
const LOG_BYTES: usize = 1 << 10;
