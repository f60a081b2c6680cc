//! [`Ticks`]: the time of a server, and when its runs append their frames.

use std::time::Duration;

use tokio::time::Instant;

/// The ticks of a server, from its creation on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticks {
    /// The time between two ticks. Zero: frames are appended at once.
    pub(super) interval: Duration,
    begun: Instant,
}

impl Ticks {
    pub(super) fn new(interval: Duration) -> Self {
        Ticks { interval, begun: Instant::now() }
    }

    /// Returns the time of the server.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns when this is the time of the server.
    pub(super) fn at(&self, time: Duration) -> Instant {
        self.begun + time
    }
}
