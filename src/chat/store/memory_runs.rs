//! [`InMemoryRunStore`]: logs in the memory of one process, lost when the process ends.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::run_store::{RunStore, RunStoreError};
use crate::approval::{LeaseHolderId, Principal};
use crate::boxed::BoxFuture;
use crate::chat::log::{
    AppendEntries, AppendRefusal, AppendResult, BeginResult, BeginRun, Fence, HolderStatus,
    LogEntry, LogPage, ReadLog, RunKey, RunState, TakeCondition, TakeRefusal, TakeResult, TakeRun,
};

/// A store that keeps the logs of runs in the memory of this process.
///
/// The log of a run is kept for 10 minutes after the run has ended, or for 7 days after its lease
/// has passed without an end. If these logs have more bytes together than the store may keep, those
/// with the least time left are removed earlier. The logs of live runs are not removed, and the
/// holder of a run limits its bytes.
pub struct InMemoryRunStore {
    runs: Mutex<Runs>,
    clock: Clock,
    max_ended_bytes: usize,
}

impl fmt::Debug for InMemoryRunStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, runs) = self.lock();
        f.debug_struct("InMemoryRunStore")
            .field("runs", &runs.by_key.len())
            .field("ended", &runs.by_removal.len())
            .field("ended_bytes", &runs.ended_bytes)
            .finish_non_exhaustive()
    }
}

/// The entries of a log, in pieces of the same length: one list would be copied as it grows.
#[derive(Debug)]
struct Log {
    pieces: Vec<Vec<LogEntry>>,
    length: usize,
    bytes: usize,
}

/// The time since the store was created.
#[derive(Debug)]
enum Clock {
    Monotonic(Instant),
    Test(Mutex<Duration>),
}

#[derive(Debug, Default)]
struct Runs {
    by_key: HashMap<Arc<RunKey>, Run>,
    /// The live runs of each owner, in the order of their beginning.
    live_by_owner: HashMap<Principal, BTreeSet<(u64, Arc<RunKey>)>>,
    /// The live runs, by the end of their lease when they were listed. Leases are renewed more often
    /// than this list is looked at: a run whose lease was renewed is listed again when its time comes.
    by_lease_end: BTreeSet<(Duration, Arc<RunKey>)>,
    /// The other runs, by the time of their removal.
    by_removal: BTreeSet<(Duration, Arc<RunKey>)>,
    ended_bytes: usize,
    begun: u64,
}

#[derive(Debug)]
struct Run {
    key: Arc<RunKey>,
    number: u64,
    holder: LeaseHolderId,
    fence: Fence,
    lease: Duration,
    lease_end: Duration,
    /// Under which time a live run stands in the list of lease ends.
    listed_end: Duration,
    /// When the log is removed. `None` for a live run.
    removal: Option<Duration>,
    read_at: Duration,
    has_to_end: bool,
    has_ended: bool,
    log: Log,
    /// Notifies those that wait for the next change.
    changes: Arc<Notify>,
}

impl InMemoryRunStore {
    /// Creates an empty store that keeps at most 256 MiB of ended logs.
    pub fn new() -> Self {
        Self::with_clock(Clock::Monotonic(Instant::now()))
    }

    /// Creates an empty store for tests. Its clock stands at zero until
    /// [`set_test_time`](Self::set_test_time) sets it.
    pub fn with_test_clock() -> Self {
        Self::with_clock(Clock::Test(Mutex::default()))
    }

    fn with_clock(clock: Clock) -> Self {
        InMemoryRunStore { runs: Mutex::default(), clock, max_ended_bytes: MAX_ENDED_BYTES }
    }

    /// Sets the maximum number of bytes of all ended logs together.
    #[must_use]
    pub fn with_max_ended_bytes(mut self, bytes: usize) -> Self {
        self.max_ended_bytes = bytes;
        self
    }

    /// Sets the clock of a store that was created by [`with_test_clock`](Self::with_test_clock). A
    /// store with the system's clock is not changed. A time before the current one has no effect.
    pub fn set_test_time(&self, now: Duration) {
        if let Clock::Test(time) = &self.clock {
            let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
            *time = now.max(*time);
        }
    }

    /// Returns the number of bytes of all logs, with those that a run and an entry need besides their
    /// content.
    pub fn bytes(&self) -> usize {
        self.lock().1.by_key.values().map(|run| run.log.bytes).sum()
    }

