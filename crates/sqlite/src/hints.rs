//! [`Hints`]: wakes the readers of logs that have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use ui_message_stream::chat::log::RunKey;

/// The runs that readers of this process wait for.
///
/// An append of this process wakes the readers at once. The [thread that watches](crate::watch) the
/// file finds the appends of other processes.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    runs: Mutex<HashMap<RunKey, Hint>>,
    #[cfg(feature = "log-store")]
    pub(crate) logs: crate::log_store::hints::LogHints,
    /// The thread that watches has to look at once.
    pub(crate) wanted: Notify,
}

/// What is known of a run. A reader knows what it has read, so what is known here is a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    pub(crate) length: u64,
    pub(crate) fence: u64,
    /// The log has ended, or the run does not exist.
    pub(crate) is_over: bool,
}

#[derive(Debug)]
struct Hint {
    known: Progress,
    /// Whether the file was read since a reader waits.
    is_checked: bool,
    /// Whether this process has changed the run since the last look.
    is_own: bool,
    /// Whether no reader waited at the last look.
    is_idle: bool,
    /// Wakes readers. Each reader that waits has a clone.
    changed: Arc<Notify>,
}

impl Hints {
    /// Waits until a log has more than `after` entries, or may have ended, been taken or removed.
    pub(crate) async fn changed(&self, key: &RunKey, after: u64) {
        let notify;
        let changed = {
            let mut runs = self.lock();
            let hint = match runs.get_mut(key) {
                Some(hint) => hint,
                None => runs.entry(key.clone()).or_insert_with(|| Hint {
                    known: Progress { length: after, ..Progress::default() },
                    is_checked: false,
                    is_own: false,
                    is_idle: false,
                    changed: Arc::default(),
                }),
            };
            if hint.known.length > after || hint.known.is_over {
                return;
            }
            hint.is_idle = false;
            if !hint.is_checked {
                self.wanted.notify_one();
            }
            notify = Arc::clone(&hint.changed);
            // It is notified of each change from here on.
            notify.notified()
        };
        changed.await;
    }

    /// Forgets what is known of a run. Its readers look again.
    pub(crate) fn forget(&self, key: &RunKey) {
        if let Some(hint) = self.lock().remove(key) {
            hint.changed.notify_waiters();
        }
    }

    /// Adds what this process has changed to what is known of a run, and wakes its readers if this is
    /// new.
    pub(crate) fn add(&self, key: &RunKey, progress: Progress) {
        if let Some(hint) = self.lock().get_mut(key) {
            hint.is_own = true;
            hint.add(progress);
        }
    }

    /// The same with what the file says.
    pub(crate) fn add_checked(&self, key: &RunKey, progress: Progress) {
        if let Some(hint) = self.lock().get_mut(key) {
            hint.is_checked = true;
            hint.add(progress);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        #[cfg(feature = "log-store")]
        if !self.logs.is_empty() {
            return false;
        }
        self.lock().is_empty()
    }

    /// Returns the runs that readers wait for and that others may have changed, if the file has
    /// changed, and those that were not checked yet. A run that this process has just changed is left
    /// out, and then the second value is `false`: it has to be looked at the next time.
    pub(crate) fn waited_for(&self, has_changed: bool) -> (Vec<RunKey>, bool) {
        let (mut keys, mut is_complete) = (Vec::new(), true);
        for (key, hint) in self.lock().iter_mut() {
            let is_own = std::mem::take(&mut hint.is_own);
            if !hint.is_checked || has_changed && !is_own {
                keys.push(key.clone());
            } else if has_changed {
                is_complete = false;
            }
        }
        (keys, is_complete)
    }

    /// Forgets the runs for which no reader has waited since the last call. A reader that reads
    /// between two waits loses nothing.
    pub(crate) fn forget_idle(&self) {
        #[cfg(feature = "log-store")]
        self.logs.forget_idle();
        self.lock().retain(|_, hint| {
            let was_idle = hint.is_idle;
            hint.is_idle = Arc::strong_count(&hint.changed) == 1;
            !(was_idle && hint.is_idle)
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, Hint>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hint {
    fn add(&mut self, progress: Progress) {
        let known = Progress {
            length: self.known.length.max(progress.length),
            fence: self.known.fence.max(progress.fence),
            is_over: self.known.is_over || progress.is_over,
        };
        if known != self.known {
            self.known = known;
            self.changed.notify_waiters();
        }
    }
}
