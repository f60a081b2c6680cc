//! [`LedgerStore`] of a [`PostgresStore`]: a row for each approval.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits,
    RECORD_RETENTION, RecordCursor, RecordList, Snapshot, VersionedRecord, read_record,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId, UnixMillis};

use crate::error::PostgresError;
use crate::{PostgresStore, Value, column, number, owner_key, stored};

impl LedgerStore for PostgresStore {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        Box::pin(async move {
            let Some(first) = records.first() else { return Ok(limits.admit(0, 0, 0, 0)) };
            let requester = owner_key(&first.requester);
            let chat = first.chat_id.as_bytes();
            let json: Result<Vec<String>, _> = records.iter().map(serde_json::to_string).collect();
            let json = json.map_err(LedgerStoreError::new)?;
            let ids: Vec<String> = records.iter().map(|record| record.id.to_string()).collect();
            let deletes: Vec<i64> = records.iter().map(delete_at).collect();
            let of_requester = RecordList::of_requester(&first.requester);
            let in_chat = of_requester.in_chat(&first.chat_id);
            let mut listed = Vec::new();
            let mut lists = Vec::new();
            let mut times = Vec::new();
            for (place, record) in (1_i32..).zip(records) {
                let (of_record, times_of_record) = lists_of(record);
                listed.extend(of_record.iter().map(|_| place));
                lists.extend(of_record);
                times.extend(times_of_record);
            }
            let values: &[Value<'_>] = &[
                (&requester, Type::TEXT),
                (&chat, Type::BYTEA),
                (&of_requester.as_str(), Type::TEXT),
                (&in_chat.as_str(), Type::TEXT),
                (&stored(limits.chat as u64).min(MAX_COUNT), Type::INT8),
                (&stored(limits.requester as u64).min(MAX_COUNT), Type::INT8),
                (&ids, Type::TEXT_ARRAY),
                (&deletes, Type::INT8_ARRAY),
                (&json, Type::TEXT_ARRAY),
                (&listed, Type::INT4_ARRAY),
                (&lists, Type::TEXT_ARRAY),
                (&times, Type::INT8_ARRAY),
            ];
            let rows = self.query(INSERT_ALL, values).await?;
            let Some(row) = rows.first() else {
                return Err(LedgerStoreError::new("the insertion returned no row"));
            };
            if column(row, 3)? {
                return Err(PostgresError::UserDeleted.into());
            }
            let number = |at| Ok::<_, LedgerStoreError>(number(row, at)?.try_into().unwrap_or(0));
            Ok(limits.admit(records.len(), number(0)?, number(1)?, number(2)?))
        })
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            let ids: Vec<String> = ids.iter().map(RecordId::to_string).collect();
            let rows = self.query(LOAD, &[(&ids, Type::TEXT_ARRAY)]).await?;
            Ok(Snapshot { now: self.now(&rows)?, records: parse_all(&rows, true)? })
        })
    }

    fn read_list<'a>(
        &'a self,
        page: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        Box::pin(async move {
            let ListRecords { list, after, later_than_now, limit } = page;
            let time = after.map_or(-1, |after| stored(after.at.0));
            let id = after.map(|after| after.id.to_string()).unwrap_or_default();
            let count = stored(limit.saturating_add(1) as u64);
            let values: [Value<'_>; 5] = [
                (&list.as_str(), Type::TEXT),
                (&time, Type::INT8),
                (&id, Type::TEXT),
                (&count, Type::INT8),
                (&later_than_now, Type::BOOL),
            ];
            let rows = self.query(LIST, &values).await?;
            let page = rows.get(..limit).unwrap_or(&rows);
            let next = match page.last().filter(|_| rows.len() > limit) {
                Some(last) => {
                    let id = column::<&str>(last, 1)?.parse().map_err(LedgerStoreError::new)?;
                    Some(RecordCursor { at: UnixMillis(number(last, 4)?), id })
                }
                None => None,
            };
            let now = self.now(&rows)?;
            // The query reads the clock of Postgres, which may have been set back.
            let has_passed = |row: &&Row| number(row, 4).is_ok_and(|at| at <= now.0);
            let passed = page.iter().take_while(|row| later_than_now && has_passed(row)).count();
            let records = parse_all(page.get(passed..).unwrap_or_default(), list.is_strict())?;
            Ok(ListedRecords { now, records, next })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(self.replace(record, stored(revision)))
    }
}

