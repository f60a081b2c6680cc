//! [`Hints`]: wakes the readers of logs and of lists that have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Notify;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::rows::{ENTRIES, log_of_row, row_of};
use ui_message_stream_chat::store::{Epoch, LogKey};

use crate::error::DbResult;
use crate::owner_key;
use crate::rows::unsigned;

/// The logs and the lists that readers of this process wait for.
///
/// An append of this process wakes the readers at once. The [thread that watches](crate::watch) the
/// file finds the appends of other processes.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    waited: Mutex<Waited>,
    /// The thread that watches has to look at once.
    pub(crate) wanted: Notify,
}

#[derive(Debug, Default)]
struct Waited {
    logs: HashMap<LogKey, Hint>,
    /// By their owners.
    lists: HashMap<Principal, Hint>,
}

/// What is known of a log. A reader knows what it has read, so what is known here is a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Only that a reader has read this number of entries.
    Read(u64),
    Log(Epoch, u64),
    NoLog,
    UnknownList,
    List(ListState),
}

/// The number of chats in a list, and the time and the version of the newest one. A title is not in it.
type ListState = (i64, i64, i64);

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
            let logs = &mut self.lock().logs;
            let hint = match logs.get_mut(key) {
                Some(hint) => hint,
                None => logs.entry(key.clone()).or_insert_with(|| Hint::new(Known::Read(length))),
            };
            match hint.known {
                Known::NoLog => return,
                Known::Read(known) | Known::Log(_, known) if known > length => return,
                _ => {}
            }
            notify = hint.wait(&self.wanted);
            // It is notified of each change from here on.
            notify.notified()
        };
        changed.await;
    }

    /// Waits until the list of an owner may have changed.
    pub(crate) async fn changed_list(&self, owner: &Principal) {
        let notify;
        let changed = {
            let lists = &mut self.lock().lists;
            let new = || Hint::new(Known::UnknownList);
            notify = lists.entry(owner.clone()).or_insert_with(new).wait(&self.wanted);
            notify.notified()
        };
        changed.await;
    }

    /// Adds what this process has changed, and wakes the readers of the log if this is new: its epoch and
    /// its length, or `None` if there is none.
    pub(crate) fn add(&self, key: &LogKey, log: Option<(Epoch, u64)>) {
        if let Some(hint) = self.lock().logs.get_mut(key) {
            hint.is_own = true;
            hint.add(log);
        }
    }

    /// Wakes those who wait for the list of an owner, which this process has changed.
    pub(crate) fn add_list(&self, owner: &Principal) {
        if let Some(hint) = self.lock().lists.get_mut(owner) {
            hint.is_own = true;
            hint.changed.notify_waiters();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let waited = self.lock();
        waited.logs.is_empty() && waited.lists.is_empty()
    }

    /// Reads the logs and the lists that readers wait for and that others may have changed, if the file has
    /// changed, and those that were not checked yet. One that this process has just changed is left out, and
    /// then this returns `false`: it has to be looked at the next time.
    pub(crate) fn look(&self, connection: &Connection, has_changed: bool) -> DbResult<bool> {
        let mut keys = Vec::new();
        let mut owners = Vec::new();
        let mut is_complete = true;
        let mut is_looked_at = |hint: &mut Hint| {
            let is_own = std::mem::take(&mut hint.is_own);
            let is_looked_at = !hint.is_checked || has_changed && !is_own;
            is_complete &= is_looked_at || !has_changed;
            is_looked_at
        };
        {
            let Waited { logs, lists } = &mut *self.lock();
            let logs = logs.iter_mut().filter_map(|(key, hint)| is_looked_at(hint).then_some(key));
            keys.extend(logs.cloned());
            let lists =
                lists.iter_mut().filter_map(|(key, hint)| is_looked_at(hint).then_some(key));
            owners.extend(lists.cloned());
        }
        for owner in owners {
            let mut statement = connection.prepare_cached(FIND_LIST)?;
            let found = statement
                .query_row([owner_key(&owner)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            let found = found.optional()?.unwrap_or_default();
            if let Some(hint) = self.lock().lists.get_mut(&owner) {
                hint.is_checked = true;
                hint.set(Known::List(found), hint.known != Known::List(found));
            }
        }
        for key in keys {
            let mut find = connection.prepare_cached(FIND)?;
            let (owner, row) = (owner_key(&key.owner), row_of(&key.chat));
            let found = find.query_row(params![owner, row.as_bytes(), ENTRIES], |row| {
                Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Option<i64>>(1)?.map(unsigned)))
            });
            // The readers of a log that cannot be read read it again, and get the error.
            let found = found.optional()?.and_then(|(row, end)| log_of_row(&row, end).ok());
            if let Some(hint) = self.lock().logs.get_mut(&key) {
                hint.is_checked = true;
                hint.add(found);
            }
        }
        Ok(is_complete)
    }

    /// Forgets the logs and the lists for which no reader has waited since the last call. A reader that reads
    /// between two waits loses nothing.
    pub(crate) fn forget_idle(&self) {
        let mut waited = self.lock();
        waited.logs.retain(|_, hint| hint.is_kept());
        waited.lists.retain(|_, hint| hint.is_kept());
    }

    fn lock(&self) -> MutexGuard<'_, Waited> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hint {
    fn new(known: Known) -> Self {
        let changed = Arc::default();
        Hint { known, is_checked: false, is_own: false, is_idle: false, changed }
    }

    /// A reader begins to wait.
    fn wait(&mut self, wanted: &Notify) -> Arc<Notify> {
        self.is_idle = false;
        if !self.is_checked {
            wanted.notify_one();
        }
        Arc::clone(&self.changed)
    }

    /// Whether a reader waits, or has waited at the last call.
    fn is_kept(&mut self) -> bool {
        let was_idle = self.is_idle;
        self.is_idle = Arc::strong_count(&self.changed) == 1;
        !(was_idle && self.is_idle)
    }

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
        self.set(known, is_new);
    }

    fn set(&mut self, known: Known, is_new: bool) {
        self.known = known;
        if is_new {
            self.changed.notify_waiters();
        }
    }
}

const FIND_LIST: &str = "SELECT (SELECT count(*) FROM places WHERE partition = ?1 AND list = 'chats'), at, version \
    FROM places JOIN rows ON rows.partition = ?1 AND name = CAST('h' || member AS BLOB) \
    WHERE places.partition = ?1 AND list = 'chats' ORDER BY at DESC, member DESC LIMIT 1";
/// Logs whose time has passed are there until they are swept.
const FIND: &str = "SELECT body, \
        (SELECT max(position) + 1 FROM items WHERE row_id = rows.id AND sequence = ?3) \
    FROM rows WHERE partition = ?1 AND name = ?2";
