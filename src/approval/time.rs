//! [`UnixMillis`]: a moment, handed in by whoever has a clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment: milliseconds since 1970, as JavaScript's `Date` counts them.
///
/// The core never asks for it. A [ledger store](super::ApprovalRecord) has one clock for all
/// servers that share it, so that no two of them disagree on what has expired.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// The moment that is `duration` later, or the last one that can be said.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        UnixMillis(self.0.saturating_add(duration.as_millis().try_into().unwrap_or(u64::MAX)))
    }
}
