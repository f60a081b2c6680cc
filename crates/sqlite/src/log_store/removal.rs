//! Deletions and the sweep.
//!
//! A log is removed in one step, with its row. The rows of its entries and messages are deleted in short
//! transactions after that, by the deletion, or by the next sweep if the deletion has ended early.

use rusqlite::{Params, Row, Transaction, params};
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{
    Epoch, KEPT_AFTER_END, KEPT_AFTER_LOSS, LeftToServer, LogKey, MAX_ENDED_BYTES, MAX_SWEPT,
};

use super::head::{Head, KeyColumns};
use super::{millis, unsigned, utf8};
use crate::clock::MAX_SET_BACK;
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::{SqliteStore, owner, owner_key, state};

impl SqliteStore {
    pub(super) async fn delete_log(
        &self,
        key: &LogKey,
        epoch: Epoch,
        control: u64,
    ) -> Result<bool, SqliteError> {
        let columns = KeyColumns::of(key);
        let removed = self.write(Durability::Synced, move |transaction: &Transaction<'_>, now| {
            let log = Head::load(transaction, &columns, now)?
                .filter(|log| log.epoch == epoch && unsigned(log.control) == control);
            let Some(log) = log else { return Ok(None) };
            let removed = remove(transaction, now, REMOVE, [log.key])?;
            purge_some(transaction, removed).map(Some)
        });
        let Some(rest) = removed.await? else { return Ok(false) };
        self.inner.hints.add(key, None);
        self.inner.hints.add_list(&key.owner);
        self.purge(rest).await?;
        Ok(true)
    }

    /// Deletes all logs of a user. Returns their number.
    pub(crate) async fn delete_logs(&self, user: &Principal) -> Result<usize, SqliteError> {
        let mut deleted = 0;
        loop {
            let owner = owner_key(user);
            let some = self.write(Durability::Synced, move |transaction: &Transaction<'_>, now| {
                let mut select = transaction.prepare_cached(SOME_OF_USER)?;
                let some =
                    select.query_map(params![owner, now], |row| Ok((row.get(0)?, row.get(1)?)));
                let some: Vec<(i64, bool)> = some?.collect::<Result<_, _>>()?;
                for (log, _) in &some {
                    remove(transaction, now, REMOVE, [log])?;
                }
                Ok(some)
            });
            let some = some.await?;
            self.inner.hints.forget_user(user);
            if some.is_empty() {
                return Ok(deleted);
            }
            deleted += some.iter().filter(|(_, is_there)| *is_there).count();
            self.purge(some.into_iter().map(|(log, _)| log).collect()).await?;
        }
    }

    /// Returns live runs whose lease has passed long ago, and logs that lack a snapshot.
    pub(super) async fn left_to_server(&self) -> Result<LeftToServer, SqliteError> {
        self.read(|transaction, now| {
            let key = |row: &Row<'_>| {
                let chat = utf8(1, row.get(1)?)?.into();
                rusqlite::Result::Ok(LogKey { owner: owner(row.get(0)?)?, chat })
            };
            let until = |time| now.saturating_sub(millis(time));
            let limit = MAX_SWEPT as i64;
            let set_back = now + MAX_SET_BACK;
            let mut lost = transaction.prepare_cached(LOST)?;
            let lost = lost.query_map([until(KEPT_AFTER_LOSS), set_back, limit], |row| {
                Ok((key(row)?, utf8(2, row.get(2)?)?.into()))
            })?;
            let lost_runs = lost.collect::<Result<_, _>>()?;
            let mut old = transaction.prepare_cached(OLD_SNAPSHOTS)?;
            let old = old.query_map([until(KEPT_AFTER_END), set_back, limit], key)?;
            Ok(LeftToServer { lost_runs, old_snapshots: old.collect::<Result<_, _>>()? })
        })
        .await
    }

    pub(super) async fn rename_log(&self, key: &LogKey, title: &str) -> Result<bool, SqliteError> {
        let columns = KeyColumns::of(key);
        let title = title.to_owned();
        let renamed = self.write(Durability::Synced, move |transaction: &Transaction<'_>, now| {
            let Some(log) = Head::load(transaction, &columns, now)? else { return Ok(false) };
            transaction.prepare_cached(RENAME)?.execute(params![log.key, title])?;
            Ok(true)
        });
        let is_renamed = renamed.await?;
        self.inner.hints.add_list(&key.owner);
        Ok(is_renamed)
    }

    /// Deletes what is kept no longer, in short transactions.
    pub(crate) async fn sweep_logs(&self) -> Result<(), SqliteError> {
        // The others are executed also if one fails.
        let removed = self.remove_all_expired().await;
        let forgotten = self.forget_ended().await;
        let purged = self.purge_removed().await;
        let trimmed = self.trim_logs().await;
        removed.and(forgotten).and(purged).and(trimmed)
    }

    async fn remove_all_expired(&self) -> Result<(), SqliteError> {
        let remove_some = |transaction: &Transaction<'_>, now| {
            Ok(remove(transaction, now, REMOVE_EXPIRED, [now])?.len())
        };
        while self.write(Durability::Written, remove_some).await? > 0 {}
        Ok(())
    }

    async fn forget_ended(&self) -> Result<(), SqliteError> {
        let too_many = self.read(|transaction, now| {
            let mut statement = transaction.prepare_cached(NEWEST_BEYOND_BYTES)?;
            let limits = [now + MAX_SET_BACK, MAX_ENDED_BYTES as i64];
            Ok(statement.query_row(limits, |row| row.get::<_, Option<i64>>(0))?)
        });
        let too_many = too_many.await?.unwrap_or(i64::MIN);
        let forget_some = move |transaction: &Transaction<'_>, now: i64| {
            let until = now.saturating_sub(millis(KEPT_AFTER_END)).max(too_many);
            let mut forget = transaction.prepare_cached(FORGET_ENDED)?;
            Ok(forget.execute([until, now + MAX_SET_BACK])?)
        };
        while self.write(Durability::Written, forget_some).await? > 0 {}
        Ok(())
    }

    async fn trim_logs(&self) -> Result<(), SqliteError> {
        let logs = self.read(|transaction, _| keys(transaction, TO_TRIM, [])).await?;
        for log in logs {
            let trim = move |transaction: &Transaction<'_>, _: i64| {
                Ok(transaction.prepare_cached(TRIM)?.execute([log])? > 0
                    && transaction.prepare_cached(DELETE_TRIMMED)?.execute([log])? > 0)
            };
            while self.write(Durability::Written, trim).await? {}
        }
        Ok(())
    }

    /// Deletes the rows of all logs that were removed.
    pub(crate) async fn purge_removed(&self) -> Result<(), SqliteError> {
        loop {
            let removed = self.read(|transaction, _| keys(transaction, REMOVED, [])).await?;
            if removed.is_empty() {
                return Ok(());
            }
            self.purge(removed).await?;
        }
    }

    /// Deletes the rows of logs that were removed.
    async fn purge(&self, mut removed: Vec<i64>) -> Result<(), SqliteError> {
        while !removed.is_empty() {
            let purge =
                move |transaction: &Transaction<'_>, _: i64| purge_some(transaction, removed);
            removed = self.write(Durability::Written, purge).await?;
        }
        Ok(())
    }
}

