//! A text at the pace of a model, which says when it was written.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::Stream;
use tokio::time::{MissedTickBehavior, interval};

/// What precedes the time in each delta of [`paced`].
pub const MARK: &str = "at:";

/// Returns a stream of `count` deltas, 50 a second. Each holds [`MARK`] and the time at which it was written, in
/// nanoseconds since 1970, followed by a space.
pub fn paced(count: usize) -> impl Stream<Item = String> + Send {
    async_stream::stream! {
        let mut ticks = interval(Duration::from_millis(20));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for _ in 0..count {
            ticks.tick().await;
            yield format!("{MARK}{} ", unix_nanoseconds());
        }
    }
}

/// Returns the time in nanoseconds since 1970. All processes of one machine read the same clock.
pub fn unix_nanoseconds() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set");
    u64::try_from(time.as_nanos()).expect("the year is before 2554")
}
