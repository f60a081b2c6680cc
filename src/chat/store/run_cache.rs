//! [`RunCache`]: a store of runs, with the newest entries that this process has appended.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::run_store::{RunStore, RunStoreError};
use crate::boxed::BoxFuture;
use crate::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, LogPage, ReadLog, RunKey,
    RunState, TakeResult, TakeRun,
};

/// Answers the reads of clients from memory, if this process has appended the entries.
///
/// Most clients read a run from the server that writes it, and otherwise each frame would be read
/// from the store again. Entries never change, so what is kept here is always a part of the log. The
/// state of a run is not kept: a client that has read everything asks the store.
#[derive(Debug)]
pub(crate) struct RunCache {
    store: Arc<dyn RunStore>,
    runs: Mutex<HashMap<RunKey, CachedRun>>,
}

#[derive(Debug)]
struct CachedRun {
    /// The number of entries before those that are kept.
    first: u64,
    entries: VecDeque<LogEntry>,
    bytes: usize,
    fence: Fence,
    appended_at: Instant,
    /// When a client has read this run, and when one has read it in the store.
    read_at: Option<Instant>,
    store_read_at: Option<Instant>,
    /// Notifies those that wait for the next change.
    changes: Arc<Notify>,
}

impl RunCache {
    pub(crate) fn new(store: Arc<dyn RunStore>) -> Self {
        RunCache { store, runs: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, CachedRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what was appended. Returns for how long no client has read the run, as far as it is known
    /// here.
    fn add(&self, append: AppendEntries<'_>) -> Option<Duration> {
        let mut runs = self.lock();
        if append.end {
            remove(&mut runs, append.key);
            return None;
        }
        if append.entries.is_empty() {
            let run = runs.get_mut(append.key)?;
            run.appended_at = Instant::now();
            return run.unread();
        }
        let run = match runs.get_mut(append.key) {
            Some(run) => run,
            None => runs.entry(append.key.clone()).or_insert_with(|| CachedRun {
                first: append.position,
                entries: VecDeque::new(),
                bytes: 0,
                fence: append.fence,
                appended_at: Instant::now(),
                read_at: None,
                store_read_at: None,
                changes: Arc::default(),
            }),
        };
        run.add(append);
        run.unread()
    }

    /// Returns the entries after those that a client has read, if they are kept.
    fn read_kept(&self, read: ReadLog<'_>) -> Option<LogPage> {
        let mut runs = self.lock();
        let run = runs.get_mut(read.key).filter(|_| read.is_reader)?;
        let skipped = run.index_of(read.after)?;
        let now = Instant::now();
        run.read_at = Some(now);
        if run.store_read_at.is_none_or(|at| now - at >= STORE_READ_INTERVAL) {
            run.store_read_at = Some(now);
            return None;
        }
        let mut bytes = 0;
        let fitting = run.entries.range(skipped..).take_while(|entry| {
            let is_first = bytes == 0;
            bytes += entry.bytes().len().max(1);
            is_first || bytes <= read.max_bytes
        });
        let entries = fitting.cloned().collect();
        Some(LogPage { entries, length: run.length(), fence: run.fence, state: RunState::Leased })
    }
}

impl RunStore for RunCache {
    fn begin<'a>(
        &'a self,
        begin: BeginRun<'a>,
    ) -> BoxFuture<'a, Result<BeginResult, RunStoreError>> {
        // The log of a run that another server has taken is not appended to here any more.
        self.lock().retain(|_, run| {
            let is_kept = run.appended_at.elapsed() < MAX_IDLE;
            if !is_kept {
                run.changes.notify_waiters();
            }
            is_kept
        });
        self.store.begin(begin)
    }

    fn append<'a>(
        &'a self,
        append: AppendEntries<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, RunStoreError>> {
        Box::pin(async move {
            let mut result = self.store.append(append).await?;
            match &mut result {
                AppendResult::Appended(status) => {
                    // The store does not know of the reads that were answered here.
                    let unread = self.add(append).unwrap_or(Duration::MAX);
                    status.unread = status.unread.min(unread);
                }
                AppendResult::Refused(_) => remove(&mut self.lock(), append.key),
            }
            Ok(result)
        })
    }

