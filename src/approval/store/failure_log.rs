//! [`FailureLog`]: logs why a store fails, without flooding the log.

use std::error::Error;
use std::iter::successors;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Logs the failures of a store, each cause at most once in 30 seconds.
///
/// While a store is away, each operation of each chat fails for the same reason. A store has one
/// `FailureLog`, and passes it each failure before it returns it. The text of an error, with that of its
/// sources, is the cause: it must hold nothing that is stored, and no secrets.
///
/// ```
/// use ui_message_stream::approval::store::FailureLog;
///
/// let failures = FailureLog::default();
/// for _ in 0..1_000 {
///     // One line: a store fails error="the disk is full" suppressed=0
///     failures.log(&std::io::Error::other("the disk is full"));
/// }
/// ```
#[derive(Debug, Default)]
pub struct FailureLog(Mutex<Vec<Cause>>);

#[derive(Debug)]
struct Cause {
    text: String,
    logged_at: Instant,
    /// How many failures have not been logged since.
    suppressed: u64,
}

impl FailureLog {
    /// Logs a failure, unless one with the same cause was logged in the last 30 seconds. The next line of
    /// the cause has the number of failures that were not logged.
    pub fn log(&self, error: &(dyn Error + 'static)) {
        let sources = successors(Some(error), |error| (*error).source());
        let text = sources.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        if let Some(suppressed) = self.count(&text) {
            tracing::error!(error = text, suppressed, "a store fails");
        }
    }

    /// Counts a failure. Returns `None` if it is not to be logged, and otherwise how many were not.
    fn count(&self, text: &str) -> Option<u64> {
        let mut causes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let known = causes.iter().position(|cause| cause.text == text);
        let suppressed = match known.map(|at| &mut causes[at]) {
            Some(cause) if now.duration_since(cause.logged_at) < INTERVAL => {
                cause.suppressed += 1;
                return None;
            }
            Some(cause) => cause.suppressed,
            None => 0,
        };
        // The cause that was logged first is the first.
        match known {
            Some(at) => drop(causes.remove(at)),
            None if causes.len() == MAX_CAUSES => drop(causes.remove(0)),
            None => {}
        }
        causes.push(Cause { text: text.to_owned(), logged_at: now, suppressed: 0 });
        Some(suppressed)
    }
}

/// The time in which a cause is logged once.
const INTERVAL: Duration = Duration::from_secs(30);

/// How many causes are known at once.
const MAX_CAUSES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cause_is_logged_once_in_30_seconds_with_the_number_of_those_that_were_not() {
        let failures = FailureLog::default();
        assert_eq!(failures.count("full"), Some(0));
        for _ in 0..500 {
            assert_eq!(failures.count("full"), None);
        }
        assert_eq!(failures.count("locked"), Some(0));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(failures.count("full"), Some(500));
        assert_eq!(failures.count("full"), None);
        assert_eq!(failures.count("locked"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_causes_that_are_known_are_bounded() {
        let failures = FailureLog::default();
        for number in 0..1_000 {
            assert_eq!(failures.count(&number.to_string()), Some(0));
        }
        assert_eq!(failures.0.lock().unwrap().len(), MAX_CAUSES);
        assert_eq!(failures.count("999"), None);
    }
}
