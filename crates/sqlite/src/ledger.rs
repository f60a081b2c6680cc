//! [`LedgerStore`] of a [`SqliteStore`]: a row for each approval.

use rusqlite::{OptionalExtension, Row, Transaction, named_params, params};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits,
    RECORD_RETENTION, RecordCursor, RecordList, Snapshot, VersionedRecord, read_record,
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

    fn read_list<'a>(
        &'a self,
        page: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        Box::pin(async move {
            let ListRecords { list, after, later_than_now, limit } = page;
            let list = list.clone();
            let listed = self.read(move |transaction, now| {
                let page = ListRecords { list: &list, after, later_than_now, limit };
                let after = page.begins_after(unix_millis(now));
                let mut statement = transaction.prepare_cached(LIST)?;
                let rows = statement.query_map(
                    params![
                        list.as_str(),
                        after.map_or(-1, |after| stored_time(after.at)),
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
            let last = listed.last().filter(|_| has_more).map(|(stored, at)| {
                let id = stored.id.parse().map_err(LedgerStoreError::new)?;
                Ok::<_, LedgerStoreError>(RecordCursor { at: unix_millis(*at), id })
            });
            let next = last.transpose()?;
            let stored = listed.into_iter().map(|(stored, _)| stored).collect();
            let records = Stored::parse_all(stored, page.list.is_strict())?;
            Ok(ListedRecords { now: unix_millis(now), records, next })
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
                    let swapped = columns.execute(transaction, SWAP, revision)?;
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
    let count = |list: &RecordList, limit: usize| -> DbResult<usize> {
        let counted = params![list.as_str(), now, stored_count(limit)];
        let count: i64 = transaction.prepare_cached(COUNT)?.query_row(counted, |row| row.get(0))?;
        Ok(count.try_into().unwrap_or(usize::MAX))
    };
    let in_chat = count(&first.in_chat, limits.chat)?;
    let of_requester = count(&first.of_requester, limits.requester)?;
    let inserted = limits.admit(columns.len(), existing, in_chat, of_requester);
    for record in &columns[..inserted.stored] {
        record.execute(transaction, INSERT, 0)?;
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
    delete_at: i64,
    json: String,
    lists: Vec<(RecordList, i64)>,
    of_requester: RecordList,
    in_chat: RecordList,
}

impl Columns {
    fn of(record: &ApprovalRecord) -> Result<Self, LedgerStoreError> {
        let of_requester = RecordList::of_requester(&record.requester);
        let lists =
            RecordList::that_have(record).into_iter().map(|(list, at)| (list, stored_time(at)));
        Ok(Columns {
            id: record.id.to_string(),
            requester: owner_key(&record.requester),
            chat: record.chat_id.as_bytes().to_owned(),
            delete_at: stored_time(record.expires_at.after(RECORD_RETENTION)),
            json: serde_json::to_string(record).map_err(LedgerStoreError::new)?,
            lists: lists.collect(),
            in_chat: of_requester.in_chat(&record.chat_id),
            of_requester,
        })
    }

    /// Returns whether the requester was deleted, and has not begun this chat since.
    fn is_of_deleted_user(&self, transaction: &Transaction<'_>) -> DbResult<bool> {
        let mut statement = transaction.prepare_cached(IS_DELETED)?;
        Ok(statement.exists(params![self.requester, self.chat])?)
    }

    /// Writes the record and its lists, and returns whether it was written. `revision` is that of a new record,
    /// or the one that is replaced.
    fn execute(
        &self,
        transaction: &Transaction<'_>,
        statement: &str,
        revision: i64,
    ) -> DbResult<bool> {
        let written = transaction.prepare_cached(statement)?.execute(named_params! {
            ":id": self.id, ":requester": self.requester, ":chat": self.chat,
            ":delete_at": self.delete_at, ":revision": revision, ":record": self.json,
        })?;
        if written != 1 {
            return Ok(false);
        }
        let mut lists = transaction.prepare_cached(LISTS)?;
        let stored = lists.query_map([&self.id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let stored: Vec<(String, i64)> = stored.collect::<Result<_, _>>()?;
        let is_same = |(name, at): &(String, i64), (list, now): &(RecordList, i64)| {
            *name == list.as_str() && at == now
        };
        for place in &stored {
            if !self.lists.iter().any(|listed| is_same(place, listed)) {
                let leave = params![place.0, place.1, self.id];
                transaction.prepare_cached(LEAVE_LIST)?.execute(leave)?;
            }
        }
        for listed in &self.lists {
            if !stored.iter().any(|place| is_same(place, listed)) {
                let enter = params![listed.0.as_str(), listed.1, self.id];
                transaction.prepare_cached(ENTER_LIST)?.execute(enter)?;
            }
        }
        Ok(true)
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
    fn parse_all(
        stored: Vec<Self>,
        is_strict: bool,
    ) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
        let mut records = Vec::with_capacity(stored.len());
        for Stored { id, revision, json } in stored {
            let record = read_record(&id, &json, is_strict)?;
            let revision = revision.try_into().unwrap_or(0);
            records.extend(record.map(|record| VersionedRecord { record, revision }));
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
    AND NOT EXISTS (SELECT 1 FROM rows WHERE partition = ?1 AND name = CAST('h' || ?2 AS BLOB))";
const INSERT: &str = "INSERT INTO approvals (id, requester, chat, delete_at, revision, record) \
    VALUES (:id, :requester, :chat, :delete_at, :revision, :record) \
    ON CONFLICT (id) DO NOTHING";
const SWAP: &str = "UPDATE approvals SET requester = :requester, chat = :chat, \
        delete_at = :delete_at, revision = revision + 1, record = :record \
    WHERE id = :id AND revision = :revision";
const LISTS: &str = "SELECT list, at FROM approval_lists WHERE id = ?1";
const LEAVE_LIST: &str = "DELETE FROM approval_lists WHERE list = ?1 AND at = ?2 AND id = ?3";
const ENTER_LIST: &str = "INSERT INTO approval_lists (list, at, id) VALUES (?1, ?2, ?3)";
const LOAD: &str = "SELECT id, revision, record FROM approvals WHERE id = ?1";
const LIST: &str = "SELECT id, revision, record, at \
    FROM approval_lists JOIN approvals USING (id) \
    WHERE list = ?1 AND (at, id) > (?2, ?3) ORDER BY at, id LIMIT ?4";
/// Each row that is counted is one of the list.
const COUNT: &str = "SELECT count(*) FROM \
    (SELECT 1 FROM approval_lists WHERE list = ?1 AND at > ?2 LIMIT ?3)";
const SWEEP: &str = "DELETE FROM approvals WHERE id IN \
    (SELECT id FROM approvals WHERE delete_at < ?1 LIMIT 200)";

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, StatementStatus};

    use super::*;

    #[test]
    fn a_count_and_a_page_read_at_most_as_many_rows_of_a_list_as_the_limit() {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch(include_str!("schema/tables.sql")).unwrap();
        let numbers = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number \
                WHERE n < 20000)";
        for insert in [
            "INSERT INTO approvals SELECT n, 'ada', x'00', n, 0, '' FROM number",
            "INSERT INTO approval_lists SELECT 'list', n, n FROM number",
        ] {
            database.execute(&format!("{numbers} {insert}"), []).unwrap();
        }
        // Half of the records have expired.
        let mut count = database.prepare(COUNT).unwrap();
        let counted: i64 = count.query_row(params!["list", 10_000, 64], |row| row.get(0)).unwrap();
        let mut list = database.prepare(LIST).unwrap();
        let listed = list.query_map(params!["list", 10_000, "", 64], |row| row.get::<_, i64>(3));
        assert_eq!((counted, listed.unwrap().count()), (64, 64));
        for statement in [count, list] {
            let steps = statement.get_status(StatementStatus::VmStep);
            assert!(steps < 64 * 30, "{steps} steps");
        }
    }
}
