//! [`Changes`]: wakes those that wait for the next change of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The changes of a run.
#[derive(Debug, Default)]
pub(super) struct Changes {
    count: AtomicU64,
    notify: Notify,
}

impl Changes {
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Waits for the first change after this call.
    pub(super) fn next(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let (changes, seen) = (Arc::clone(self), self.count.load(Ordering::Acquire));
        async move {
            let next = changes.notify.notified();
            if changes.count.load(Ordering::Acquire) == seen {
                next.await;
            }
        }
    }
}