    fn read<'a>(
        &'a self,
        read: ReadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, RunStoreError>> {
        match self.read_kept(read) {
            Some(page) => Box::pin(std::future::ready(Ok(Some(page)))),
            None => Box::pin(async move {
                let kept = self.lock().get(read.key).map_or(0, CachedRun::length);
                let page = self.store.read(read).await?;
                if let Some(page) = &page {
                    let mut runs = self.lock();
                    // Another process has taken the run, and appends to it. Or the store has lost entries.
                    let is_newer = |run: &CachedRun| run.fence < page.fence || page.length < kept;
                    if runs.get(read.key).is_some_and(is_newer) {
                        remove(&mut runs, read.key);
                    }
                }
                Ok(page)
            }),
        }
    }

    fn take<'a>(&'a self, take: TakeRun<'a>) -> BoxFuture<'a, Result<TakeResult, RunStoreError>> {
        Box::pin(async move {
            let result = self.store.take(take).await?;
            if let Some(run) = self.lock().get(take.key) {
                run.changes.notify_waiters();
            }
            Ok(result)
        })
    }

    fn changed<'a>(&'a self, key: &'a RunKey, after: u64) -> BoxFuture<'a, ()> {
        match self.lock().get(key) {
            Some(run) if after < run.length() => Box::pin(std::future::ready(())),
            // If another process takes the run, an append is refused here, or a read shows it.
            Some(run) if after == run.length() => {
                Box::pin(Arc::clone(&run.changes).notified_owned())
            }
            // The entries after those that are kept were appended by another process.
            _ => self.store.changed(key, after),
        }
    }
}

impl CachedRun {
    fn length(&self) -> u64 {
        self.first + u64::try_from(self.entries.len()).unwrap_or(0)
    }

    fn unread(&self) -> Option<Duration> {
        self.read_at.map(|at| at.elapsed())
    }

