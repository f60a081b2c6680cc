//! [`Clock`]: what is known of the clock of Redis without a request.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use ui_message_stream::approval::UnixMillis;

/// The newest time that Redis has replied, and when.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<(UnixMillis, Instant)>>);

impl Clock {
    /// Notes a time that Redis has replied. The clocks of the nodes of a cluster may differ a bit: the latest one counts.
    pub(crate) fn note(&self, now: UnixMillis) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_later = |noted: UnixMillis| now < noted && noted.0 < now.0 + MAX_SET_BACK;
        if !noted.is_some_and(|(noted, _)| is_later(noted)) {
            *noted = Some((now, Instant::now()));
        }
    }

    /// Returns the last time, unless it is an old one.
    pub(crate) fn now(&self) -> Option<UnixMillis> {
        let noted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.filter(|(_, at)| at.elapsed() < MAX_AGE).map(|(now, _)| now)
    }
}

/// A clock that is set back by more than this, in milliseconds, was wrong before.
const MAX_SET_BACK: u64 = 60_000;

/// By how much a time that is used may be behind the clock.
const MAX_AGE: Duration = Duration::from_secs(1);
