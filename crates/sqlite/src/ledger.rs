//! [`LedgerStore`] of a [`SqliteStore`]: a row for each approval.

use rusqlite::{CachedStatement, OptionalExtension, Row, Transaction, named_params, params};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingQuery, PendingRecords,
    RECORD_RETENTION, Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId};

use crate::clock::{stored_time, unix_millis};
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::{SqliteStore, owner_key, state};

impl LedgerStore for SqliteStore {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let columns = Columns::of(record)?;
            let inserted = self.write(Durability::Synced, move |transaction, clock| {
                if columns.is_of_deleted_user(transaction)? {
                    return Ok(None);
                }
                let inserted = columns.execute(transaction.prepare_cached(INSERT)?, 0)?;
                if inserted {
                    state::tell_time(transaction, clock)?;
                }
                Ok(Some(inserted))
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
            let loaded = self.read(move |transaction, clock| {
                let mut statement = transaction.prepare_cached(LOAD)?;
                let mut stored = Vec::with_capacity(ids.len());
                for id in &ids {
                    stored.extend(statement.query_row([id], Stored::from_row).optional()?);
                }
                let now = state::now(transaction, clock)?;
                Ok((now, stored))
            });
            let (now, stored) = loaded.await.map_err(LedgerStoreError::new)?;
            Ok(Snapshot { now: unix_millis(now), records: Stored::parse_all(stored)? })
        })
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        let (requester, chat) = match query.filter {
            PendingFilter::Chat { requester, chat } => (requester, Some(chat.clone())),
            PendingFilter::Requester(requester) => (requester, None),
        };
        let requester = owner_key(requester);
        let PendingQuery { after, limit, .. } = query;
        Box::pin(async move {
            let listed = self.read(move |transaction, clock| {
                let now = state::now(transaction, clock)?;
                let chat = chat.as_ref().map(|chat| chat.as_bytes());
                let (list, count) = match chat {
                    Some(_) => (LIST_OF_CHAT, COUNT_OF_CHAT),
                    None => (LIST, COUNT),
                };
                let unexpired: i64 = transaction
                    .prepare_cached(count)?
                    .query_row(params![requester, chat, now], |row| row.get(0))?;
                let mut statement = transaction.prepare_cached(list)?;
                let rows = statement.query_map(
                    params![
                        requester,
                        chat,
                        after.map_or(-1, |after| stored_time(after.requested_at)),
                        after.map(|after| after.id.to_string()).unwrap_or_default(),
                        i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX),
                    ],
                    |row| Ok((Stored::from_row(row)?, row.get::<_, i64>(3)?)),
                )?;
                Ok((now, unexpired, rows.collect::<Result<Vec<_>, _>>()?))
            });
            let (now, unexpired, mut listed) = listed.await.map_err(LedgerStoreError::new)?;
            let has_more = listed.len() > limit;
            listed.truncate(limit);
            let last = listed.last().filter(|_| has_more).map(|(stored, requested_at)| {
                let id = stored.id.parse().map_err(LedgerStoreError::new)?;
                let requested_at = unix_millis(*requested_at);
                Ok::<_, LedgerStoreError>(PendingCursor { requested_at, id })
            });
            let next = last.transpose()?;
            let stored = listed.into_iter().map(|(stored, _)| stored).collect();
            Ok(PendingRecords {
                now: unix_millis(now),
                records: Stored::parse_all(stored)?,
                next,
                unexpired: unexpired.try_into().unwrap_or(0),
            })
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
            let swapped = self.write(Durability::Synced, move |transaction, clock| {
                let swapped = columns.execute(transaction.prepare_cached(SWAP)?, revision)?;
                if swapped {
                    state::tell_time(transaction, clock)?;
                }
                Ok(swapped)
            });
            swapped.await.map_err(LedgerStoreError::new)
        })
    }
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
    /// A record of a format that this version does not read is an error. If it were left out, its
    /// approval would be rejected as lost, although a newer server can redeem it.
    fn parse_all(stored: Vec<Self>) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
        let mut records = Vec::with_capacity(stored.len());
        for Stored { id, revision, json } in stored {
            match serde_json::from_str::<ApprovalRecord>(&json) {
                Ok(record) => {
                    let revision = revision.try_into().unwrap_or(0);
                    records.push(VersionedRecord { record, revision });
                }
                Err(error) => {
                    ApprovalRecord::check_format(&json).map_err(LedgerStoreError::new)?;
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

const IS_DELETED: &str = "SELECT 1 FROM deleted_users WHERE owner = ?1 \
    AND NOT EXISTS (SELECT 1 FROM chats WHERE owner = ?1 AND id = ?2)";
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
const LIST: &str = "SELECT id, revision, record, requested_at FROM approvals \
    WHERE is_pending = 1 AND requester = ?1 AND ?2 IS NULL AND (requested_at, id) > (?3, ?4) \
    ORDER BY requested_at, id LIMIT ?5";
const LIST_OF_CHAT: &str = "SELECT id, revision, record, requested_at FROM approvals \
    WHERE is_pending = 1 AND requester = ?1 AND chat = ?2 AND (requested_at, id) > (?3, ?4) \
    ORDER BY requested_at, id LIMIT ?5";
const COUNT: &str = "SELECT count(*) FROM approvals \
    WHERE is_pending = 1 AND requester = ?1 AND ?2 IS NULL AND expires_at > ?3";
const COUNT_OF_CHAT: &str = "SELECT count(*) FROM approvals \
    WHERE is_pending = 1 AND requester = ?1 AND chat = ?2 AND expires_at > ?3";
const SWEEP: &str = "DELETE FROM approvals WHERE id IN \
    (SELECT id FROM approvals WHERE delete_at < ?1 LIMIT 200)";
