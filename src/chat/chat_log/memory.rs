//! [`InMemoryLogStore`]: logs in the memory of one process, lost when the process ends.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{EntryKind, StoredEntry};
use super::store::{
    AppendLog, AppendResult, Epoch, Expected, LiveRunChange, LoadLog, LoadedLog, LogHead, LogKey,
    LogPage, LogStore, PutSnapshot, ReadLogEntries, Snapshot, UserLimits,
};
use crate::approval::Principal;
use crate::boxed::BoxFuture;
use crate::chat::store::ChatStoreError;
use crate::id::RunId;

/// A store that keeps logs in the memory of this process.
pub(crate) struct InMemoryLogStore {
    logs: Mutex<BTreeMap<LogKey, Log>>,
    clock: Clock,
}

/// The time since the store was created.
enum Clock {
    Monotonic(Instant),
    Test(Mutex<Duration>),
}

struct Log {
    epoch: Epoch,
    control: u64,
    live: Option<LiveRun>,
    /// The runs that have ended and whose frames are kept, in the order of their ends: where they begin,
    /// and when they ended.
    ended: VecDeque<(u64, Duration)>,
    snapshot: Option<Snapshot>,
    /// The position of the first entry that is stored.
    first: u64,
    entries: VecDeque<StoredEntry>,
}

struct LiveRun {
    run: RunId,
    begin: u64,
    lease_end: Duration,
    read_at: Duration,
    has_to_end: bool,
}

impl fmt::Debug for InMemoryLogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryLogStore")
            .field("logs", &self.lock().1.len())
            .finish_non_exhaustive()
    }
}

impl InMemoryLogStore {
    /// Creates an empty store.
    pub(crate) fn new() -> Self {
        Self::with_clock(Clock::Monotonic(Instant::now()))
    }

    /// Creates an empty store whose clock stands at zero until [`set_test_time`](Self::set_test_time)
    /// sets it.
    pub(crate) fn with_test_clock() -> Self {
        Self::with_clock(Clock::Test(Mutex::default()))
    }

    fn with_clock(clock: Clock) -> Self {
        InMemoryLogStore { logs: Mutex::default(), clock }
    }

    /// Sets the clock of a store with a test clock. A time before the current one has no effect.
    pub(crate) fn set_test_time(&self, now: Duration) {
        if let Clock::Test(time) = &self.clock {
            let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
            *time = now.max(*time);
        }
    }

    fn lock(&self) -> (Duration, MutexGuard<'_, BTreeMap<LogKey, Log>>) {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &self.clock {
            Clock::Monotonic(created) => created.elapsed(),
            Clock::Test(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        };
        (now, logs)
    }

    fn append_now(&self, append: AppendLog<'_>) -> AppendResult {
        let (now, mut logs) = self.lock();
        let log = logs.get(append.key);
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
            return AppendResult::Conflict;
        }
        let has_live = live.is_some();
        let owner = &append.key.owner;
        if let Expected::NoLog(_) = append.expected
            && logs.keys().filter(|key| key.owner == *owner).count() >= append.limits.chats
        {
            return AppendResult::TooManyChats;
        }
        if let (LiveRunChange::Begins(_), false) = (append.live_run, has_live)
            && !has_place(&mut logs, owner, append.limits, now)
        {
            return AppendResult::TooManyRuns;
        }
        let log = match append.expected {
            Expected::NoLog(epoch) => {
                logs.entry(append.key.clone()).or_insert_with(|| Log::new(epoch))
            }
            // It was found above.
            _ => match logs.get_mut(append.key) {
                Some(log) => log,
                None => return AppendResult::Conflict,
            },
        };
        AppendResult::Appended { first: log.append(&append, now), head: log.head(now) }
    }
}

/// Returns whether the owner may begin a run. If not, the run that nobody has read for longest has to end.
fn has_place(
    logs: &mut BTreeMap<LogKey, Log>,
    owner: &Principal,
    limits: UserLimits,
    now: Duration,
) -> bool {
    let of_owner = logs.iter_mut().filter(|(key, _)| key.owner == *owner);
    let live = of_owner.filter_map(|(_, log)| log.live.as_mut());
    // A run whose lease has passed takes no place.
    let mut live: Vec<_> = live.filter(|live| now < live.lease_end).collect();
    let has_place = live.len() < limits.runs;
    live.sort_by_key(|live| live.read_at);
    if let Some(oldest) = live.first_mut().filter(|_| !has_place)
        && now.saturating_sub(oldest.read_at) >= limits.unread
    {
        oldest.has_to_end = true;
    }
    has_place
}

impl Log {
    fn new(epoch: Epoch) -> Self {
        Log {
            epoch,
            control: 0,
            live: None,
            ended: VecDeque::new(),
            snapshot: None,
            first: 0,
            entries: VecDeque::new(),
        }
    }

