//! [`Hints`]: wakes the readers of logs that have changed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The runs that readers of this process wait for, by the names of their channels.
///
/// An append of this process wakes the readers at once. The [follower](crate::follow) receives the
/// appends of other processes.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<Runs>);

#[derive(Debug, Default)]
struct Runs {
    by_channel: HashMap<String, Hint>,
    /// Whether the follower has a connection.
    is_connected: bool,
}

/// What is known of a run. A reader knows what it has read, so what is known here is a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    pub(crate) length: u64,
    pub(crate) fence: u64,
    /// The log has ended, or the run does not exist.
    pub(crate) is_over: bool,
}

impl Progress {
    /// Reads a message of a channel: three numbers.
    pub(crate) fn parse(message: &str) -> Option<Self> {
        let mut numbers = message.split(' ').map(|number| number.parse::<u64>().ok());
        let (length, fence, is_over) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Progress { length, fence, is_over: is_over > 0 })
    }
}

#[derive(Debug)]
struct Hint {
    known: Progress,
    /// Whether no reader waited at the last look.
    is_idle: bool,
    /// Wakes readers. The value is not used.
    changed: watch::Sender<()>,
}

/// A reader that waits for a run.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) changed: watch::Receiver<()>,
    /// Whether the channel of the run has to be subscribed.
    pub(crate) is_first: bool,
    /// Whether the follower has a connection. Without one, only the changes of this process wake
    /// the reader.
    pub(crate) is_connected: bool,
}

impl Hints {
    /// Begins to wait until a log has more than `after` entries, or may have ended, been taken or
    /// removed. Returns `None` if this is known already.
    pub(crate) fn wait(&self, channel: &str, after: u64) -> Option<Waiting> {
        let mut runs = self.lock();
        let is_connected = runs.is_connected;
        let is_first = !runs.by_channel.contains_key(channel);
        let hint = runs.by_channel.entry(channel.to_owned()).or_insert_with(|| Hint {
            known: Progress { length: after, ..Progress::default() },
            is_idle: false,
            changed: watch::Sender::new(()),
        });
        if hint.known.length > after || hint.known.is_over {
            return None;
        }
        hint.is_idle = false;
        Some(Waiting { changed: hint.changed.subscribe(), is_first, is_connected })
    }

    /// Forgets what is known of a run, and wakes its readers.
    pub(crate) fn forget(&self, channel: &str) {
        if let Some(hint) = self.lock().by_channel.get_mut(channel) {
            hint.known = Progress::default();
            hint.changed.send_replace(());
        }
    }

    /// Returns what is known of a run.
    pub(crate) fn known(&self, channel: &str) -> Progress {
        self.lock().by_channel.get(channel).map(|hint| hint.known).unwrap_or_default()
    }

    /// Adds to what is known of a run, and wakes its readers if this is new.
    pub(crate) fn add(&self, channel: &str, progress: Progress) {
        let mut runs = self.lock();
        let Some(hint) = runs.by_channel.get_mut(channel) else { return };
        let known = Progress {
            length: hint.known.length.max(progress.length),
            fence: hint.known.fence.max(progress.fence),
            is_over: hint.known.is_over || progress.is_over,
        };
        if known != hint.known {
            hint.known = known;
            hint.changed.send_replace(());
        }
    }

    /// Wakes the readers of these runs: from now on each change wakes them.
    pub(crate) fn subscribed(&self, channels: &[String]) {
        let runs = self.lock();
        for hint in channels.iter().filter_map(|channel| runs.by_channel.get(channel)) {
            hint.changed.send_replace(());
        }
    }

    /// Sets whether the follower has a connection. If it has lost it, forgets what is known and
    /// wakes all readers, so that they look for themselves: a Redis that restarts may lose entries.
    pub(crate) fn set_connected(&self, is_connected: bool) {
        let mut runs = self.lock();
        runs.is_connected = is_connected;
        if !is_connected {
            for hint in runs.by_channel.values_mut() {
                hint.known = Progress::default();
                hint.changed.send_replace(());
            }
        }
    }

    /// Returns the channels of all runs.
    pub(crate) fn channels(&self) -> Vec<String> {
        self.lock().by_channel.keys().cloned().collect()
    }

    /// Forgets the runs for which no reader has waited since the last call, and returns their
    /// channels. A reader that reads between two waits loses nothing.
    pub(crate) fn forget_idle(&self) -> Vec<String> {
        let mut forgotten = Vec::new();
        self.lock().by_channel.retain(|channel, hint| {
            let was_idle = hint.is_idle;
            hint.is_idle = hint.changed.receiver_count() == 0;
            let is_kept = !(was_idle && hint.is_idle);
            if !is_kept {
                forgotten.push(channel.clone());
            }
            is_kept
        });
        forgotten
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
