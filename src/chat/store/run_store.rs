//! [`RunStore`]: the storage of the logs of runs.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::boxed::{BoxError, BoxFuture};
use crate::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, LogPage, ReadLog, RunKey, TakeResult,
    TakeRun,
};

/// A store of the logs of runs: one append-only log for each run, which all servers that share the
/// store read.
///
/// # Requirements
/// - Each function is one atomic step.
/// - The store has one clock for all servers. A lease has passed when the time since the last
///   append, begin or take that renewed it is at least its duration.
/// - An accepted append is stored, and every later [`read`](Self::read) returns it. Entries never
///   change.
/// - An append with the newest fence that repeats entries at their position succeeds and changes
///   nothing, also after the end. An append with an older fence is refused, also a repetition.
/// - A log that has ended is readable for at least 10 minutes, and one whose lease has passed without
///   an end for at least 7 days, unless the store removes it for its limit of bytes. Until then, the
///   next reader of the conversation keeps what a lost run has written.
/// - A live run is not removed.
///
/// The types of the arguments and results are in [`chat::log`](crate::chat::log). There are two
/// examples: `src/chat/store/memory_runs.rs`, which keeps the logs in memory, and
/// `crates/postgres/src/runs.rs` in SQL.
///
/// [`run_conformance`](super::run_conformance) tests these requirements:
/// `run_conformance::check(async || MyStore::connect().await).await` in a test is the whole test.
/// The documentation of that module lists what it does not test.
pub trait RunStore: Send + Sync + fmt::Debug + 'static {
    /// Begins an empty log, with fence 1.
    ///
    /// If the holder begins the same run again, and the log is empty, has not ended and was not
    /// taken, returns the same result and renews the lease. For any other run that exists, returns
    /// [`BeginResult::Exists`].
    ///
    /// A run is live until its log ends or its lease passes. At
    /// [`max_user_runs`](BeginRun::max_user_runs) live runs of the owner, the oldest run without a
    /// reader has to end: the result of its next append says so to its holder. A run without a
    /// reader is one that no reader has read for 30 seconds. The 30 seconds begin when the run
    /// begins. A run that has to end no longer counts, and neither does a run that was taken: its
    /// new holder only ends it.
    ///
    /// # Errors
    /// [`RunStoreError`] if the log cannot be written. It may have begun.
    fn begin<'a>(
        &'a self,
        begin: BeginRun<'a>,
    ) -> BoxFuture<'a, Result<BeginResult, RunStoreError>>;

    /// Appends entries and renews the lease, if the caller has the newest fence and the log has
    /// not ended.
    ///
    /// # Errors
    /// [`RunStoreError`] if the log cannot be written. The entries may have been appended: the
    /// caller repeats the append.
    fn append<'a>(
        &'a self,
        append: AppendEntries<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, RunStoreError>>;

    /// Reads a part of a log. Returns `None` if there is no such run.
    ///
    /// # Errors
    /// [`RunStoreError`] if the log cannot be read.
    fn read<'a>(
        &'a self,
        read: ReadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, RunStoreError>>;

    /// Makes the caller the holder of a run, if the run still has the fence that the caller knows.
    /// The new fence is larger by 1, and the lease begins again, with the duration of the request.
    ///
    /// If the holder repeats the request, it gets the same fence again, and the lease begins again.
    ///
    /// # Errors
    /// [`RunStoreError`] if the run cannot be written. It may have been taken.
    fn take<'a>(&'a self, take: TakeRun<'a>) -> BoxFuture<'a, Result<TakeResult, RunStoreError>>;

    /// Waits until the log may hold more than `after` entries, or may have ended, been taken or been
    /// removed.
    ///
    /// This is a hint: the future may be ready too early, and the caller waits no longer than it can
    /// afford to miss an entry. The default waits for half a second.
    fn changed<'a>(&'a self, _key: &'a RunKey, _after: u64) -> BoxFuture<'a, ()> {
        Box::pin(tokio::time::sleep(DEFAULT_POLL_INTERVAL))
    }
}

/// A failure of the store: it is unreachable or too slow.
#[derive(Debug)]
pub struct RunStoreError(BoxError);

impl RunStoreError {
    /// Wraps the error of the store, which becomes the [source](StdError::source).
    pub fn new(source: impl Into<BoxError>) -> Self {
        RunStoreError(source.into())
    }
}

impl fmt::Display for RunStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store of runs failed")
    }
}

impl StdError for RunStoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// How long readers wait between two reads if the store gives no hints.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(500);
