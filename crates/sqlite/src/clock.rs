//! [`Clock`]: the clock of a store, which all processes of the machine share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ui_message_stream::approval::UnixMillis;

/// The system's clock, which a small step back does not turn back.
#[derive(Debug)]
pub(crate) struct Clock {
    source: Source,
    /// The latest time of this process.
    latest: Mutex<i64>,
}

#[derive(Debug)]
enum Source {
    System,
    Test(Mutex<i64>),
}

impl Clock {
    pub(crate) fn system() -> Self {
        Clock { source: Source::System, latest: Mutex::default() }
    }

    pub(crate) fn test(now: UnixMillis) -> Self {
        Clock { source: Source::Test(Mutex::new(stored_time(now))), latest: Mutex::default() }
    }

    /// Sets the time of a test clock. An earlier time has no effect.
    pub(crate) fn set_test_time(&self, now: UnixMillis) {
        if let Source::Test(time) = &self.source {
            let mut time = lock(time);
            *time = stored_time(now).max(*time);
        }
    }

    /// Returns the time. It is not earlier than the last time of this process and `stored`, the
    /// latest time in the file, unless the system's clock was set back by more than a minute.
    pub(crate) fn now(&self, stored: i64) -> i64 {
        let time = match &self.source {
            Source::System => system_time(),
            Source::Test(time) => *lock(time),
        };
        let mut latest = lock(&self.latest);
        let floor = stored.max(*latest);
        let is_kept = floor > time && floor - time <= MAX_SET_BACK;
        *latest = if is_kept { floor } else { time };
        *latest
    }
}

/// Returns a time as SQLite stores it: the latest times become one.
pub(crate) fn stored_time(time: UnixMillis) -> i64 {
    time.0.try_into().unwrap_or(i64::MAX)
}

/// Returns a time that was stored.
pub(crate) fn unix_millis(time: i64) -> UnixMillis {
    UnixMillis(time.try_into().unwrap_or(0))
}

#[expect(clippy::disallowed_methods, reason = "a store tells the time")]
fn system_time() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(i64::MAX)
}

fn lock(time: &Mutex<i64>) -> MutexGuard<'_, i64> {
    time.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A clock that is set back by more than this, in milliseconds, was wrong before. Otherwise no lease
/// would pass until it is as late again.
pub(crate) const MAX_SET_BACK: i64 = 60_000;