impl PostgresStore {
    /// Replaces a record that has this revision, and returns whether it was replaced.
    async fn replace(
        &self,
        record: &ApprovalRecord,
        revision: i64,
    ) -> Result<bool, LedgerStoreError> {
        let json = serde_json::to_string(record).map_err(LedgerStoreError::new)?;
        let id = record.id.to_string();
        let requester = owner_key(&record.requester);
        let (chat, (lists, times)) = (record.chat_id.as_bytes(), lists_of(record));
        let values: &[Value<'_>] = &[
            (&id, Type::TEXT),
            (&requester, Type::TEXT),
            (&chat, Type::BYTEA),
            (&delete_at(record), Type::INT8),
            (&revision, Type::INT8),
            (&json, Type::TEXT),
            (&lists, Type::TEXT_ARRAY),
            (&times, Type::INT8_ARRAY),
        ];
        let rows = self.query(SWAP, values).await?;
        let row = rows.first().ok_or(PostgresError::Unreadable("replacement"))?;
        Ok(column(row, 0)?)
    }

    /// Returns the time in the first column, but none [before](Self::not_before) the latest one.
    fn now(&self, rows: &[Row]) -> Result<UnixMillis, PostgresError> {
        let told = column(rows.first().ok_or(PostgresError::Unreadable("time"))?, 0)?;
        Ok(self.not_before(told))
    }

    /// Returns a time that Postgres has told, but none before the latest one, unless the clock was set back by more than a
    /// minute.
    pub(crate) fn not_before(&self, told: i64) -> UnixMillis {
        let latest = &self.inner.latest_time;
        let before = latest
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |latest| Some(later(latest, told)));
        UnixMillis(later(before.unwrap_or_default(), told).try_into().unwrap_or(0))
    }
}

/// Returns the newest time of the clock. A time that is up to a minute before the latest one is not used, so the time does
/// not go back. A clock that was set back by more was wrong before.
pub(crate) fn later(latest: i64, told: i64) -> i64 {
    if (0..=MAX_SET_BACK).contains(&(latest - told)) { latest } else { told }
}

/// Returns when a record is deleted, as a column.
fn delete_at(record: &ApprovalRecord) -> i64 {
    stored(record.expires_at.after(RECORD_RETENTION).0)
}

/// Returns the lists that have a record, and the times at which they have it.
fn lists_of(record: &ApprovalRecord) -> (Vec<String>, Vec<i64>) {
    let lists = RecordList::that_have(record).into_iter();
    lists.map(|(list, at)| (list.as_str().to_owned(), stored(at.0))).unzip()
}

/// Parses the records in the columns 1, 2 and 3. Those that cannot be read are left out.
fn parse_all(rows: &[Row], is_strict: bool) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        // The time comes also without a record.
        let Some(id) = column::<Option<&str>>(row, 1)? else { continue };
        let revision = number(row, 2)?;
        let json = column(row, 3)?;
        let record = read_record(id, json, is_strict)?;
        records.extend(record.map(|record| VersionedRecord { record, revision }));
    }
    Ok(records)
}

const INSERT_ALL: &str = "SELECT existing, in_chat, of_requester, is_deleted_user \
    FROM SCHEMA.insert_approvals($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const SWAP: &str = "SELECT SCHEMA.replace_approval($1, $2, $3, $4, $5, $6, $7, $8)";
/// `$5` says whether the records have to be later than now. `greatest` ignores NULL, and the empty text comes before
/// every id.
const LIST: &str = "SELECT clock.now, id, revision, record, at \
    FROM (SELECT SCHEMA.now_not_before(latest_time) AS now FROM SCHEMA.ledger_clock) AS clock \
    LEFT JOIN LATERAL (SELECT id, revision, record, at \
        FROM SCHEMA.approval_lists JOIN SCHEMA.approvals USING (id) \
        WHERE list = $1 AND (at, id) > (greatest($2, CASE WHEN $5 THEN clock.now + 1 END), \
            CASE WHEN $5 AND clock.now >= $2 THEN '' ELSE $3 END) \
        ORDER BY at, id LIMIT $4) AS page ON TRUE \
    ORDER BY at, id";
const LOAD: &str = "SELECT clock.now, id, revision, record \
    FROM (SELECT SCHEMA.now_not_before(latest_time) AS now FROM SCHEMA.ledger_clock) AS clock \
    LEFT JOIN SCHEMA.approvals ON id = ANY ($1)";
/// The highest limit that Postgres gets. It adds a limit and a number of records.
const MAX_COUNT: i64 = 1 << 40;

/// A clock that is set back by more than this, in milliseconds, was wrong before.
const MAX_SET_BACK: i64 = 60_000;
