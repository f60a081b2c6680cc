//! The clock of the system.

use std::time::{SystemTime, UNIX_EPOCH};

use ui_message_stream::approval::UnixMillis;

/// Returns the time of the system's clock.
#[expect(clippy::disallowed_methods, reason = "the glue hands the core the time")]
pub(crate) fn system_time() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(since.as_millis().try_into().unwrap_or(u64::MAX))
}
