//! [`LedgerStore`] of a [`SqliteStore`]: a row for each approval.

use rusqlite::{CachedStatement, OptionalExtension, Row, Transaction, named_params, params};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingLimits,
    PendingQuery, PendingRecords, RECORD_RETENTION, Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId};

use crate::clock::{stored_time, unix_millis};
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::{SqliteStore, owner_key, state};

impl LedgerStore for SqliteStore {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        Box::pin(async move {
            let columns: Result<Vec<Columns>, _> = records.iter().map(Columns::of).collect();
            let columns = columns?;
            let inserted =
                self.write(Durability::Synced, move |transaction: &Transaction<'_>, now| {
                    let inserted = insert_columns(transaction, &columns, limits, now)?;
                    if inserted.is_some_and(|inserted| inserted.stored > 0) {
                        state::keep_time(transaction, now)?;
                    }
                    Ok(inserted)
                });
            let inserted = inserted.await.map_err(LedgerStoreError::new)?;
            inserted.ok_or_else(|| LedgerStoreError::new(SqliteError::UserDeleted))
        })
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        let ids: Vec<String> = ids.iter().map(RecordId::to_string).collect();
        Box::pin(async move {
            let loaded = self.read(move |transaction, now| {
                let mut statement = transaction.prepare_cached(LOAD)?;
                let mut stored = Vec::with_capacity(ids.len());
                for id in &ids {
                    stored.extend(statement.query_row([id], Stored::from_row).optional()?);
                }
                Ok((now, stored))
            });
            let (now, stored) = loaded.await.map_err(LedgerStoreError::new)?;
            Ok(Snapshot { now: unix_millis(now), records: Stored::parse_all(stored, true)? })
        })
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        let (requester, chat, list) = match query.filter {
            PendingFilter::Chat { requester, chat } => (Some(requester), Some(chat), LIST_OF_CHAT),
            PendingFilter::Requester(requester) => (Some(requester), None, LIST),
            PendingFilter::All => (None, None, LIST_ALL),
        };
        let (requester, chat) = (requester.map(owner_key), chat.cloned());
        let is_strict = !matches!(query.filter, PendingFilter::All);
        let PendingQuery { after, limit, .. } = query;
        Box::pin(async move {
            let listed = self.read(move |transaction, now| {
                let chat = chat.as_ref().map(|chat| chat.as_bytes());
                let mut statement = transaction.prepare_cached(list)?;
                let rows = statement.query_map(
                    params![
                        requester,
                        chat,
                        after.map_or(-1, |after| stored_time(after.expires_at)),
                        after.map(|after| after.id.to_string()).unwrap_or_default(),
                        stored_count(limit.saturating_add(1)),
                    ],
                    |row| Ok((Stored::from_row(row)?, row.get::<_, i64>(3)?)),
                )?;
                Ok((now, rows.collect::<Result<Vec<_>, _>>()?))
            });
            let (now, mut listed) = listed.await.map_err(LedgerStoreError::new)?;
            let has_more = listed.len() > limit;
            listed.truncate(limit);
            let last = listed.last().filter(|_| has_more).map(|(stored, expires_at)| {
                let id = stored.id.parse().map_err(LedgerStoreError::new)?;
                let expires_at = unix_millis(*expires_at);
                Ok::<_, LedgerStoreError>(PendingCursor { expires_at, id })
            });
            let next = last.transpose()?;
            let stored = listed.into_iter().map(|(stored, _)| stored).collect();
            let records = Stored::parse_all(stored, is_strict)?;
            Ok(PendingRecords { now: unix_millis(now), records, next })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let columns = Columns::of(record)?;
            let Ok(revision) = i64::try_from(revision) else { return Ok(false) };
            let swapped =
                self.write(Durability::Synced, move |transaction: &Transaction<'_>, now| {
                    let swapped = columns.execute(transaction.prepare_cached(SWAP)?, revision)?;
                    if swapped {
                        state::keep_time(transaction, now)?;
                    }
                    Ok(swapped)
                });
            swapped.await.map_err(LedgerStoreError::new)
        })
    }
}