    /// Locks the runs and returns them with the current time, after the runs whose lease has passed
    /// and the logs that are too old were handled.
    fn lock(&self) -> (Duration, MutexGuard<'_, Runs>) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &self.clock {
            Clock::Monotonic(created) => created.elapsed(),
            Clock::Test(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        };
        runs.expire(now, self.max_ended_bytes);
        (now, runs)
    }
}

impl Default for InMemoryRunStore {
    fn default() -> Self {
        Self::new()
    }
}

impl RunStore for InMemoryRunStore {
    fn begin<'a>(
        &'a self,
        begin: BeginRun<'a>,
    ) -> BoxFuture<'a, Result<BeginResult, RunStoreError>> {
        let (now, mut runs) = self.lock();
        Box::pin(ready(Ok(runs.begin(now, begin))))
    }

    fn append<'a>(
        &'a self,
        append: AppendEntries<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, RunStoreError>> {
        let (now, mut runs) = self.lock();
        let result = match runs.append(now, append) {
            Ok(status) => AppendResult::Appended(status),
            Err(refusal) => AppendResult::Refused(refusal),
        };
        if append.end {
            runs.expire(now, self.max_ended_bytes);
        }
        Box::pin(ready(Ok(result)))
    }

    fn read<'a>(
        &'a self,
        read: ReadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, RunStoreError>> {
        let (now, mut runs) = self.lock();
        let page = runs.by_key.get_mut(read.key).map(|run| run.read(now, read));
        Box::pin(ready(Ok(page)))
    }

    fn take<'a>(&'a self, take: TakeRun<'a>) -> BoxFuture<'a, Result<TakeResult, RunStoreError>> {
        let (now, mut runs) = self.lock();
        let result = match runs.take(now, take) {
            Ok(fence) => TakeResult::Taken(fence),
            Err(refusal) => TakeResult::Refused(refusal),
        };
        Box::pin(ready(Ok(result)))
    }

    fn changed<'a>(&'a self, key: &'a RunKey, after: u64) -> BoxFuture<'a, ()> {
        let (_, runs) = self.lock();
        let waiting = runs.by_key.get(key).filter(|run| {
            !run.has_ended && u64::try_from(run.log.length).is_ok_and(|len| len <= after)
        });
        match waiting {
            Some(run) => Box::pin(Arc::clone(&run.changes).notified_owned()),
            None => Box::pin(ready(())),
        }
    }
}

impl Runs {
    fn begin(&mut self, now: Duration, begin: BeginRun<'_>) -> BeginResult {
        if let Some(run) = self.by_key.get(begin.key) {
            let is_same =
                run.holder == begin.holder && run.fence == Fence::FIRST && run.log.length == 0;
            if !is_same || run.has_ended {
                return BeginResult::Exists;
            }
            self.renew(now, begin.key);
            return BeginResult::Begun(Fence::FIRST);
        }
        let live = self.live_by_owner.get(&begin.key.owner).into_iter().flatten();
        let counted: Vec<&Run> = live
            .filter_map(|(_, key)| self.by_key.get(key))
            .filter(|run| !run.has_to_end && run.fence == Fence::FIRST)
            .collect();
        if counted.len() >= begin.max_user_runs {
            let unread = counted.into_iter().find(|run| run.read_at + READER_TIMEOUT <= now);
            let Some(oldest) = unread.map(|run| Arc::clone(&run.key)) else {
                return BeginResult::TooManyRuns;
            };
            if let Some(run) = self.by_key.get_mut(&oldest) {
                run.has_to_end = true;
            }
        }
        self.begun += 1;
        let key = Arc::new(begin.key.clone());
        let run = Run {
            key: Arc::clone(&key),
            number: self.begun,
            holder: begin.holder,
            fence: Fence::FIRST,
            lease: begin.lease,
            lease_end: now.saturating_add(begin.lease),
            listed_end: now,
            removal: None,
            read_at: now,
            has_to_end: false,
            has_ended: false,
            log: Log { pieces: Vec::new(), length: 0, bytes: BYTES_OF_RUN },
            changes: Arc::default(),
        };
        self.by_key.insert(key, run);
        self.list_live(begin.key);
        BeginResult::Begun(Fence::FIRST)
    }