/// Removes a log whose time has passed, and which may still be there.
pub(super) fn remove_expired(
    transaction: &Transaction<'_>,
    key: &KeyColumns,
    now: i64,
) -> DbResult<()> {
    remove(transaction, now, REMOVE_KEY, params![key.owner, key.chat]).map(drop)
}

/// Removes the logs that a statement deletes. Returns their keys.
fn remove(
    transaction: &Transaction<'_>,
    now: i64,
    delete: &str,
    values: impl Params,
) -> DbResult<Vec<i64>> {
    // A trigger reads the time.
    state::keep_time(transaction, now)?;
    let removed = keys(transaction, delete, values)?;
    let mut insert = transaction.prepare_cached("INSERT INTO removed_logs (log) VALUES (?1)")?;
    for log in &removed {
        insert.execute([log])?;
    }
    Ok(removed)
}

fn keys(transaction: &Transaction<'_>, statement: &str, values: impl Params) -> DbResult<Vec<i64>> {
    let mut statement = transaction.prepare_cached(statement)?;
    let keys = statement.query_map(values, |row| row.get(0))?;
    Ok(keys.collect::<Result<_, _>>()?)
}

/// Deletes rows of removed logs. Returns the logs that may have more.
fn purge_some(transaction: &Transaction<'_>, mut removed: Vec<i64>) -> DbResult<Vec<i64>> {
    let mut left = MAX_ROWS;
    while left > 0
        && let Some(log) = removed.last()
    {
        for delete in [PURGE_ENTRIES, PURGE_MESSAGES] {
            let deleted = transaction.prepare_cached(delete)?.execute([*log, left])?;
            left -= i64::try_from(deleted).unwrap_or(left);
        }
        if left > 0 {
            for delete in [PURGE_SNAPSHOT, PURGE_ENDED_RUNS, FORGET_REMOVED] {
                transaction.prepare_cached(delete)?.execute([log])?;
            }
            left -= 1;
            removed.pop();
        }
    }
    Ok(removed)
}

