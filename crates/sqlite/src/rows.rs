//! [`Rows`] of a [`SqliteStore`]: a row for each row, for each item of a sequence, and for each member of a list.
//!
//! The items of a row that was deleted, and that are many, are deleted in short transactions after that.

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream_chat::store::rows::{
    Found, Item, KnownLogs, Read, Reply, Rows, Sequence, Step, Write,
};
use ui_message_stream_chat::store::{ChatStoreError, LogKey, MAX_ENDED_BYTES};

use crate::clock::unix_millis;
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::writer::Operation;
use crate::{SqliteStore, state};

impl Rows for SqliteStore {
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>> {
        Box::pin(async move { self.run_steps(steps).await.map_err(ChatStoreError::new) })
    }

    fn now(&self) -> Option<UnixMillis> {
        Some(unix_millis(self.inner.clock.now(0)))
    }

    fn known(&self) -> &KnownLogs {
        &self.inner.known
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move { self.ping().await.map_err(ChatStoreError::new) })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move {
            let rest = self.sweep_rest().await;
            self.purge_removed().await.and(rest).map_err(ChatStoreError::new)
        })
    }

    fn max_ended_bytes(&self) -> usize {
        MAX_ENDED_BYTES
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(key, length))
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed_list(owner))
    }
}

impl SqliteStore {
    async fn run_steps(&self, steps: Vec<Step>) -> Result<Vec<Reply>, SqliteError> {
        if steps.iter().all(|step| step.writes.is_empty()) {
            let run = move |transaction: &Transaction<'_>, now| {
                steps.iter().map(|step| run(transaction, step, now, &mut Vec::new())).collect()
            };
            return self.read(run).await;
        }
        let hints: Vec<_> = steps.iter().map(|step| step.hints.clone()).collect();
        let can_wait = steps.iter().all(|step| step.can_wait);
        let durability = if can_wait { Durability::Written } else { Durability::Synced };
        let (replies, removed) = self.write(durability, Steps(steps)).await?;
        for (hints, reply) in hints.into_iter().zip(&replies) {
            for hint in hints.into_iter().filter(|_| reply.is_applied) {
                self.inner.hints.add(&hint.key, hint.log);
                if hint.is_list {
                    self.inner.hints.add_list(&hint.key.owner);
                }
            }
        }
        self.purge(removed).await?;
        Ok(replies)
    }

    /// Deletes the items of all rows that were deleted.
    pub(crate) async fn purge_removed(&self) -> Result<(), SqliteError> {
        loop {
            let removed = self.read(|transaction, _| {
                let mut statement = transaction.prepare_cached(REMOVED)?;
                let removed = statement.query_map([], |row| row.get(0))?;
                Ok(removed.collect::<Result<Vec<i64>, _>>()?)
            });
            let removed = removed.await?;
            if removed.is_empty() {
                return Ok(());
            }
            self.purge(removed).await?;
        }
    }

    async fn purge(&self, mut removed: Vec<i64>) -> Result<(), SqliteError> {
        while !removed.is_empty() {
            let purge =
                move |transaction: &Transaction<'_>, _: i64| purge_some(transaction, removed);
            removed = self.write(Durability::Written, purge).await?;
        }
        Ok(())
    }
}

/// Steps of one transaction.
struct Steps(Vec<Step>);

impl Operation<(Vec<Reply>, Vec<i64>)> for Steps {
    fn is_frames(&self) -> bool {
        // Once a second, the row has a new lease.
        let is_frame = |write: &Write| matches!(write, Write::Push { .. } | Write::Put(..));
        let is_push = |write: &Write| matches!(write, Write::Push { .. });
        self.0.iter().all(|step| {
            step.can_wait && step.writes.iter().all(is_frame) && step.writes.iter().any(is_push)
        })
    }

    fn run(self, transaction: &Transaction<'_>, now: i64) -> DbResult<(Vec<Reply>, Vec<i64>)> {
        let mut removed = Vec::new();
        if !self.is_frames() {
            state::keep_time(transaction, now)?;
        }
        let replies = self.0.iter().map(|step| run(transaction, step, now, &mut removed));
        let replies = replies.collect::<Result<_, _>>()?;
        Ok((replies, purge_some(transaction, removed)?))
    }
}

/// Runs a step. Rows that are deleted go to `removed`.
fn run(
    transaction: &Transaction<'_>,
    step: &Step,
    now: i64,
    removed: &mut Vec<i64>,
) -> DbResult<Reply> {
    let is_applied = is_expected(transaction, step)?;
    if is_applied {
        for write in &step.writes {
            apply(transaction, &step.partition, write, removed)?;
        }
    }
    let found = step.reads.iter().map(|read| find(transaction, &step.partition, read));
    let found = found.collect::<Result<_, _>>()?;
    Ok(Reply { now: unix_millis(now), is_applied, found })
}

