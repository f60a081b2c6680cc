//! A subscriber for the spans and events of one test while other tests run in the same process.

use std::sync::LazyLock;

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber, Subscriber, set_default};

/// Sets the subscriber for this thread until the guard is dropped.
///
/// `tracing` stores for each span and event in the code whether a subscriber is interested in it.
/// If the process has only one subscriber, `tracing` asks only the subscriber of the thread that
/// reaches the code first, so a thread of another test could disable a span for this test. With a
/// second subscriber, it asks both.
pub fn subscribe(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
    LazyLock::force(&SECOND);
    set_default(subscriber)
}
