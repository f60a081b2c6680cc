//! [`Hints`]: wakes the readers of logs that have changed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The logs that readers of this process wait for, by the names of their channels.
///
/// An append of this process wakes the readers at once. The [follower](crate::follow) receives the
/// appends of other processes.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<Logs>);

#[derive(Debug, Default)]
struct Logs {
    by_channel: HashMap<String, Hint>,
    /// Whether the follower has a connection.
    is_connected: bool,
}

#[derive(Debug)]
struct Hint {
    /// The number of entries that is known. A reader knows what it has read, so this is a lower bound.
    known: u64,
    /// Whether no reader waited at the last look.
    is_idle: bool,
    /// Wakes readers. The value is not used.
    changed: watch::Sender<()>,
}

/// A reader that waits for a log.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) changed: watch::Receiver<()>,
    /// Whether the channel of the log has to be subscribed.
    pub(crate) is_first: bool,
    /// Whether the follower has a connection. Without one, only the changes of this process wake
    /// the reader.
    pub(crate) is_connected: bool,
}

impl Hints {
    /// Begins to wait until a log has more than `after` entries, or may be another one. Returns `None` if it
    /// is known to have more already.
    pub(crate) fn wait(&self, channel: &str, after: u64) -> Option<Waiting> {
        let mut logs = self.lock();
        let is_connected = logs.is_connected;
        let is_first = !logs.by_channel.contains_key(channel);
        let hint = logs.by_channel.entry(channel.to_owned()).or_insert_with(|| Hint {
            known: after,
            is_idle: false,
            changed: watch::Sender::new(()),
        });
        if hint.known > after {
            return None;
        }
        hint.is_idle = false;
        Some(Waiting { changed: hint.changed.subscribe(), is_first, is_connected })
    }

    /// Forgets what is known of a log, and wakes its readers.
    pub(crate) fn forget(&self, channel: &str) {
        if let Some(hint) = self.lock().by_channel.get_mut(channel) {
            hint.known = 0;
            hint.changed.send_replace(());
        }
    }

    /// Returns the number of entries that a log is known to have.
    pub(crate) fn known(&self, channel: &str) -> u64 {
        self.lock().by_channel.get(channel).map_or(0, |hint| hint.known)
    }

    /// Notes that a log has so many entries, and wakes its readers if this is new.
    pub(crate) fn add(&self, channel: &str, length: u64) {
        let mut logs = self.lock();
        if let Some(hint) = logs.by_channel.get_mut(channel)
            && hint.known < length
        {
            hint.known = length;
            hint.changed.send_replace(());
        }
    }

    /// Wakes the readers of these logs: from now on each change wakes them.
    pub(crate) fn subscribed(&self, channels: &[String]) {
        let logs = self.lock();
        for hint in channels.iter().filter_map(|channel| logs.by_channel.get(channel)) {
            hint.changed.send_replace(());
        }
    }

    /// Sets whether the follower has a connection. If it has lost it, forgets what is known and
    /// wakes all readers, so that they look for themselves: a Redis that restarts may lose entries.
    pub(crate) fn set_connected(&self, is_connected: bool) {
        let mut logs = self.lock();
        logs.is_connected = is_connected;
        if !is_connected {
            for hint in logs.by_channel.values_mut() {
                hint.known = 0;
                hint.changed.send_replace(());
            }
        }
    }

    /// Returns the channels of all logs.
    pub(crate) fn channels(&self) -> Vec<String> {
        self.lock().by_channel.keys().cloned().collect()
    }

    /// Forgets the logs for which no reader has waited since the last call, and returns their
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

    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
