//! [`Hints`]: wakes the readers of logs and of lists that have changed.

use std::hash::Hash;

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Notify;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::rows::{ENTRIES, Known, Waiters, log_of_row, row_of};
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
    logs: Waiters<LogKey, Watched<Option<Epoch>>>,
    /// By their owners.
    lists: Waiters<Principal, Watched<ListState>>,
    /// The thread that watches has to look at once.
    pub(crate) wanted: Notify,
}

/// The number of chats in a list, and the time and the version of the newest one. A title is not in it.
type ListState = (i64, i64, i64);

/// A log or a list, with its last known state.
#[derive(Debug)]
struct Watched<S> {
    /// `None` before the file was read since a reader waits.
    state: Option<S>,
    /// Whether this process has changed it since the last look.
    is_own: bool,
}

impl Hints {
    /// Waits until a log has more than `length` entries, or may be another one.
    pub(crate) async fn changed(&self, key: &LogKey, length: u64) {
        self.wait(&self.logs, key, length).await;
    }

    /// Waits until the list of an owner may have changed.
    pub(crate) async fn changed_list(&self, owner: &Principal) {
        self.wait(&self.lists, owner, 0).await;
    }

    async fn wait<K, S>(&self, waiters: &Waiters<K, Watched<S>>, key: &K, length: u64)
    where
        K: Clone + Eq + Hash,
    {
        let Some(wait) = waiters.wait(key.clone(), length) else { return };
        if wait.is_first {
            self.wanted.notify_one();
        }
        wait.changed().await;
    }

    /// Adds what this process has changed, and wakes the readers of the log if this is new: its epoch and
    /// its length, or `None` if there is none.
    pub(crate) fn add(&self, key: &LogKey, log: Option<(Epoch, u64)>) {
        self.logs.with(key, |known| {
            known.value.is_own = true;
            found(known, log);
        });
    }

    /// Wakes those who wait for the list of an owner, which this process has changed.
    pub(crate) fn add_list(&self, owner: &Principal) {
        self.lists.with(owner, |known| {
            known.value.is_own = true;
            known.reset();
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.lists.is_empty()
    }

    /// Reads the logs and the lists that readers wait for and that others may have changed, if the file has
    /// changed, and those that were not read yet. One that this process has just changed is left out, and
    /// then this returns `false`: it has to be looked at the next time.
    pub(crate) fn look(&self, connection: &Connection, has_changed: bool) -> DbResult<bool> {
        let (owners, are_lists_complete) = due(&self.lists, has_changed);
        let (keys, are_logs_complete) = due(&self.logs, has_changed);
        for owner in owners {
            let mut statement = connection.prepare_cached(FIND_LIST)?;
            let list = statement
                .query_row([owner_key(&owner)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            let list = list.optional()?.unwrap_or_default();
            self.lists.with(&owner, |known| {
                if known.value.state.replace(list) != Some(list) {
                    known.reset();
                }
            });
        }
        for key in keys {
            let mut find = connection.prepare_cached(FIND)?;
            let (owner, row) = (owner_key(&key.owner), row_of(&key.chat));
            let log = find.query_row(params![owner, row.as_bytes(), ENTRIES], |row| {
                Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Option<i64>>(1)?.map(unsigned)))
            });
            // The readers of a log that cannot be read read it again, and get the error.
            let log = log.optional()?.and_then(|(row, end)| log_of_row(&row, end).ok());
            self.logs.with(&key, |known| found(known, log));
        }
        Ok(are_lists_complete && are_logs_complete)
    }

    /// Forgets the logs and the lists for which no reader has waited since the last call.
    pub(crate) fn forget_idle(&self) {
        self.logs.forget_idle();
        self.lists.forget_idle();
    }
}

impl<S> Default for Watched<S> {
    fn default() -> Self {
        Watched { state: None, is_own: false }
    }
}

/// Returns those that have to be looked at, and whether these are all that others may have changed.
fn due<K, S>(waiters: &Waiters<K, Watched<S>>, has_changed: bool) -> (Vec<K>, bool)
where
    K: Clone + Eq + Hash,
{
    let (mut due, mut is_complete) = (Vec::new(), true);
    waiters.for_each(|key, Known { value, .. }| {
        let is_own = std::mem::take(&mut value.is_own);
        if value.state.is_none() || has_changed && !is_own {
            due.push(key.clone());
        } else {
            is_complete &= !has_changed;
        }
    });
    (due, is_complete)
}

/// A log was found, or there is none.
fn found(known: &mut Known<Watched<Option<Epoch>>>, log: Option<(Epoch, u64)>) {
    let epoch = log.map(|(epoch, _)| epoch);
    let before = known.value.state.replace(epoch).flatten();
    let Some((_, length)) = log else { return known.deleted() };
    if before.is_some() && before != epoch {
        known.reset();
    }
    known.appended(length);
}

const FIND_LIST: &str = "SELECT (SELECT count(*) FROM places WHERE partition = ?1 AND list = 'chats'), at, version \
    FROM places JOIN rows ON rows.partition = ?1 AND name = CAST('h' || member AS BLOB) \
    WHERE places.partition = ?1 AND list = 'chats' ORDER BY at DESC, member DESC LIMIT 1";
/// Logs whose time has passed are there until they are swept.
const FIND: &str = "SELECT body, \
        (SELECT max(position) + 1 FROM items WHERE row_id = rows.id AND sequence = ?3) \
    FROM rows WHERE partition = ?1 AND name = ?2";