    fn append(
        &mut self,
        now: Duration,
        append: AppendEntries<'_>,
    ) -> Result<HolderStatus, AppendRefusal> {
        let mut run = self.by_key.get_mut(append.key).ok_or(AppendRefusal::NotFound)?;
        if run.fence != append.fence {
            return Err(AppendRefusal::Taken);
        }
        let position = usize::try_from(append.position).map_err(|_| AppendRefusal::Gap)?;
        let stored = run.log.length.checked_sub(position).ok_or(AppendRefusal::Gap)?;
        if stored > 0 || run.has_ended {
            let count = append.entries.len();
            let is_repeated = run.log.skip(position).take(count).eq(append.entries)
                && (!append.end || run.has_ended && stored == count);
            let renews_only = append.entries.is_empty() && !append.end;
            return match is_repeated && !renews_only {
                true => Ok(run.status(now)),
                false if run.has_ended => Err(AppendRefusal::Ended),
                false => Err(AppendRefusal::Gap),
            };
        }
        if run.removal.is_some() {
            // Its bytes before this append are taken from the sum of ended logs.
            self.renew(now, append.key);
            run = self.by_key.get_mut(append.key).ok_or(AppendRefusal::NotFound)?;
        }
        run.lease_end = now.saturating_add(run.lease);
        run.log.append(append.entries);
        let status = run.status(now);
        if !append.entries.is_empty() || append.end {
            run.changes.notify_waiters();
        }
        if append.end {
            run.has_ended = true;
            self.list_ended(append.key, now);
        }
        Ok(status)
    }

    fn take(&mut self, now: Duration, take: TakeRun<'_>) -> Result<Fence, TakeRefusal> {
        let run = self.by_key.get_mut(take.key).ok_or(TakeRefusal::NotFound)?;
        let next = Fence(take.fence.0 + 1);
        let is_repeated = run.fence == next && run.holder == take.holder;
        if run.has_ended {
            return Err(TakeRefusal::Ended);
        }
        if !is_repeated {
            if run.fence != take.fence {
                return Err(TakeRefusal::OtherFence(run.fence));
            }
            if take.condition == TakeCondition::LeasePassed && now < run.lease_end {
                return Err(TakeRefusal::LeaseRenewed);
            }
            (run.fence, run.holder) = (next, take.holder);
            run.changes.notify_waiters();
        }
        run.lease = take.lease;
        self.renew(now, take.key);
        Ok(next)
    }

    /// Begins the lease of a run again.
    fn renew(&mut self, now: Duration, key: &RunKey) {
        let Some(run) = self.by_key.get_mut(key) else { return };
        run.lease_end = now.saturating_add(run.lease);
        if run.removal.is_some() {
            self.unlist(key);
            self.list_live(key);
        }
    }

    fn list_live(&mut self, key: &RunKey) {
        let Some(run) = self.by_key.get_mut(key) else { return };
        run.removal = None;
        run.listed_end = run.lease_end;
        self.by_lease_end.insert((run.listed_end, Arc::clone(&run.key)));
        let live = self.live_by_owner.entry(key.owner.clone()).or_default();
        live.insert((run.number, Arc::clone(&run.key)));
    }

    /// Lists a run that ended, or whose lease passed, at `ended`.
    fn list_ended(&mut self, key: &RunKey, ended: Duration) {
        self.unlist(key);
        let Some(run) = self.by_key.get_mut(key) else { return };
        let removal = ended + if run.has_ended { RETENTION } else { LOST_RETENTION };
        run.removal = Some(removal);
        self.ended_bytes += run.log.bytes;
        self.by_removal.insert((removal, Arc::clone(&run.key)));
    }

    /// Removes a run from the lists.
    fn unlist(&mut self, key: &RunKey) {
        let Some(run) = self.by_key.get(key) else { return };
        match run.removal {
            Some(removal) => {
                if self.by_removal.remove(&(removal, Arc::clone(&run.key))) {
                    self.ended_bytes -= run.log.bytes;
                }
            }
            None => {
                self.by_lease_end.remove(&(run.listed_end, Arc::clone(&run.key)));
                if let Some(live) = self.live_by_owner.get_mut(&key.owner) {
                    live.remove(&(run.number, Arc::clone(&run.key)));
                    if live.is_empty() {
                        self.live_by_owner.remove(&key.owner);
                    }
                }
            }
        }
    }