/// Inserts records as the limits allow. Returns `None` if the requester was deleted, and has not begun
/// this chat since.
fn insert_columns(
    transaction: &Transaction<'_>,
    columns: &[Columns],
    limits: PendingLimits,
    now: i64,
) -> DbResult<Option<Inserted>> {
    let Some(first) = columns.first() else { return Ok(Some(limits.admit(0, 0, 0, 0))) };
    let mut is_stored = transaction.prepare_cached(IS_STORED)?;
    let mut existing = 0;
    for record in columns {
        existing += usize::from(is_stored.exists([&record.id])?);
    }
    if existing < columns.len() && first.is_of_deleted_user(transaction)? {
        return Ok(None);
    }
    let count = |text: &str, chat: Option<&Vec<u8>>, limit: usize| -> DbResult<usize> {
        let counted = params![first.requester, chat, now, stored_count(limit)];
        let count: i64 = transaction.prepare_cached(text)?.query_row(counted, |row| row.get(0))?;
        Ok(count.try_into().unwrap_or(usize::MAX))
    };
    let in_chat = count(COUNT_OF_CHAT, Some(&first.chat), limits.chat)?;
    let of_requester = count(COUNT, None, limits.requester)?;
    let inserted = limits.admit(columns.len(), existing, in_chat, of_requester);
    for record in &columns[..inserted.stored] {
        record.execute(transaction.prepare_cached(INSERT)?, 0)?;
    }
    Ok(Some(inserted))
}

/// Returns a number of rows as SQLite stores it.
fn stored_count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A record as it is stored.
struct Columns {
    id: String,
    requester: String,
    chat: Vec<u8>,
    is_pending: bool,
    requested_at: i64,
    expires_at: i64,
    delete_at: i64,
    json: String,
}

impl Columns {
    fn of(record: &ApprovalRecord) -> Result<Self, LedgerStoreError> {
        Ok(Columns {
            id: record.id.to_string(),
            requester: owner_key(&record.requester),
            chat: record.chat_id.as_bytes().to_owned(),
            is_pending: record.is_pending(),
            requested_at: stored_time(record.requested_at),
            expires_at: stored_time(record.expires_at),
            delete_at: stored_time(record.expires_at.after(RECORD_RETENTION)),
            json: serde_json::to_string(record).map_err(LedgerStoreError::new)?,
        })
    }

    /// Returns whether the requester was deleted, and has not begun this chat since.
    fn is_of_deleted_user(&self, transaction: &Transaction<'_>) -> DbResult<bool> {
        let mut statement = transaction.prepare_cached(IS_DELETED)?;
        Ok(statement.exists(params![self.requester, self.chat])?)
    }

    /// Writes the record, and returns whether a row was written. `revision` is that of a new record,
    /// or the one that is replaced.
    fn execute(&self, mut statement: CachedStatement<'_>, revision: i64) -> DbResult<bool> {
        let written = statement.execute(named_params! {
            ":id": self.id, ":requester": self.requester, ":chat": self.chat,
            ":is_pending": self.is_pending, ":requested_at": self.requested_at,
            ":expires_at": self.expires_at, ":delete_at": self.delete_at,
            ":revision": revision, ":record": self.json,
        })?;
        Ok(written == 1)
    }
}

/// A row of a record.
struct Stored {
    id: String,
    revision: i64,
    json: String,
}

impl Stored {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Stored { id: row.get(0)?, revision: row.get(1)?, json: row.get(2)? })
    }

    /// Parses records. Those that cannot be read are left out.
    ///
    /// If `is_strict`, a record of a format that this version does not read is an error. If it were left
    /// out, its approval would be rejected as lost, although a newer server can redeem it.
    fn parse_all(
        stored: Vec<Self>,
        is_strict: bool,
    ) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
        let mut records = Vec::with_capacity(stored.len());
        for Stored { id, revision, json } in stored {
            match serde_json::from_str::<ApprovalRecord>(&json) {
                Ok(record) => {
                    let revision = revision.try_into().unwrap_or(0);
                    records.push(VersionedRecord { record, revision });
                }
                Err(error) => {
                    match ApprovalRecord::check_format(&json) {
                        Err(newer) if is_strict => return Err(LedgerStoreError::new(newer)),
                        _ => {}
                    }
                    // Only the position of the error is logged, because its text may hold contents
                    // of the record.
                    let column = error.column();
                    tracing::error!(id, column, "a record in the ledger cannot be read");
                }
            }
        }
        Ok(records)
    }
}