fn is_expected(transaction: &Transaction<'_>, step: &Step) -> DbResult<bool> {
    for (row, expected) in &step.expected {
        let version = find_row(transaction, &step.partition, row)?.map_or(0, |row| row.version);
        if version != *expected {
            return Ok(false);
        }
    }
    for write in &step.writes {
        let Write::Push { row, sequence, first, at, .. } = write else { continue };
        let id = find_row(transaction, &step.partition, row)?.map(|row| row.id);
        let is_accepted = match (id, at) {
            (None, at) => at.is_none() && step.puts(row),
            (Some(_), None) => true,
            (Some(id), Some(at)) => end(transaction, id, *sequence)?.unwrap_or(*first) == *at,
        };
        if !is_accepted {
            return Ok(false);
        }
    }
    Ok(true)
}

fn apply(
    transaction: &Transaction<'_>,
    partition: &str,
    write: &Write,
    removed: &mut Vec<i64>,
) -> DbResult<()> {
    match write {
        Write::Put(row, version, body) => {
            let values = params![partition, row.as_bytes(), stored(*version), &body[..]];
            if transaction.prepare_cached(UPDATE)?.execute(values)? == 0 {
                transaction.prepare_cached(INSERT)?.execute(values)?;
            }
        }
        Write::Delete(row) => {
            let mut delete = transaction.prepare_cached(DELETE)?;
            let id = delete.query_row(params![partition, row.as_bytes()], |row| row.get(0));
            if let Some(id) = id.optional()? {
                transaction.prepare_cached(REMOVE)?.execute([id])?;
                removed.push(id);
            }
        }
        Write::Push { row, sequence, first, items, .. } => {
            let Some(row) = find_row(transaction, partition, row)? else { return Ok(()) };
            let end = end(transaction, row.id, *sequence)?.unwrap_or(*first);
            let mut insert = transaction.prepare_cached(INSERT_ITEM)?;
            for (position, item) in (end..).zip(items) {
                let body = &item.bytes[..];
                insert.execute(params![row.id, sequence, stored(position), item.kind, body])?;
            }
        }
        Write::Keep { row, sequence, from, until } => {
            let Some(row) = find_row(transaction, partition, row)? else { return Ok(()) };
            for (delete, limit) in [(DELETE_BEFORE, from), (DELETE_FROM, until)] {
                let values = params![row.id, sequence, stored(*limit)];
                transaction.prepare_cached(delete)?.execute(values)?;
            }
        }
        Write::Move { list, member, from, to } => {
            for (change, at) in [(LEAVE, from), (ENTER, to)] {
                if let Some(at) = at {
                    let values = params![partition, list, stored(*at), member.as_bytes()];
                    transaction.prepare_cached(change)?.execute(values)?;
                }
            }
        }
    }
    Ok(())
}

fn find(transaction: &Transaction<'_>, partition: &str, read: &Read) -> DbResult<Found> {
    let id = |row: &str| DbResult::Ok(find_row(transaction, partition, row)?.map(|row| row.id));
    Ok(match read {
        Read::Row(row) => {
            let mut find = transaction.prepare_cached(FIND)?;
            let row = find.query_row(params![partition, row.as_bytes()], |row| {
                Ok((unsigned(row.get(1)?), bytes(row, 2)?))
            });
            Found::Row(row.optional()?)
        }
        Read::End(row, sequence) => Found::End(match id(row)? {
            Some(id) => end(transaction, id, *sequence)?,
            None => None,
        }),
        Read::Items { row, sequence, from, max_bytes, only_marked } => {
            let mut page = Vec::new();
            let Some(id) = id(row)? else { return Ok(Found::Items(page)) };
            let items = if *only_marked { MARKED_ITEMS } else { ITEMS };
            let mut items = transaction.prepare_cached(items)?;
            let mut rows = items.query(params![id, sequence, stored(*from)])?;
            let mut sum = 0_usize;
            while let Some(row) = rows.next()? {
                let item = Item { kind: row.get(1)?, bytes: bytes(row, 2)? };
                sum = sum.saturating_add(item.bytes.len());
                if !page.is_empty() && sum > *max_bytes {
                    break;
                }
                page.push((unsigned(row.get(0)?), item));
            }
            Found::Items(page)
        }
        Read::Members { list, after, is_descending, limit } => {
            let members = if *is_descending { LAST_MEMBERS } else { FIRST_MEMBERS };
            let (at, member) = match after {
                Some((at, member)) if *at <= i64::MAX as u64 => (stored(*at), member.as_bytes()),
                None if !is_descending => (-1, &[][..]),
                // After all places: no member has this byte.
                _ => (i64::MAX, &[0xff][..]),
            };
            let mut members = transaction.prepare_cached(members)?;
            let values = params![partition, list, at, member, stored(*limit as u64)];
            let members = members.query_map(values, |row| {
                let member = String::from_utf8(row.get(1)?);
                Ok((unsigned(row.get(0)?), member.map_err(|_| rusqlite::Error::InvalidQuery)?))
            })?;
            Found::Members(members.collect::<Result<_, _>>()?)
        }
    })
}