    /// Lists the runs whose lease has passed among the ended ones, and removes the logs that are
    /// too old or too many.
    fn expire(&mut self, now: Duration, max_ended_bytes: usize) {
        while self.by_lease_end.first().is_some_and(|(listed, _)| *listed <= now)
            && let Some((_, key)) = self.by_lease_end.pop_first()
        {
            let Some(run) = self.by_key.get_mut(&key) else { continue };
            let end = run.lease_end;
            if end <= now {
                self.list_ended(&key, end);
            } else {
                run.listed_end = end;
                self.by_lease_end.insert((end, key));
            }
        }
        let is_excess =
            |runs: &Runs, removal: Duration| removal <= now || runs.ended_bytes > max_ended_bytes;
        while let Some((removal, key)) = self.by_removal.first()
            && is_excess(self, *removal)
        {
            let key = Arc::clone(key);
            self.unlist(&key);
            if let Some(removed) = self.by_key.remove(&key) {
                removed.changes.notify_waiters();
            }
        }
    }
}

impl Log {
    fn append(&mut self, mut entries: &[LogEntry]) {
        self.length += entries.len();
        self.bytes +=
            entries.iter().map(|entry| BYTES_OF_ENTRY + entry.bytes().len()).sum::<usize>();
        while !entries.is_empty() {
            if self.pieces.last().is_none_or(|last| last.len() == PIECE_ENTRIES) {
                // The first piece grows: many logs are short.
                let capacity = if self.pieces.is_empty() { 0 } else { PIECE_ENTRIES };
                self.pieces.push(Vec::with_capacity(capacity));
            }
            let Some(last) = self.pieces.last_mut() else { return };
            let (now, later) = entries.split_at(entries.len().min(PIECE_ENTRIES - last.len()));
            last.extend_from_slice(now);
            entries = later;
        }
    }

    /// Iterates over the entries after this number of them.
    fn skip(&self, count: usize) -> impl Iterator<Item = &LogEntry> {
        self.pieces_after(count).flatten()
    }

    /// Iterates over the pieces with the entries after this number of them.
    fn pieces_after(&self, count: usize) -> impl Iterator<Item = &[LogEntry]> {
        let mut skipped = count % PIECE_ENTRIES;
        self.pieces
            .iter()
            .skip(count / PIECE_ENTRIES)
            .map(move |piece| piece.get(std::mem::take(&mut skipped)..).unwrap_or_default())
    }
}

impl Run {
    fn status(&self, now: Duration) -> HolderStatus {
        HolderStatus { unread: now.saturating_sub(self.read_at), has_to_end: self.has_to_end }
    }

    fn read(&mut self, now: Duration, read: ReadLog<'_>) -> LogPage {
        if read.is_reader {
            self.read_at = now;
        }
        let skipped = usize::try_from(read.after).unwrap_or(usize::MAX);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for piece in self.log.pieces_after(skipped) {
            let fitting = piece.iter().take_while(|entry| {
                let is_first = bytes == 0;
                bytes += entry.bytes().len().max(1);
                is_first || bytes <= read.max_bytes
            });
            let count = fitting.count();
            entries.extend_from_slice(&piece[..count]);
            if count < piece.len() {
                break;
            }
        }
        let state = match (self.has_ended, now < self.lease_end) {
            (true, _) => RunState::Ended,
            (false, true) => RunState::Leased,
            (false, false) => RunState::LeasePassed,
        };
        let length = self.log.length.try_into().unwrap_or(u64::MAX);
        LogPage { entries, length, fence: self.fence, state }
    }
}

/// How many entries a piece of a log has. The last piece may have fewer.
const PIECE_ENTRIES: usize = 256;

/// The bytes of a run besides its entries, which count as bytes of its log.
const BYTES_OF_RUN: usize = 512;

/// The bytes of an entry besides its content.
const BYTES_OF_ENTRY: usize = 64;

/// How long a log is kept after its end.
const RETENTION: Duration = Duration::from_secs(10 * 60);

/// How long a log without an end is kept after its lease has passed.
const LOST_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The time after which a reader that reads no more does not count.
const READER_TIMEOUT: Duration = Duration::from_secs(30);

/// The default maximum number of bytes of all ended logs together.
const MAX_ENDED_BYTES: usize = 256 << 20;
