//! [`KnownLogs`]: what a process knows of logs.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::rules::head::Loaded;
use crate::store::LogKey;
use ui_message_stream::approval::UnixMillis;

/// What a process knows of logs. It is a part of each type that implements [`Rows`](super::Rows), and is opaque to it.
#[derive(Default)]
pub struct KnownLogs {
    /// The logs with a live run that this process has written last, and the bytes that it has written of the run.
    pub(super) live: Mutex<HashMap<LogKey, (Loaded, usize)>>,
    /// The runs that this process has ended: when, where they begin, and their bytes.
    pub(super) ended: Mutex<VecDeque<Ended>>,
}

/// A run that has ended: of a log with this epoch, and where it begins.
pub(super) struct Ended {
    pub(super) key: LogKey,
    pub(super) at: UnixMillis,
    pub(super) epoch: u64,
    pub(super) begin: u64,
    pub(super) bytes: usize,
}

impl fmt::Debug for KnownLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownLogs").finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