struct FoundRow {
    id: i64,
    version: u64,
}

fn find_row(
    transaction: &Transaction<'_>,
    partition: &str,
    row: &str,
) -> DbResult<Option<FoundRow>> {
    let mut find = transaction.prepare_cached(FIND_VERSION)?;
    let row = find.query_row(params![partition, row.as_bytes()], |row| {
        Ok(FoundRow { id: row.get(0)?, version: unsigned(row.get(1)?) })
    });
    Ok(row.optional()?)
}

/// Returns the position after the last item of a sequence.
fn end(transaction: &Transaction<'_>, row: i64, sequence: Sequence) -> DbResult<Option<u64>> {
    let mut end = transaction.prepare_cached(END)?;
    let last: Option<i64> = end.query_row(params![row, sequence], |row| row.get(0))?;
    Ok(last.map(|last| unsigned(last) + 1))
}

/// Deletes items of rows that were deleted. Returns the rows that may have more.
fn purge_some(transaction: &Transaction<'_>, mut removed: Vec<i64>) -> DbResult<Vec<i64>> {
    let mut left = MAX_ITEMS;
    while left > 0
        && let Some(row) = removed.last()
    {
        let purged = transaction.prepare_cached(PURGE)?.execute([*row, left])?;
        left -= i64::try_from(purged).unwrap_or(left);
        if left > 0 {
            transaction.prepare_cached(FORGET_REMOVED)?.execute([row])?;
            left -= 1;
            removed.pop();
        }
    }
    Ok(removed)
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    match row.get_ref(column)? {
        ValueRef::Blob(bytes) => Ok(Bytes::copy_from_slice(bytes)),
        _ => Err(rusqlite::Error::InvalidQuery),
    }
}

/// Returns a number that was stored.
pub(crate) fn unsigned(number: i64) -> u64 {
    number.try_into().unwrap_or(0)
}

/// Returns a number as SQLite stores it: the largest ones become one.
fn stored(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

const FIND: &str = "SELECT id, version, body FROM rows WHERE partition = ?1 AND name = ?2";
const FIND_VERSION: &str = "SELECT id, version FROM rows WHERE partition = ?1 AND name = ?2";
const UPDATE: &str = "UPDATE rows SET version = ?3, body = ?4 WHERE partition = ?1 AND name = ?2";
const INSERT: &str = "INSERT INTO rows (partition, name, version, body) VALUES (?1, ?2, ?3, ?4)";
const DELETE: &str = "DELETE FROM rows WHERE partition = ?1 AND name = ?2 RETURNING id";
const REMOVE: &str = "INSERT INTO removed_rows (id) VALUES (?1)";
const REMOVED: &str = "SELECT id FROM removed_rows LIMIT 1000";
const PURGE: &str = "DELETE FROM items WHERE (row_id, sequence, position) IN \
    (SELECT row_id, sequence, position FROM items WHERE row_id = ?1 LIMIT ?2)";
const FORGET_REMOVED: &str = "DELETE FROM removed_rows WHERE id = ?1";
const END: &str = "SELECT max(position) FROM items WHERE row_id = ?1 AND sequence = ?2";
const INSERT_ITEM: &str =
    "INSERT INTO items (row_id, sequence, position, kind, body) VALUES (?1, ?2, ?3, ?4, ?5)";
const DELETE_BEFORE: &str =
    "DELETE FROM items WHERE row_id = ?1 AND sequence = ?2 AND position < ?3";
const DELETE_FROM: &str =
    "DELETE FROM items WHERE row_id = ?1 AND sequence = ?2 AND position >= ?3";
const ITEMS: &str = "SELECT position, kind, body FROM items \
    WHERE row_id = ?1 AND sequence = ?2 AND position >= ?3 ORDER BY position";
const MARKED_ITEMS: &str = "SELECT position, kind, body FROM items INDEXED BY marked_items \
    WHERE row_id = ?1 AND sequence = ?2 AND position >= ?3 AND kind <> 0 ORDER BY position";
const LEAVE: &str =
    "DELETE FROM places WHERE partition = ?1 AND list = ?2 AND at = ?3 AND member = ?4";
const ENTER: &str = "INSERT INTO places (partition, list, at, member) VALUES (?1, ?2, ?3, ?4) \
    ON CONFLICT DO NOTHING";
const LAST_MEMBERS: &str = "SELECT at, member FROM places WHERE partition = ?1 AND list = ?2 \
    AND (at, member) < (?3, ?4) ORDER BY at DESC, member DESC LIMIT ?5";
const FIRST_MEMBERS: &str = "SELECT at, member FROM places WHERE partition = ?1 AND list = ?2 \
    AND (at, member) > (?3, ?4) ORDER BY at, member LIMIT ?5";

/// How many items a transaction deletes at most.
const MAX_ITEMS: i64 = 500;
