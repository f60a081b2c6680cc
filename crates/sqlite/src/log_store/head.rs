//! [`Head`]: the row of a log.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{Epoch, LogHead, LogKey};

use super::{unsigned, utf8};
use crate::clock::MAX_SET_BACK;
use crate::error::DbResult;
use crate::owner_key;

/// The key of a log as it is stored.
#[derive(Debug)]
pub(crate) struct KeyColumns {
    pub(crate) owner: String,
    pub(crate) chat: Vec<u8>,
}

impl KeyColumns {
    pub(crate) fn of(key: &LogKey) -> Self {
        KeyColumns { owner: owner_key(&key.owner), chat: key.chat.as_bytes().to_vec() }
    }
}

/// The columns of a log that the store compares.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) key: i64,
    pub(super) epoch: Epoch,
    pub(super) length: i64,
    pub(super) control: i64,
    /// The position of the first entry that is stored.
    pub(super) first: i64,
    /// The position of the snapshot.
    pub(super) folded: Option<i64>,
    pub(super) live: Option<LiveRun>,
}

/// The live run of a log.
#[derive(Debug)]
pub(super) struct LiveRun {
    pub(super) run: RunId,
    pub(super) begin: i64,
    pub(super) lease: i64,
    pub(super) leased_at: i64,
    pub(super) read_at: i64,
    pub(super) has_to_end: bool,
}

impl Head {
    /// Loads a head, unless the time of the log has passed.
    pub(super) fn load(
        connection: &Connection,
        key: &KeyColumns,
        now: i64,
    ) -> DbResult<Option<Self>> {
        let mut statement = connection.prepare_cached(LOAD)?;
        let head = statement.query_row(params![key.owner, key.chat, now], Self::from_row);
        Ok(head.optional()?)
    }

    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let live = match row.get::<_, Option<Vec<u8>>>(6)? {
            None => None,
            Some(run) => Some(LiveRun {
                run: utf8(6, run)?.into(),
                begin: row.get(7)?,
                lease: row.get(8)?,
                leased_at: row.get(9)?,
                read_at: row.get(10)?,
                has_to_end: row.get(11)?,
            }),
        };
        Ok(Head {
            key: row.get(0)?,
            epoch: Epoch(row.get::<_, i64>(1)?.cast_unsigned()),
            length: row.get(2)?,
            control: row.get(3)?,
            first: row.get(4)?,
            folded: row.get(5)?,
            live,
        })
    }

    pub(super) fn log_head(&self, now: i64) -> LogHead {
        let live = self.live.as_ref();
        let unread = live.map_or(0, |live| unsigned(live.unread(now)));
        LogHead {
            epoch: self.epoch,
            length: unsigned(self.length),
            control: unsigned(self.control),
            live_run: live.map(|live| live.run.clone()),
            is_lost: live.is_some_and(|live| live.is_lost(now)),
            unread: Duration::from_millis(unread),
            has_to_end: live.is_some_and(|live| live.has_to_end),
        }
    }
}

impl LiveRun {
    /// Whether the lease has passed.
    pub(super) fn is_lost(&self, now: i64) -> bool {
        is_lost(self.lease, self.leased_at, now)
    }

    /// Returns how long no client has read the run. It is negative if the clock was set back.
    pub(super) fn unread(&self, now: i64) -> i64 {
        unread(self.read_at, now)
    }
}

/// Whether a lease has passed. A lease that was set far in the future was set before the clock was set back.
pub(super) fn is_lost(lease: i64, leased_at: i64, now: i64) -> bool {
    now >= leased_at.saturating_add(lease) || leased_at.saturating_sub(now) > MAX_SET_BACK
}

/// Returns how long a run was not read. A read far in the future was before the clock was set back, and
/// does not count.
pub(super) fn unread(read_at: i64, now: i64) -> i64 {
    match now.saturating_sub(read_at) {
        unread if unread >= -MAX_SET_BACK => unread,
        _ => i64::MAX,
    }
}

const LOAD: &str = "SELECT key, epoch, length, control, first, folded, \
        live_run, begin, lease, leased_at, read_at, has_to_end \
    FROM logs WHERE owner = ?1 AND chat = ?2 AND (expires_at IS NULL OR expires_at > ?3)";
