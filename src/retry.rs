//! [`Retries`]: how often and how long an operation of a store is repeated, and the pauses between the
//! attempts.

use std::error::Error;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use crate::id::log_causes;
use crate::metrics::count_store_failure;

/// Counts the failures of an operation, and the time since the first one. A store that does not answer
/// fails seldom, but each failure takes long. The pause after each failure is longer than the one
/// before, up to [`MAX_PAUSE`].
#[derive(Debug, Default)]
pub struct Retries {
    failures: u32,
    /// The time of the first failure.
    failing_since: Option<Instant>,
}

impl Retries {
    /// Waits until the operation may be repeated. `operation` names it in the log.
    ///
    /// # Errors
    /// The error, if the operation has failed this many times, or if the time is up.
    pub async fn pause<E: Error + 'static>(
        &mut self,
        max_failures: u32,
        error: E,
        operation: &'static str,
    ) -> Result<(), E> {
        count_store_failure(operation);
        let Some(pause) = self.fail(max_failures) else { return Err(error) };
        tracing::warn!(
            error = log_causes(&error),
            operation,
            "an operation of a store has failed, and is repeated"
        );
        sleep(pause).await;
        Ok(())
    }

    /// Counts a failure, and returns the pause after it. Returns `None` if the operation must not be
    /// repeated: it has failed this many times, or the pause would end after
    /// [`MAX_FAILING`].
    pub fn fail(&mut self, max_failures: u32) -> Option<Duration> {
        let now = Instant::now();
        let first = *self.failing_since.get_or_insert(now);
        self.failures += 1;
        let pause = (RETRY_INTERVAL * self.failures).min(MAX_PAUSE);
        let is_over =
            self.failures >= max_failures || now.duration_since(first) + pause > MAX_FAILING;
        (!is_over).then_some(pause)
    }
}

/// Repeats an operation until it succeeds, has failed this many times, or the time is up. `name` is in
/// the log.
pub async fn repeat<'a, T, E: Error + 'static>(
    name: &'static str,
    max_failures: u32,
    operation: impl Fn() -> BoxFuture<'a, Result<T, E>>,
) -> Result<T, E> {
    let mut retries = Retries::default();
    loop {
        match operation().await {
            Ok(value) => return Ok(value),
            // A pause is rare, and its timer would be a part of each operation.
            Err(error) => Box::pin(retries.pause(max_failures, error, name)).await?,
        }
    }
}

/// How many failures end an operation for which a client waits.
pub const MAX_FAILURES_BEFORE_RESPONSE: u32 = 3;

/// How many failures end an operation. The pauses between them are 29 s together.
pub const MAX_FAILURES: u32 = 20;

/// For how long an operation is repeated. The last attempt may take longer.
pub const MAX_FAILING: Duration = Duration::from_secs(30);

/// The longest pause between two attempts.
pub const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The pause after the first failure, and how much longer each pause is than the one before.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    /// Repeats an operation that fails after `answer`, and returns how many attempts there were.
    async fn attempts(answer: Duration) -> u32 {
        let mut retries = Retries::default();
        let mut attempts = 0;
        loop {
            sleep(answer).await;
            attempts += 1;
            if retries.pause(MAX_FAILURES, std::fmt::Error, "test").await.is_err() {
                return attempts;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_at_once_is_asked_20_times_in_29_seconds() {
        let begun = Instant::now();
        assert_eq!(attempts(Duration::ZERO).await, 20);
        assert_eq!(begun.elapsed(), Duration::from_secs(29));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_is_given_up_30_seconds_after_the_first_failure() {
        let begun = Instant::now();
        let timeout = Duration::from_secs(5);
        assert_eq!(attempts(timeout).await, 7);
        assert!(begun.elapsed() <= timeout + MAX_FAILING + timeout, "{:?}", begun.elapsed());
        for timeout in [31, 60, 600].map(Duration::from_secs) {
            assert_eq!(attempts(timeout).await, 2);
        }
    }
}
