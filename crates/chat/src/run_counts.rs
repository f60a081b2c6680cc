//! [`RunCounts`]: what a server has done with runs, for its metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics;

/// What a [`ChatServer`](super::ChatServer) has done with runs since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct RunCounts {
    /// The runs that this server has begun and that have not ended, now.
    pub live: u64,
    /// How many runs this server has ended, here or on another server, because the user stopped them
    /// or sent a new message, an edit or a regeneration.
    pub taken: u64,
    /// How many runs this server has ended because their lease had passed: their server has failed or
    /// was shut down, or its store did not answer for that long.
    pub lapsed: u64,
    /// How many requests were refused because their user had too many live runs.
    pub refused: u64,
}

/// The counters of a server. All clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct RunCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    live: AtomicU64,
    taken: AtomicU64,
    lapsed: AtomicU64,
    refused: AtomicU64,
}

/// A live run. It is counted until this value is dropped.
#[derive(Debug)]
pub(super) struct CountedRun(Arc<Counters>);

impl RunCounters {
    pub(super) fn counts(&self) -> RunCounts {
        let Counters { live, taken, lapsed, refused } = &*self.0;
        RunCounts {
            live: live.load(Ordering::Relaxed),
            taken: taken.load(Ordering::Relaxed),
            lapsed: lapsed.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
        }
    }

    /// Counts a run until the result is dropped.
    pub(super) fn count_live(&self) -> CountedRun {
        self.0.live.fetch_add(1, Ordering::Relaxed);
        metrics::add_live_runs(1.0);
        CountedRun(Arc::clone(&self.0))
    }

    /// Counts a run of another turn that this server has ended.
    pub(super) fn count_ended(&self, was_lost: bool) {
        let Counters { lapsed, taken, .. } = &*self.0;
        let (counter, event) = if was_lost { (lapsed, "lapsed") } else { (taken, "taken") };
        counter.fetch_add(1, Ordering::Relaxed);
        metrics::count_run(event);
    }

    /// Counts a request that was refused because its user has too many live runs.
    pub(super) fn count_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        metrics::count_run("refused");
    }
}

impl Drop for CountedRun {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::Relaxed);
        metrics::add_live_runs(-1.0);
    }
}