    /// Returns where the entry after this number of them is kept.
    fn index_of(&self, count: u64) -> Option<usize> {
        let index = usize::try_from(count.checked_sub(self.first)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    fn add(&mut self, append: AppendEntries<'_>) {
        if append.fence < self.fence {
            // The reply to an append of an earlier holder is late. The next holder has read its entries.
            return;
        }
        if append.fence > self.fence || append.position > self.length() {
            // Another process may have appended in between.
            (self.first, self.bytes) = (append.position, 0);
            self.entries.clear();
        }
        // A repeated append holds entries that are kept already.
        let known = usize::try_from(self.length() - append.position).unwrap_or(usize::MAX);
        let new = append.entries.get(known..).unwrap_or_default();
        self.bytes += new.iter().map(|entry| entry.bytes().len()).sum::<usize>();
        self.entries.extend(new.iter().cloned());
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.entries.pop_front()
        {
            self.first += 1;
            self.bytes -= oldest.bytes().len();
        }
        (self.fence, self.appended_at) = (append.fence, Instant::now());
        self.changes.notify_waiters();
    }
}

/// Removes a run, and has those that wait for it ask the store.
fn remove(runs: &mut HashMap<RunKey, CachedRun>, key: &RunKey) {
    if let Some(run) = runs.remove(key) {
        run.changes.notify_waiters();
    }
}

/// The maximum number of bytes that are kept of a run. A client that is further behind asks the store.
const MAX_BYTES: usize = 64 << 10;

/// How often the store is asked although the entries are kept. Other processes learn from it that the run
/// is read: a reader counts for 30 seconds.
const STORE_READ_INTERVAL: Duration = Duration::from_secs(5);

/// How long a run is kept after the last append.
const MAX_IDLE: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;

    use super::*;
    use crate::approval::{LeaseHolderId, Principal};
    use crate::chat::log::{TakeCondition, TakeResult};
    use crate::chat::store::{InMemoryRunStore, run_conformance};
    use crate::id::{ChatId, RunId};

    const LEASE: Duration = Duration::from_secs(10);

    fn key() -> RunKey {
        let (owner, chat) = (Principal::new("ada"), ChatId::new("c"));
        RunKey { owner, chat, run: RunId::new("run_1") }
    }

    async fn begun(store: &dyn RunStore) -> Fence {
        let (key, holder) = (key(), LeaseHolderId::from_bytes([1; 16]));
        let begin = BeginRun { key: &key, holder, lease: LEASE, max_user_runs: 16 };
        match store.begin(begin).await.unwrap() {
            BeginResult::Begun(fence) => fence,
            other => panic!("{other:?}"),
        }
    }

    async fn append(store: &dyn RunStore, fence: Fence, position: u64, texts: &[&str]) {
        let frames = texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes()));
        let entries: Vec<LogEntry> = frames.map(LogEntry::Frame).collect();
        let append = AppendEntries { key: &key(), fence, position, entries: &entries, end: false };
        let appended = store.append(append).await.unwrap();
        assert!(matches!(appended, AppendResult::Appended(_)), "{appended:?}");
    }

    /// Reads as a client, to the end of what is there.
    async fn read_all(store: &dyn RunStore, mut after: u64) -> Vec<String> {
        let mut texts = Vec::new();
        loop {
            let read = ReadLog { key: &key(), after, max_bytes: 4, is_reader: true };
            let page = store.read(read).await.unwrap().unwrap();
            let text = |entry: &LogEntry| String::from_utf8(entry.bytes().to_vec()).unwrap();
            texts.extend(page.entries.iter().map(text));
            after += u64::try_from(page.entries.len()).unwrap();
            if page.entries.is_empty() {
                return texts;
            }
        }
    }

    #[tokio::test]
    async fn a_cached_store_meets_the_requirements_of_a_store() {
        let new = async || RunCache::new(Arc::new(InMemoryRunStore::new()));
        assert!(run_conformance::check(new).await >= 30);
    }

    #[tokio::test]
    async fn a_client_reads_the_whole_log_after_another_server_has_taken_the_run() {
        let store = Arc::new(InMemoryRunStore::new());
        let cache = RunCache::new(store.clone());
        let fence = begun(&cache).await;
        append(&cache, fence, 0, &["a", "b"]).await;
        assert_eq!(read_all(&cache, 0).await, ["a", "b"]);
        append(&cache, fence, 2, &["c"]).await;

        let holder = LeaseHolderId::from_bytes([2; 16]);
        let take =
            TakeRun { key: &key(), fence, holder, condition: TakeCondition::Any, lease: LEASE };
        let TakeResult::Taken(next) = store.take(take).await.unwrap() else { panic!() };
        append(&*store, next, 3, &["d", "e"]).await;
        assert_eq!(read_all(&cache, 0).await, ["a", "b", "c", "d", "e"]);
        assert_eq!(read_all(&cache, 2).await, ["c", "d", "e"]);

        // This server takes the run back, behind what the other one has appended.
        let holder = LeaseHolderId::from_bytes([3; 16]);
        let take = TakeRun {
            key: &key(),
            fence: next,
            holder,
            condition: TakeCondition::Any,
            lease: LEASE,
        };
        let TakeResult::Taken(newest) = cache.take(take).await.unwrap() else { panic!() };
        append(&cache, newest, 5, &["f"]).await;
        append(&cache, newest, 5, &["f"]).await;
        for after in 0..=6 {
            let all = ["a", "b", "c", "d", "e", "f"];
            assert_eq!(read_all(&cache, after).await, all[usize::try_from(after).unwrap()..]);
        }
    }

    #[tokio::test]
    async fn a_client_that_waits_learns_that_this_server_has_taken_the_run() {
        let cache = RunCache::new(Arc::new(InMemoryRunStore::new()));
        let fence = begun(&cache).await;
        append(&cache, fence, 0, &["a"]).await;
        let key = key();
        let mut changed = cache.changed(&key, 1);
        assert!((&mut changed).now_or_never().is_none());
        let holder = LeaseHolderId::from_bytes([2; 16]);
        let take =
            TakeRun { key: &key, fence, holder, condition: TakeCondition::Any, lease: LEASE };
        assert!(matches!(cache.take(take).await.unwrap(), TakeResult::Taken(_)));
        assert!(changed.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_client_that_waits_learns_what_another_server_appends_after_it_took_the_run() {
        let store = Arc::new(InMemoryRunStore::new());
        let cache = RunCache::new(store.clone());
        let fence = begun(&cache).await;
        append(&cache, fence, 0, &["a"]).await;
        let (key, holder) = (key(), LeaseHolderId::from_bytes([2; 16]));
        let take =
            TakeRun { key: &key, fence, holder, condition: TakeCondition::Any, lease: LEASE };
        let TakeResult::Taken(next) = store.take(take).await.unwrap() else { panic!() };
        append(&*store, next, 1, &["b"]).await;
        // It has read the entry of the other server, which is not kept here, or it reads nothing new.
        for position in 2..4 {
            let mut changed = cache.changed(&key, position);
            assert!((&mut changed).now_or_never().is_none());
            append(&*store, next, position, &["c"]).await;
            assert!(changed.now_or_never().is_some());
            let read = ReadLog { is_reader: true, ..ReadLog::whole(&key) };
            assert_eq!(cache.read(read).await.unwrap().unwrap().fence, next);
        }
        assert!(cache.lock().is_empty());
    }

    #[tokio::test]
    async fn a_client_that_waits_for_a_log_of_which_entries_are_lost_asks_the_store() {
        let mut cache = RunCache::new(Arc::new(InMemoryRunStore::new()));
        let fence = begun(&cache).await;
        append(&cache, fence, 0, &["a", "b", "c"]).await;
        let lost = InMemoryRunStore::new();
        let fence = begun(&lost).await;
        append(&lost, fence, 0, &["a"]).await;
        cache.store = Arc::new(lost);
        let key = key();
        assert_eq!(cache.read(ReadLog::whole(&key)).await.unwrap().unwrap().length, 1);
        assert!(cache.changed(&key, 1).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_a_run_that_is_kept_no_longer_asks_the_store() {
        let cache = RunCache::new(Arc::new(InMemoryRunStore::new()));
        let fence = begun(&cache).await;
        append(&cache, fence, 0, &["a"]).await;
        tokio::time::advance(MAX_IDLE - Duration::from_secs(1)).await;
        // A heartbeat.
        append(&cache, fence, 1, &[]).await;
        let (key, other) = (key(), RunKey { run: RunId::new("run_2"), ..key() });
        let begin = BeginRun {
            key: &other,
            holder: LeaseHolderId::from_bytes([2; 16]),
            lease: LEASE,
            max_user_runs: 16,
        };
        let mut changed = cache.changed(&key, 1);
        for is_kept in [true, false] {
            let _ = cache.begin(begin).await.unwrap();
            assert_eq!(cache.lock().contains_key(&key), is_kept);
            assert_eq!((&mut changed).now_or_never().is_none(), is_kept);
            tokio::time::advance(MAX_IDLE).await;
        }
    }

    #[tokio::test]
    async fn a_holder_learns_that_a_client_reads_what_is_kept() {
        let store = Arc::new(InMemoryRunStore::with_test_clock());
        let cache = RunCache::new(store.clone());
        let fence = begun(&cache).await;
        append(&cache, fence, 0, &["a", "b"]).await;
        store.set_test_time(Duration::from_secs(60));
        // The store is read for the first page, but not for the second one.
        assert_eq!(read_all(&cache, 0).await, ["a", "b"]);
        store.set_test_time(Duration::from_secs(120));
        assert!(cache.read_kept(ReadLog { is_reader: true, ..ReadLog::whole(&key()) }).is_some());
        for entries in [&[LogEntry::Note("c".into())][..], &[]] {
            let key = key();
            let position = if entries.is_empty() { 3 } else { 2 };
            let append = AppendEntries { key: &key, fence, position, entries, end: false };
            let AppendResult::Appended(status) = cache.append(append).await.unwrap() else {
                panic!("the append is refused");
            };
            assert!(status.unread < Duration::from_secs(60), "{:?}", status.unread);
        }
    }

    #[tokio::test]
    async fn a_client_that_is_far_behind_reads_the_store() {
        let cache = RunCache::new(Arc::new(InMemoryRunStore::new()));
        let fence = begun(&cache).await;
        let long = "x".repeat(MAX_BYTES / 2 + 1);
        for position in 0..5 {
            append(&cache, fence, position, &[&long]).await;
        }
        assert!(cache.lock().values().all(|run| run.bytes <= MAX_BYTES && run.first == 4));
        assert!(cache.changed(&key(), 0).now_or_never().is_some());
        assert_eq!(read_all(&cache, 0).await.len(), 5);
    }
}