    fn length(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn head(&self, now: Duration) -> LogHead {
        let live = self.live.as_ref();
        LogHead {
            epoch: self.epoch,
            length: self.length(),
            control: self.control,
            live_run: live.map(|live| live.run.clone()),
            is_lost: live.is_some_and(|live| now >= live.lease_end),
            unread: live.map_or(Duration::ZERO, |live| now.saturating_sub(live.read_at)),
            has_to_end: live.is_some_and(|live| live.has_to_end),
        }
    }

    fn append(&mut self, append: &AppendLog<'_>, now: Duration) -> u64 {
        let first = self.length();
        let controls = append.entries.iter().filter(|entry| entry.kind == EntryKind::Control);
        self.control += controls.count() as u64;
        self.entries.extend(append.entries.iter().cloned());
        if append.live_run != LiveRunChange::None {
            let ended = self.live.take();
            self.ended.extend(ended.map(|ended| (ended.begin, now)));
        }
        if let LiveRunChange::Begins(run) = append.live_run {
            let run = run.clone();
            self.live = Some(LiveRun {
                run,
                begin: first,
                lease_end: now,
                read_at: now,
                has_to_end: false,
            });
        }
        if let (Some(lease), Some(live)) = (append.lease, &mut self.live) {
            live.lease_end = now + lease;
        }
        first
    }

    /// The stored entries from this position on, with their positions.
    fn from(&self, position: u64) -> impl Iterator<Item = (u64, &StoredEntry)> {
        let skipped = usize::try_from(position.saturating_sub(self.first)).unwrap_or(usize::MAX);
        (self.first..).zip(&self.entries).skip(skipped)
    }

    /// Removes the entries that neither the fold nor a reader needs.
    fn trim(&mut self, now: Duration) {
        while self.ended.front().is_some_and(|(_, ended)| now - *ended >= KEPT_AFTER_END) {
            self.ended.pop_front();
        }
        let live = self.live.as_ref().filter(|live| now < live.lease_end + KEPT_AFTER_LOSS);
        let begins = self.ended.iter().map(|(begin, _)| *begin).chain(live.map(|live| live.begin));
        let kept = begins.min().unwrap_or(self.length());
        let folded = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
        let trimmed = kept.min(folded).saturating_sub(self.first);
        self.entries.drain(..usize::try_from(trimmed).unwrap_or(0).min(self.entries.len()));
        self.first += trimmed;
    }
}

impl LogStore for InMemoryLogStore {
    fn load<'a>(
        &'a self,
        key: &'a LogKey,
        load: LoadLog,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>> {
        let (now, logs) = self.lock();
        let loaded = logs.get(key).map(|log| {
            let position = log.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
            let is_loaded =
                |entry: &StoredEntry| load == LoadLog::Whole || entry.kind != EntryKind::Frame;
            let entries = log.from(position).filter(|(_, entry)| is_loaded(entry));
            LoadedLog {
                head: log.head(now),
                snapshot: log.snapshot.clone(),
                entries: entries.map(|(position, entry)| (position, entry.clone())).collect(),
            }
        });
        Box::pin(ready(Ok(loaded)))
    }

    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>> {
        let (now, mut logs) = self.lock();
        let log = logs.get_mut(read.key).filter(|log| log.epoch == read.epoch);
        let page = log.filter(|log| log.first <= read.position).map(|log| {
            if let Some(live) = log.live.as_mut().filter(|_| read.is_reader) {
                live.read_at = now;
            }
            let mut bytes = 0;
            let entries = log.from(read.position).map(|(_, entry)| entry).take_while(|entry| {
                let is_first = bytes == 0;
                bytes += entry.bytes.len();
                is_first || bytes <= read.max_bytes
            });
            LogPage { entries: entries.cloned().collect(), head: log.head(now) }
        });
        Box::pin(ready(Ok(page)))
    }

    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>> {
        Box::pin(ready(Ok(self.append_now(append))))
    }

    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<(), ChatStoreError>> {
        let (_, mut logs) = self.lock();
        if let Some(log) = logs.get_mut(put.key).filter(|log| log.epoch == put.epoch) {
            let stored = log.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
            if stored < put.snapshot.position && put.snapshot.position <= log.length() {
                log.snapshot = Some(put.snapshot.clone());
            }
        }
        Box::pin(ready(Ok(())))
    }

    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let (_, mut logs) = self.lock();
        let is_same = |log: &Log| log.epoch == epoch && log.control == control;
        let is_deleted = logs.get(key).is_some_and(is_same);
        if is_deleted {
            logs.remove(key);
        }
        Box::pin(ready(Ok(is_deleted)))
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        let (now, mut logs) = self.lock();
        logs.values_mut().for_each(|log| log.trim(now));
        Box::pin(ready(Ok(())))
    }
}

/// How long the frames of an ended run are kept for readers.
const KEPT_AFTER_END: Duration = Duration::from_secs(10 * 60);

/// How long the frames of a lost run are kept.
const KEPT_AFTER_LOSS: Duration = Duration::from_secs(7 * 24 * 60 * 60);
