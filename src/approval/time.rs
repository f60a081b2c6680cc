//! [`UnixMillis`]: a point in time, passed to the core by callers that have a clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time, in milliseconds since 1970-01-01 UTC, as in JavaScript's `Date`.
///
/// The core never reads a clock. A ledger store (see [`ApprovalRecord`](super::ApprovalRecord)) has
/// one clock for all servers that share the store, so that all of them agree on what has expired.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// Returns the time that is `duration` later, or the latest representable time on overflow.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        UnixMillis(self.0.saturating_add(duration.as_millis().try_into().unwrap_or(u64::MAX)))
    }

    /// Whether this time never comes: it is later than the last one of JavaScript's `Date`. As the time at which
    /// something expires, clients do not get it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ui_message_stream::approval::UnixMillis;
    ///
    /// let now = UnixMillis(1_795_244_750_143);
    /// assert!(now.after(Duration::MAX).is_never());
    /// assert!(!now.after(Duration::from_secs(3600)).is_never());
    /// ```
    pub fn is_never(&self) -> bool {
        self.0 > 8_640_000_000_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_of_a_browser_comes_and_a_later_one_does_not() {
        assert!(!UnixMillis(0).is_never());
        assert!(!UnixMillis(8_640_000_000_000_000).is_never());
        assert!(UnixMillis(8_640_000_000_000_001).is_never());
    }
}