/// Whether the snapshot of a log without a live run is not of the whole log.
macro_rules! has_old_snapshot {
    () => {
        "live_run IS NULL AND coalesce(folded, 0) < length"
    };
}

const REMOVE: &str = "DELETE FROM logs WHERE key = ?1 RETURNING key";
const REMOVE_KEY: &str = "DELETE FROM logs WHERE owner = ?1 AND chat = ?2 RETURNING key";
const REMOVE_EXPIRED: &str = "DELETE FROM logs WHERE key IN \
    (SELECT key FROM logs WHERE expires_at <= ?1 LIMIT 100) RETURNING key";
/// With whether their time has not passed.
const SOME_OF_USER: &str = "SELECT key, expires_at IS NULL OR expires_at > ?2 FROM logs \
    WHERE owner = ?1 LIMIT 100";
/// A lease that begins far in the future was renewed before the clock was set back. In any order, so that those that
/// cannot be ended do not hide the others.
const LOST: &str = "SELECT owner, chat, live_run FROM logs INDEXED BY live_logs \
    WHERE live_run IS NOT NULL AND (leased_at + lease <= ?1 OR leased_at > ?2) \
    ORDER BY random() LIMIT ?3";
/// The ended runs that [`FORGET_ENDED`] leaves.
const OLD_SNAPSHOTS: &str = concat!(
    "SELECT owner, chat FROM (SELECT DISTINCT log FROM log_ended_runs \
        WHERE ended_at <= ?1 OR ended_at > ?2) JOIN logs ON key = log WHERE ",
    has_old_snapshot!(),
    " ORDER BY random() LIMIT ?3"
);
const RENAME: &str = "UPDATE logs SET title = ?2, is_renamed = 1 WHERE key = ?1";
const REMOVED: &str = "SELECT log FROM removed_logs LIMIT 1000";
const PURGE_ENTRIES: &str = "DELETE FROM log_entries WHERE log = ?1 AND position < ?2 + \
    (SELECT min(position) FROM log_entries WHERE log = ?1)";
const PURGE_MESSAGES: &str = "DELETE FROM log_messages WHERE log = ?1 AND place < ?2 + \
    (SELECT min(place) FROM log_messages WHERE log = ?1)";
const PURGE_SNAPSHOT: &str = "DELETE FROM log_snapshots WHERE log = ?1";
const PURGE_ENDED_RUNS: &str = "DELETE FROM log_ended_runs WHERE log = ?1";
const FORGET_REMOVED: &str = "DELETE FROM removed_logs WHERE log = ?1";
/// When the newest run has ended that is too many, with its bytes and those of newer ones. Those that have ended in the
/// same millisecond go with it.
const NEWEST_BEYOND_BYTES: &str = "SELECT max(ended_at) FROM (SELECT ended_at, \
        sum(bytes) OVER (ORDER BY ended_at DESC, log, begin) AS newer FROM log_ended_runs \
        WHERE ended_at <= ?1) WHERE newer > ?2";
/// Those that have ended far in the future have ended before the clock was set back.
const FORGET_ENDED: &str = concat!(
    "DELETE FROM log_ended_runs WHERE (log, begin) IN (SELECT log, begin FROM log_ended_runs \
        WHERE (ended_at <= ?1 OR ended_at > ?2) AND NOT EXISTS \
            (SELECT 1 FROM logs WHERE key = log AND ",
    has_old_snapshot!(),
    ") LIMIT 200)"
);

/// The position before which the entries of a log are not needed: neither for the snapshot, nor by readers
/// of its runs.
macro_rules! needed_from {
    () => {
        "min(folded, coalesce(begin, length), \
            coalesce((SELECT min(begin) FROM log_ended_runs WHERE log = key), length))"
    };
}
const TO_TRIM: &str = concat!(
    "SELECT key FROM logs INDEXED BY logs_to_trim WHERE first < folded AND first < ",
    needed_from!()
);
/// At most as many entries as a transaction may delete.
const TRIM: &str = concat!(
    "UPDATE logs SET first = min(first + 500, ",
    needed_from!(),
    ") WHERE key = ?1 AND first < ",
    needed_from!()
);
const DELETE_TRIMMED: &str = "DELETE FROM log_entries WHERE log = ?1 \
    AND position < (SELECT first FROM logs WHERE key = ?1)";

/// How many rows a transaction deletes at most.
const MAX_ROWS: i64 = 500;
