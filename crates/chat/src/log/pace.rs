//! [`Pace`]: when the frames of a run are appended, and until when readers are shown them before.

use std::time::Duration;

/// Has at most one append of frames begin between two ticks. The ticks are those of the server, so that its runs
/// append at the same time.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The time between two ticks. Zero: frames are appended at once.
    interval: Duration,
    /// When the last append of frames began.
    last: Option<Duration>,
    /// Since when frames wait of which the log has got none.
    waits_since: Option<Duration>,
}

impl Pace {
    pub(crate) fn new(interval: Duration) -> Self {
        Pace { interval, last: None, waits_since: None }
    }

    /// An append of frames begins.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.last = Some(now);
    }

    /// The log has got some of the frames that wait.
    pub(crate) fn stored(&mut self) {
        self.waits_since = None;
    }

    /// Returns whether readers may be shown frames that wait for the log, if there are any. Returns `false` if the
    /// log has got none for two intervals: its store is away, and all that is shown may be lost.
    pub(crate) fn may_show(&mut self, has_frames: bool, now: Duration) -> bool {
        let since = has_frames.then(|| self.waits_since.unwrap_or(now));
        self.waits_since = since;
        !self.interval.is_zero() && since.is_some_and(|since| now <= since + 2 * self.interval)
    }

    /// Returns from when on frames may be appended: at once after a pause, and otherwise from the tick after the last
    /// append on.
    pub(crate) fn due(&self) -> Duration {
        let Some(last) = self.last.filter(|_| !self.interval.is_zero()) else {
            return Duration::ZERO;
        };
        let since_tick = last.as_nanos() % self.interval.as_nanos();
        // It is less than the interval.
        last + self.interval - Duration::from_nanos(u64::try_from(since_tick).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_after_a_pause_are_due_at_once_and_later_ones_at_the_next_tick() {
        let millis = Duration::from_millis;
        let mut pace = Pace::new(millis(50));
        assert_eq!(pace.due(), Duration::ZERO);
        for (begun, due) in [(0, 50), (49, 50), (50, 100), (51, 100), (730, 750)] {
            pace.begin(millis(begun));
            assert_eq!(pace.due(), millis(due), "after {begun}");
        }
        let mut pace = Pace::new(Duration::ZERO);
        pace.begin(millis(7));
        assert_eq!(pace.due(), Duration::ZERO);
    }

    #[test]
    fn frames_are_shown_before_the_log_has_them_until_it_gets_none_for_two_intervals() {
        let millis = Duration::from_millis;
        let mut pace = Pace::new(millis(50));
        assert!(!pace.may_show(false, millis(0)));
        // A pause does not count.
        assert!(pace.may_show(true, millis(900)) && pace.may_show(true, millis(1000)));
        assert!(!pace.may_show(true, millis(1001)));
        pace.stored();
        assert!(pace.may_show(true, millis(1050)) && !pace.may_show(true, millis(1151)));
        assert!(!Pace::new(Duration::ZERO).may_show(true, millis(0)));
    }
}
