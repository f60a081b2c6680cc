//! [`Hints`]: wakes the readers of logs that have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Notify;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::store::{Epoch, LogKey};

use crate::error::DbResult;
use crate::log_store::{KeyColumns, unsigned};

/// The logs that readers of this process wait for.
///
/// An append of this process wakes the readers at once. The [thread that watches](crate::watch) the
/// file finds the appends of other processes.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    logs: Mutex<HashMap<LogKey, Hint>>,
    /// The thread that watches has to look at once.
    pub(crate) wanted: Notify,
}

/// What is known of a log. A reader knows what it has read, so what is known here is a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Only that a reader has read this number of entries.
    Read(u64),
    Log(Epoch, u64),
    NoLog,
}

#[derive(Debug)]
struct Hint {
    known: Known,
    /// Whether the file was read since a reader waits.
    is_checked: bool,
    /// Whether this process has changed the log since the last look.
    is_own: bool,
    /// Whether no reader waited at the last look.
    is_idle: bool,
    /// Wakes readers. Each reader that waits has a clone.
    changed: Arc<Notify>,
}

impl Hints {
    /// Waits until a log has more than `length` entries, or may be another one.
    pub(crate) async fn changed(&self, key: &LogKey, length: u64) {
        let notify;
        let changed = {
            let mut logs = self.lock();
            let hint = match logs.get_mut(key) {
                Some(hint) => hint,
                None => logs.entry(key.clone()).or_insert_with(|| Hint {
                    known: Known::Read(length),
                    is_checked: false,
                    is_own: false,
                    is_idle: false,
                    changed: Arc::default(),
                }),
            };
            match hint.known {
                Known::NoLog => return,
                Known::Read(known) | Known::Log(_, known) if known > length => return,
                _ => {}
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

    /// Adds what this process has changed, and wakes the readers of the log if this is new: its epoch and
    /// its length, or `None` if there is none.
    pub(crate) fn add(&self, key: &LogKey, log: Option<(Epoch, u64)>) {
        if let Some(hint) = self.lock().get_mut(key) {
            hint.is_own = true;
            hint.add(log);
        }
    }

    /// Forgets what is known of the logs of a user. Their readers look again.
    pub(crate) fn forget_user(&self, user: &Principal) {
        for (_, hint) in self.lock().extract_if(|key, _| key.owner == *user) {
            hint.changed.notify_waiters();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Reads the logs that readers wait for and that others may have changed, if the file has changed, and
    /// those that were not checked yet. A log that this process has just changed is left out, and then this
    /// returns `false`: it has to be looked at the next time.
    pub(crate) fn look(&self, connection: &Connection, has_changed: bool) -> DbResult<bool> {
        let (mut keys, mut is_complete) = (Vec::new(), true);
        for (key, hint) in self.lock().iter_mut() {
            let is_own = std::mem::take(&mut hint.is_own);
            if !hint.is_checked || has_changed && !is_own {
                keys.push(key.clone());
            } else if has_changed {
                is_complete = false;
            }
        }
        for key in keys {
            let KeyColumns { owner, chat } = KeyColumns::of(&key);
            let found = connection.prepare_cached(FIND)?.query_row(params![owner, chat], |row| {
                let epoch: i64 = row.get(0)?;
                Ok((Epoch(epoch.cast_unsigned()), unsigned(row.get(1)?)))
            });
            let found = found.optional()?;
            if let Some(hint) = self.lock().get_mut(&key) {
                hint.is_checked = true;
                hint.add(found);
            }
        }
        Ok(is_complete)
    }

    /// Forgets the logs for which no reader has waited since the last call. A reader that reads between two
    /// waits loses nothing.
    pub(crate) fn forget_idle(&self) {
        self.lock().retain(|_, hint| {
            let was_idle = hint.is_idle;
            hint.is_idle = Arc::strong_count(&hint.changed) == 1;
            !(was_idle && hint.is_idle)
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LogKey, Hint>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hint {
    fn add(&mut self, log: Option<(Epoch, u64)>) {
        let (is_new, known) = match (log, self.known) {
            (None, known) => (known != Known::NoLog, Known::NoLog),
            (Some((epoch, length)), Known::Read(read)) => {
                (length > read, Known::Log(epoch, length.max(read)))
            }
            (Some((epoch, length)), Known::Log(same, known)) if same == epoch => {
                (length > known, Known::Log(epoch, length.max(known)))
            }
            (Some((epoch, length)), _) => (true, Known::Log(epoch, length)),
        };
        self.known = known;
        if is_new {
            self.changed.notify_waiters();
        }
    }
}

/// Logs whose time has passed are there until they are swept.
const FIND: &str = "SELECT epoch, length FROM logs WHERE owner = ?1 AND chat = ?2";
