//! [`LedgerStore`] of a [`PostgresStore`]: a row for each approval.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingQuery, PendingRecords,
    RECORD_RETENTION, Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId, UnixMillis};

use crate::error::PostgresError;
use crate::{PostgresStore, column, number, owner_key, stored};

impl LedgerStore for PostgresStore {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(self.write_record(INSERT, record, 0))
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            let ids: Vec<String> = ids.iter().map(RecordId::to_string).collect();
            let rows = self.query(LOAD, &[&ids]).await?;
            Ok(Snapshot { now: self.now(&rows)?, records: parse_all(&rows)? })
        })
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        Box::pin(async move {
            let (requester, chat) = match query.filter {
                PendingFilter::Chat { requester, chat } => (requester, Some(chat.as_bytes())),
                PendingFilter::Requester(requester) => (requester, None),
            };
            let PendingQuery { after, limit, .. } = query;
            let time = after.map_or(-1, |after| stored(after.requested_at.0));
            let id = after.map(|after| after.id.to_string()).unwrap_or_default();
            let count = stored(limit.saturating_add(1) as u64);
            let requester = owner_key(requester);
            let rows = self.query(PENDING, &[&requester, &chat, &time, &id, &count]).await?;
            let page = rows.get(..limit).unwrap_or(&rows);
            let next = match page.last().filter(|_| rows.len() > limit) {
                Some(last) => {
                    let id = column::<&str>(last, 1)?.parse().map_err(LedgerStoreError::new)?;
                    Some(PendingCursor { requested_at: UnixMillis(number(last, 4)?), id })
                }
                None => None,
            };
            let unexpired = rows.first().map_or(Ok(0), |row| number(row, 5))?;
            Ok(PendingRecords {
                now: self.now(&rows)?,
                records: parse_all(page)?,
                next,
                unexpired: unexpired.try_into().unwrap_or(usize::MAX),
            })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(self.write_record(SWAP, record, stored(revision)))
    }
}

impl PostgresStore {
    /// Inserts or replaces a record, and returns whether a row was written.
    ///
    /// # Errors
    /// [`LedgerStoreError`], also if the requester was deleted during the run.
    async fn write_record(
        &self,
        statement: &'static str,
        record: &ApprovalRecord,
        revision: i64,
    ) -> Result<bool, LedgerStoreError> {
        let json = serde_json::to_string(record).map_err(LedgerStoreError::new)?;
        let (id, requester) = (record.id.to_string(), owner_key(&record.requester));
        let (chat, is_pending) = (record.chat_id.as_bytes(), record.is_pending());
        let times =
            [record.requested_at, record.expires_at, record.expires_at.after(RECORD_RETENTION)];
        let [requested_at, expires_at, delete_at] = times.map(|time| stored(time.0));
        let values: &[&(dyn ToSql + Sync)] = &[
            &id,
            &requester,
            &chat,
            &is_pending,
            &requested_at,
            &expires_at,
            &delete_at,
            &revision,
            &json,
        ];
        let rows = self.query(statement, values).await?;
        match rows.first() {
            Some(row) if column(row, 1)? => Err(PostgresError::UserDeleted.into()),
            row => Ok(row.is_some()),
        }
    }

    /// Returns the time in the first column, but none before the latest one, unless the clock was
    /// set back by more than a minute.
    fn now(&self, rows: &[Row]) -> Result<UnixMillis, PostgresError> {
        let told: i64 = column(rows.first().ok_or(PostgresError::Unreadable("time"))?, 0)?;
        let floor = |latest: i64| match latest - told {
            0..=MAX_SET_BACK => latest,
            _ => told,
        };
        let latest = &self.inner.latest_time;
        let before = latest.fetch_update(Ordering::AcqRel, Ordering::Acquire, |it| Some(floor(it)));
        let now = floor(before.unwrap_or_default());
        Ok(UnixMillis(now.try_into().unwrap_or(0)))
    }
}

/// Parses the records in the columns 1, 2 and 3. Those that cannot be read are left out.
///
/// A record of a format that this version does not read is an error. If it were left out, its
/// approval would be rejected as lost, although a newer server can redeem it.
fn parse_all(rows: &[Row]) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        // The time comes also without a record.
        let Some(id) = column::<Option<&str>>(row, 1)? else { continue };
        let (revision, json) = (number(row, 2)?, column(row, 3)?);
        match serde_json::from_str::<ApprovalRecord>(json) {
            Ok(record) => records.push(VersionedRecord { record, revision }),
            Err(error) => {
                ApprovalRecord::check_format(json).map_err(LedgerStoreError::new)?;
                // Only the position of the error is logged, because its text may hold contents of
                // the record.
                let column = error.column();
                tracing::error!(id, column, "a record in the ledger cannot be read");
            }
        }
    }
    Ok(records)
}

/// Writes a record as `$write` says. The time of the ledger does not go back behind this write. Returns
/// a row with the id and whether the requester was deleted, or no row.
macro_rules! write_record {
    ($write:literal) => {
        write_record!("", $write, "SELECT id, FALSE FROM written")
    };
    ($before:literal, $write:literal, $result:literal) => {
        concat!(
            "WITH ",
            $before,
            "written AS (",
            $write,
            " RETURNING id), \
            told AS (UPDATE ledger_clock SET latest_time = now_not_before(latest_time) FROM written) ",
            $result
        )
    };
}

const INSERT: &str = write_record!(
    "requester AS (SELECT is_deleted($2, $3)), ",
    "INSERT INTO approvals (id, requester, chat, is_pending, requested_at, expires_at, delete_at, \
        revision, record) \
    SELECT $1::TEXT, $2::TEXT, $3::BYTEA, $4::BOOLEAN, $5::BIGINT, $6::BIGINT, $7::BIGINT, \
        $8::BIGINT, $9::TEXT FROM requester WHERE NOT is_deleted ON CONFLICT (id) DO NOTHING",
    "SELECT id, FALSE FROM written UNION ALL SELECT NULL, TRUE FROM requester WHERE is_deleted"
);
const SWAP: &str = write_record!(
    "UPDATE approvals SET requester = $2, chat = $3, is_pending = $4, requested_at = $5, \
        expires_at = $6, delete_at = $7, revision = revision + 1, record = $9 \
    WHERE id = $1 AND revision = $8"
);
const LOAD: &str = "SELECT clock.now, id, revision, record \
    FROM (SELECT now_not_before(latest_time) AS now FROM ledger_clock) AS clock \
    LEFT JOIN approvals ON id = ANY ($1)";
/// `$2` is `NULL` for the records in all chats.
const PENDING: &str = "SELECT clock.now, id, revision, record, requested_at, counted.unexpired \
    FROM (SELECT now_not_before(latest_time) AS now FROM ledger_clock) AS clock \
    CROSS JOIN LATERAL (SELECT count(*) AS unexpired FROM approvals \
        WHERE is_pending AND requester = $1 AND ($2::BYTEA IS NULL OR chat = $2) \
            AND expires_at > clock.now) AS counted \
    LEFT JOIN (SELECT id, revision, record, requested_at FROM approvals \
        WHERE is_pending AND requester = $1 AND ($2 IS NULL OR chat = $2) \
            AND (requested_at, id) > ($3, $4) \
        ORDER BY requested_at, id LIMIT $5) AS page ON TRUE \
    ORDER BY requested_at, id";

/// A clock that is set back by more than this, in milliseconds, was wrong before.
const MAX_SET_BACK: i64 = 60_000;
