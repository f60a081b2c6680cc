//! A subscriber for what one test traces, beside other tests in the same process.

use std::sync::LazyLock;

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber, Subscriber, set_default};

/// Gives a subscriber what this thread traces, until the guard is dropped.
///
/// `tracing` remembers for each span and event in the code whether a subscriber wants it. While the
/// process has one subscriber, it asks only the thread that comes there first, so a thread of another
/// test could turn a span off for this one. Beside a second subscriber, it asks both.
pub fn subscribe(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
    LazyLock::force(&SECOND);
    set_default(subscriber)
}
