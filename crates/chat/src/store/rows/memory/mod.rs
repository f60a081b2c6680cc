//! [`InMemoryLogStore`]: rows in the memory of one process, lost when the process ends.

mod eviction;
mod partition;

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::time::Instant;

use self::partition::{Limits, Partition};
use super::database::Rows;
use super::known_logs::{KnownLogs, lock};
use super::log_rows::{partition_of, row_of};
use super::step::{Reply, Step};
use crate::store::{ChatStoreError, LogKey, MAX_ENDED_BYTES, system_time};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};

/// A store that keeps logs in the memory of this process, within its limits.
///
/// | limit | default | at the limit |
/// |---|---|---|
/// | the chats of a user | 4 096 | the user's oldest chat without questions is removed; if there is none, the new one is refused |
/// | [`with_max_user_bytes`](Self::with_max_user_bytes) | 256 MiB | the user's oldest chat is removed |
/// | [`with_max_store_bytes`](Self::with_max_store_bytes) | 1 GiB | chats of the user with the most bytes are removed |
/// | [`with_max_ended_bytes`](Self::with_max_ended_bytes) | 256 MiB | the entries of the run that ended first are removed by the next sweep, as if 10 minutes had passed |
///
/// For bytes, chats with questions are removed last. A chat with a live run never is: an append for which the others
/// make no room is an error. Each removal is logged.
pub struct InMemoryLogStore {
    partitions: Mutex<Partitions>,
    known: KnownLogs,
    clock: Clock,
    limits: Limits,
}

#[derive(Default)]
struct Partitions {
    by_name: HashMap<String, Partition>,
    /// The bytes of the logs of all users.
    bytes: usize,
    /// Wakes those who wait for a change of the list of the user of a partition. Each has a clone.
    changed_lists: HashMap<String, Arc<Notify>>,
}

#[derive(Debug)]
enum Clock {
    /// The system's time when the store was created, and the time since then.
    Monotonic(UnixMillis, Instant),
    Test(Mutex<UnixMillis>),
}

impl fmt::Debug for InMemoryLogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.lock().by_name.values().filter(|it| it.has_rows()).count();
        f.debug_struct("InMemoryLogStore")
            .field("users", &users)
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
        let limits = Limits { user: 256 << 20, store: 1 << 30, ended: MAX_ENDED_BYTES };
        let (partitions, known) = (Mutex::default(), KnownLogs::default());
        InMemoryLogStore { partitions, known, clock, limits }
    }

    /// Sets the clock of a store with a test clock. A time before the current one has no effect.
    pub fn set_test_time(&self, now: UnixMillis) {
        if let Clock::Test(time) = &self.clock {
            let mut time = lock(time);
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

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().by_name.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Partitions> {
        lock(&self.partitions)
    }

    fn time(&self) -> UnixMillis {
        match &self.clock {
            Clock::Monotonic(created_at, created) => created_at.after(created.elapsed()),
            Clock::Test(time) => *lock(time),
        }
    }
}

impl Rows for InMemoryLogStore {
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>> {
        let mut partitions = self.lock();
        if steps.iter().all(|step| partitions.fits(step, self.limits)) {
            return Box::pin(ready(Ok(partitions.run(steps, self.time()))));
        }
        drop(partitions);
        Box::pin(async move {
            for step in &steps {
                self.make_room(step).await?;
            }
            Ok(self.lock().run(steps, self.time()))
        })
    }

    fn now(&self) -> Option<UnixMillis> {
        Some(self.time())
    }

    fn known(&self) -> &KnownLogs {
        &self.known
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        self.lock().changed_lists.retain(|_, changed| Arc::strong_count(changed) > 1);
        Box::pin(ready(Ok(())))
    }

    fn make_place<'a>(
        &'a self,
        owner: &'a Principal,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(self.evict_for_another(owner))
    }

    /// So that tests cover lists in several partitions.
    fn list_partitions(&self) -> u64 {
        2
    }

    fn max_ended_bytes(&self) -> usize {
        self.limits.ended
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        let mut partitions = self.lock();
        let partition = partitions.by_name.get_mut(&partition_of(&key.owner));
        let changed = partition.and_then(|it| it.changed(&row_of(&key.chat), length));
        let Some(changed) = changed else { return Box::pin(ready(())) };
        // It is registered before the lock is released, so that no change is missed.
        let mut notified = Box::pin(changed.notified_owned());
        notified.as_mut().enable();
        Box::pin(notified)
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        let mut partitions = self.lock();
        let changed = partitions.changed_lists.entry(partition_of(owner)).or_default();
        Box::pin(Arc::clone(changed).notified_owned())
    }
}

impl Partitions {
    fn run(&mut self, steps: Vec<Step>, now: UnixMillis) -> Vec<Reply> {
        steps.into_iter().map(|step| self.run_step(step, now)).collect()
    }

    fn run_step(&mut self, step: Step, now: UnixMillis) -> Reply {
        let mut partition = self.by_name.get_mut(&step.partition);
        if partition.is_none() && !step.writes.is_empty() {
            partition = Some(self.by_name.entry(step.partition.clone()).or_default());
        }
        let empty = &mut Partition::default();
        let partition = partition.unwrap_or(empty);
        let is_applied = partition.accepts(&step);
        let Step { partition: name, writes, reads, hints, .. } = step;
        let before = partition.bytes;
        if is_applied {
            writes.into_iter().for_each(|write| partition.write(write));
        }
        let found = reads.iter().map(|read| partition.read(read)).collect();
        self.bytes = self.bytes - before + partition.bytes;
        if is_applied && hints.iter().any(|hint| hint.is_list) {
            self.changed_lists.get(&name).into_iter().for_each(|changed| changed.notify_waiters());
        }
        if partition.is_empty() {
            self.by_name.remove(&name);
        }
        Reply { now, is_applied, found }
    }
}
