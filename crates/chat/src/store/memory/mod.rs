//! [`InMemoryLogStore`]: logs in the memory of one process, lost when the process ends.

mod log;
mod logs;

use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use self::log::{LOG_BYTES, Log, bytes_of};
use self::logs::{Limits, Logs};
use crate::store::ChatStoreError;
use crate::store::system_time;
use crate::store::{
    AppendLog, AppendResult, ChatPage, ChatSummary, EntryKind, Epoch, Expected, LeftToServer,
    ListChats, LiveRunChange, LoadLog, LoadedLog, LogKey, LogPage, LogStore, MAX_ENDED_BYTES,
    PutSnapshot, ReadLogEntries, ReadMessages, Snapshot, StoredEntry, Undelivered,
};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::ChatId;

/// A store that keeps logs in the memory of this process, within its limits.
///
/// | limit | default | at the limit |
/// |---|---|---|
/// | the chats of a user | 4 096 | the user's oldest chat without questions is removed; if there is none, the new one is refused |
/// | [`with_max_user_bytes`](Self::with_max_user_bytes) | 256 MiB | the user's oldest chat is removed |
/// | [`with_max_store_bytes`](Self::with_max_store_bytes) | 1 GiB | chats of the user with the most bytes are removed |
/// | [`with_max_ended_bytes`](Self::with_max_ended_bytes) | 256 MiB | the entries of the run that ended first are removed, as if 10 minutes had passed |
///
/// For bytes, chats with questions are removed last. A chat with a live run never is: an append for which the others
/// make no room is an error. Each removal is logged.
pub struct InMemoryLogStore {
    logs: Mutex<Logs>,
    clock: Clock,
    limits: Limits,
}

#[derive(Debug)]
enum Clock {
    /// The system's time when the store was created, and the time since then.
    Monotonic(UnixMillis, Instant),
    Test(Mutex<UnixMillis>),
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

    /// Sets the maximum number of bytes of the entries that are kept for the readers of runs that have ended.
    #[must_use]
    pub fn with_max_ended_bytes(mut self, bytes: usize) -> Self {
        self.limits.ended = bytes;
        self
    }

    /// Locks the logs and returns them with the current time, after the chats were removed whose
    /// time has passed.
    fn lock(&self) -> (UnixMillis, MutexGuard<'_, Logs>) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &self.clock {
            Clock::Monotonic(created_at, created) => created_at.after(created.elapsed()),
            Clock::Test(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        };
        logs.now = now;
        logs.remove_expired(now);
        (now, logs)
    }

    fn append_now(&self, append: AppendLog<'_>) -> Result<AppendResult, ChatStoreError> {
        let (now, mut logs) = self.lock();
        let AppendLog { key, limits, .. } = append;
        let log = logs.get(key);
        let is_expected =
            append.expected.is_met(log.map(|log| (log.epoch, log.length(), log.control)));
        let live = log.and_then(|log| log.live.as_ref());
        if !is_expected || append.only_lost && live.is_none_or(|live| now < live.lease_end) {
            return Ok(AppendResult::Conflict);
        }
        let added = bytes_of(append.entries);
        let (before, added) = log.map_or((0, LOG_BYTES + added), |log| (log.bytes, added));
        // A run can always renew its lease, and end.
        let is_needed = append.entries.is_empty() || append.live_run == LiveRunChange::Ends;
        // Others make no room for a chat that is too large alone.
        if !is_needed && before + added > self.limits.user.min(self.limits.store) {
            return Err(no_room(before + added));
        }
        let begins = append.live_run.new_run().is_some() && live.is_none();
        let has_room = match append.expected {
            Expected::NoLog(_) => {
                let chats = logs.users.get(&key.owner).map_or(0, |user| user.logs.len());
                chats < limits.chats
            }
            _ => true,
        };
        if !has_room && logs.evictable(&key.owner, None).is_none() {
            return Ok(AppendResult::TooManyChats);
        }
        if begins && !logs.has_place(&key.owner, limits, now) {
            return Ok(AppendResult::TooManyRuns);
        }
        if !has_room {
            logs.evict(&key.owner, None, "max_user_chats");
        }
        if !logs.make_room(key, added, self.limits) && !is_needed {
            return Err(no_room(before + added));
        }
        if let Expected::NoLog(epoch) = append.expected {
            logs.insert(key, Log::new(epoch, now));
        }
        let appended = logs.change(key, |log| {
            let ended = log.ended.len();
            let first = log.append(&append, now);
            (first, log.head(now), log.ended.len() > ended)
        });
        let Some((first, head, has_ended)) = appended else { return Ok(AppendResult::Conflict) };
        if append.changes_list() {
            logs.notify_list(&key.owner);
        }
        if append.is_for_sink {
            logs.deliveries.has_changed(key, head.epoch, head.length, now);
        }
        if has_ended {
            logs.keep_ended(key, head.epoch, now);
            logs.limit_ended(self.limits.ended);
        }
        Ok(AppendResult::Appended { first, head })
    }
}

fn no_room(bytes: usize) -> ChatStoreError {
    ChatStoreError::new(format!(
        "a chat of {bytes} bytes has no room beside the live runs, within \
         `InMemoryLogStore::with_max_user_bytes` and `with_max_store_bytes`"
    ))
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
                messages: if load.has_messages {
                    stored.messages.values().cloned().collect()
                } else {
                    Vec::new()
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
        let page = snapshot.filter(|snapshot| snapshot.position == read.position).map(|snapshot| {
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
        let is_stored = logs.put_snapshot(&put);
        logs.make_room(put.key, 0, self.limits);
        Box::pin(ready(Ok(is_stored)))
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
        logs.notify_list(&key.owner);
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

    fn sweep(&self) -> BoxFuture<'_, Result<LeftToServer, ChatStoreError>> {
        let (now, mut logs) = self.lock();
        Box::pin(ready(Ok(logs.sweep(now))))
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

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        let (_, mut logs) = self.lock();
        let changed = logs.changed_lists.entry(owner.clone()).or_default();
        Box::pin(Arc::clone(changed).notified_owned())
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

const DEFAULT_LIMITS: Limits = Limits { user: 256 << 20, store: 1 << 30, ended: MAX_ENDED_BYTES };
