//! [`Retries`]: how often an operation of a store is repeated, and the pauses between the attempts.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::sleep;

/// Counts the failures of an operation. The pause after each failure is longer than the one before,
/// up to 2 s.
#[derive(Debug)]
pub(crate) struct Retries {
    failures: u32,
    max_failures: u32,
}

impl Retries {
    /// Creates the count of an operation that ends after this number of failures.
    pub(crate) fn new(max_failures: u32) -> Self {
        Retries { failures: 0, max_failures }
    }

    /// Waits until the operation may be repeated. `operation` names it in the log.
    ///
    /// # Errors
    /// The error, if the operation has failed too often.
    pub(crate) async fn pause<E: Display>(
        &mut self,
        error: E,
        operation: &'static str,
    ) -> Result<(), E> {
        self.failures += 1;
        if self.failures >= self.max_failures {
            return Err(error);
        }
        tracing::warn!(%error, operation, "an operation of a store has failed, and is repeated");
        sleep(RETRY_INTERVAL * self.failures.min(10)).await;
        Ok(())
    }
}

/// How many failures end an operation. The pauses between them are 29 s together.
pub(crate) const MAX_FAILURES: u32 = 20;

/// The pause after the first failure, and how much longer each pause is than the one before.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(200);