/// Deletes some of the records whose retention has ended. Returns how many.
pub(crate) fn sweep(transaction: &Transaction<'_>, now: i64) -> DbResult<usize> {
    Ok(transaction.prepare_cached(SWEEP)?.execute([now])?)
}

const IS_STORED: &str = "SELECT 1 FROM approvals WHERE id = ?1";
const IS_DELETED: &str = "SELECT 1 FROM deleted_users WHERE owner = ?1 \
    AND NOT EXISTS (SELECT 1 FROM logs WHERE owner = ?1 AND chat = ?2)";
const INSERT: &str = "INSERT INTO approvals (id, requester, chat, is_pending, requested_at, \
        expires_at, delete_at, revision, record) \
    VALUES (:id, :requester, :chat, :is_pending, :requested_at, :expires_at, :delete_at, \
        :revision, :record) \
    ON CONFLICT (id) DO NOTHING";
const SWAP: &str = "UPDATE approvals SET requester = :requester, chat = :chat, \
        is_pending = :is_pending, requested_at = :requested_at, expires_at = :expires_at, \
        delete_at = :delete_at, revision = revision + 1, record = :record \
    WHERE id = :id AND revision = :revision";
const LOAD: &str = "SELECT id, revision, record FROM approvals WHERE id = ?1";
/// The second parameter is not used.
const LIST: &str = "SELECT id, revision, record, expires_at \
    FROM approvals INDEXED BY approvals_by_requester \
    WHERE is_pending = 1 AND requester = ?1 AND ?2 IS NULL AND (expires_at, id) > (?3, ?4) \
    ORDER BY expires_at, id LIMIT ?5";
const LIST_OF_CHAT: &str = "SELECT id, revision, record, expires_at \
    FROM approvals INDEXED BY approvals_by_chat \
    WHERE is_pending = 1 AND requester = ?1 AND chat = ?2 AND (expires_at, id) > (?3, ?4) \
    ORDER BY expires_at, id LIMIT ?5";
/// The first two parameters are not used.
const LIST_ALL: &str = "SELECT id, revision, record, expires_at \
    FROM approvals INDEXED BY approvals_by_expiry \
    WHERE is_pending = 1 AND ?1 IS NULL AND ?2 IS NULL AND (expires_at, id) > (?3, ?4) \
    ORDER BY expires_at, id LIMIT ?5";
/// The second parameter is not used. Each row that is counted is one of the index.
const COUNT: &str = "SELECT count(*) FROM (SELECT 1 \
    FROM approvals INDEXED BY approvals_by_requester \
    WHERE is_pending = 1 AND requester = ?1 AND ?2 IS NULL AND expires_at > ?3 LIMIT ?4)";
const COUNT_OF_CHAT: &str = "SELECT count(*) FROM (SELECT 1 \
    FROM approvals INDEXED BY approvals_by_chat \
    WHERE is_pending = 1 AND requester = ?1 AND chat = ?2 AND expires_at > ?3 LIMIT ?4)";
const SWEEP: &str = "DELETE FROM approvals WHERE id IN \
    (SELECT id FROM approvals WHERE delete_at < ?1 LIMIT 200)";

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, StatementStatus};

    use super::*;

    #[test]
    fn a_count_reads_at_most_as_many_rows_of_an_index_as_the_limit() {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch(include_str!("schema/tables.sql")).unwrap();
        let insert = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number \
                WHERE n < 20000) \
            INSERT INTO approvals SELECT n, 'ada', x'00', 1, 0, n, n, 0, '' FROM number";
        database.execute(insert, []).unwrap();
        for text in [COUNT, COUNT_OF_CHAT] {
            let mut statement = database.prepare(text).unwrap();
            // Half of the records have expired.
            let counted = params!["ada", (text == COUNT_OF_CHAT).then(|| vec![0_u8]), 10_000, 64];
            let count: i64 = statement.query_row(counted, |row| row.get(0)).unwrap();
            assert_eq!(count, 64);
            let steps = statement.get_status(StatementStatus::VmStep);
            assert!(steps < 64 * 10, "{steps} steps");
        }
    }
}
