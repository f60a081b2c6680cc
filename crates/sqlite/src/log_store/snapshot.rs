//! [`NewSnapshot`]: the messages that have changed are written.

use rusqlite::{Transaction, params};
use ui_message_stream_chat::store::{Epoch, PutSnapshot, Unchanged};

use super::head::{Head, KeyColumns};
use super::{stored, unsigned};
use crate::error::DbResult;

/// A snapshot to store, with what it needs on another thread.
pub(super) struct NewSnapshot {
    key: KeyColumns,
    epoch: Epoch,
    position: u64,
    head: String,
    unchanged: Option<Unchanged>,
    changed: Vec<String>,
}

impl NewSnapshot {
    pub(super) fn of(put: PutSnapshot<'_>) -> Self {
        NewSnapshot {
            key: KeyColumns::of(put.key),
            epoch: put.epoch,
            position: put.position,
            head: put.head.to_owned(),
            unchanged: put.unchanged,
            changed: put.changed.to_vec(),
        }
    }

    /// Stores the snapshot. Returns whether it may replace the stored one.
    pub(super) fn put(self, transaction: &Transaction<'_>, now: i64) -> DbResult<bool> {
        let Some(log) = Head::load(transaction, &self.key, now)? else { return Ok(false) };
        let folded = log.folded.map(unsigned);
        let is_newer = folded.is_none_or(|folded| folded < self.position);
        let is_in_log = log.epoch == self.epoch && self.position <= unsigned(log.length);
        if !is_newer || !is_in_log {
            return Ok(false);
        }
        let kept = match self.unchanged {
            None => 0,
            Some(base) => {
                let count: i64 =
                    transaction.prepare_cached(COUNT)?.query_row([log.key], |row| row.get(0))?;
                if folded != Some(base.position) || base.messages as u64 > unsigned(count) {
                    return Ok(false);
                }
                stored(base.messages as u64)
            }
        };
        transaction.prepare_cached(REMOVE_MESSAGES)?.execute([log.key, kept])?;
        let mut insert = transaction.prepare_cached(INSERT_MESSAGE)?;
        for (place, body) in (kept..).zip(&self.changed) {
            insert.execute(params![log.key, place, body])?;
        }
        transaction.prepare_cached(PUT)?.execute(params![log.key, self.head])?;
        transaction.prepare_cached(FOLD)?.execute([log.key, stored(self.position)])?;
        Ok(true)
    }
}

/// The places have no gaps.
const COUNT: &str = "SELECT coalesce(max(place) + 1, 0) FROM log_messages WHERE log = ?1";
const REMOVE_MESSAGES: &str = "DELETE FROM log_messages WHERE log = ?1 AND place >= ?2";
const INSERT_MESSAGE: &str = "INSERT INTO log_messages (log, place, body) VALUES (?1, ?2, ?3)";
const PUT: &str = "INSERT INTO log_snapshots (log, head) VALUES (?1, ?2) \
    ON CONFLICT (log) DO UPDATE SET head = excluded.head";
const FOLD: &str = "UPDATE logs SET folded = ?2 WHERE key = ?1";
