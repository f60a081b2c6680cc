//! [`LedgerStore`] of a [`PostgresStore`]: a row for each approval.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingLimits,
    PendingQuery, PendingRecords, RECORD_RETENTION, Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId, UnixMillis};

use crate::error::PostgresError;
use crate::{PostgresStore, column, number, owner_key, stored};

impl LedgerStore for PostgresStore {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        Box::pin(async move {
            let Some(first) = records.first() else { return Ok(limits.admit(0, 0, 0, 0)) };
            let (requester, chat) = (owner_key(&first.requester), first.chat_id.as_bytes());
            let json: Result<Vec<String>, _> = records.iter().map(serde_json::to_string).collect();
            let json = json.map_err(LedgerStoreError::new)?;
            let ids: Vec<String> = records.iter().map(|record| record.id.to_string()).collect();
            let pending: Vec<bool> = records.iter().map(ApprovalRecord::is_pending).collect();
            let times = |time: fn(&ApprovalRecord) -> UnixMillis| -> Vec<i64> {
                records.iter().map(|record| stored(time(record).0)).collect()
            };
            let values: &[&(dyn ToSql + Sync)] = &[
                &requester,
                &chat,
                &stored(limits.chat as u64).min(MAX_COUNT),
                &stored(limits.requester as u64).min(MAX_COUNT),
                &ids,
                &pending,
                &times(|record| record.requested_at),
                &times(|record| record.expires_at),
                &times(|record| record.expires_at.after(RECORD_RETENTION)),
                &json,
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
            let rows = self.query(LOAD, &[&ids]).await?;
            Ok(Snapshot { now: self.now(&rows)?, records: parse_all(&rows, true)? })
        })
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        Box::pin(async move {
            let PendingQuery { filter, after, limit } = query;
            let time = after.map_or(-1, |after| stored(after.expires_at.0));
            let id = after.map(|after| after.id.to_string()).unwrap_or_default();
            let count = stored(limit.saturating_add(1) as u64);
            let rows = match filter {
                PendingFilter::Chat { requester, chat } => {
                    let (requester, chat) = (owner_key(requester), chat.as_bytes());
                    let values: &[&(dyn ToSql + Sync)] = &[&time, &id, &count, &requester, &chat];
                    self.query(PENDING_IN_CHAT, values).await?
                }
                PendingFilter::Requester(requester) => {
                    let requester = owner_key(requester);
                    self.query(PENDING, &[&time, &id, &count, &requester]).await?
                }
                PendingFilter::All => self.query(PENDING_OF_ALL, &[&time, &id, &count]).await?,
            };
            let page = rows.get(..limit).unwrap_or(&rows);
            let next = match page.last().filter(|_| rows.len() > limit) {
                Some(last) => {
                    let id = column::<&str>(last, 1)?.parse().map_err(LedgerStoreError::new)?;
                    Some(PendingCursor { expires_at: UnixMillis(number(last, 4)?), id })
                }
                None => None,
            };
            let records = parse_all(page, !matches!(filter, PendingFilter::All))?;
            Ok(PendingRecords { now: self.now(&rows)?, records, next })
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
        Ok(!self.query(SWAP, values).await?.is_empty())
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
/// If `is_strict`, a record of a format that this version does not read is an error. If it were left out,
/// its approval would be rejected as lost, although a newer server can redeem it.
fn parse_all(rows: &[Row], is_strict: bool) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
    let mut records = Vec::with_capacity(rows.len());
    for row in rows {
        // The time comes also without a record.
        let Some(id) = column::<Option<&str>>(row, 1)? else { continue };
        let (revision, json) = (number(row, 2)?, column(row, 3)?);
        match serde_json::from_str::<ApprovalRecord>(json) {
            Ok(record) => records.push(VersionedRecord { record, revision }),
            Err(error) => {
                match ApprovalRecord::check_format(json) {
                    Err(newer) if is_strict => return Err(LedgerStoreError::new(newer)),
                    _ => {}
                }
                // Only the position of the error is logged, because its text may hold contents of
                // the record.
                let column = error.column();
                tracing::error!(id, column, "a record in the ledger cannot be read");
            }
        }
    }
    Ok(records)
}

/// Lists a page of pending records in the order of an index.
macro_rules! pending_records {
    ($filter:literal) => {
        concat!(
            "SELECT clock.now, id, revision, record, expires_at \
            FROM (SELECT now_not_before(latest_time) AS now FROM ledger_clock) AS clock \
            LEFT JOIN (SELECT id, revision, record, expires_at FROM approvals \
                WHERE is_pending ",
            $filter,
            "AND (expires_at, id) > ($1, $2) \
                ORDER BY expires_at, id LIMIT $3) AS page ON TRUE \
            ORDER BY expires_at, id"
        )
    };
}

const INSERT_ALL: &str = "SELECT existing, in_chat, of_requester, is_deleted_user \
    FROM insert_approvals($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
/// The time of the ledger does not go back behind this write.
const SWAP: &str = "WITH written AS (UPDATE approvals SET requester = $2, chat = $3, \
        is_pending = $4, requested_at = $5, expires_at = $6, delete_at = $7, \
        revision = revision + 1, record = $9 \
        WHERE id = $1 AND revision = $8 RETURNING id), \
    told AS (UPDATE ledger_clock SET latest_time = now_not_before(latest_time) FROM written) \
    SELECT id FROM written";
const LOAD: &str = "SELECT clock.now, id, revision, record \
    FROM (SELECT now_not_before(latest_time) AS now FROM ledger_clock) AS clock \
    LEFT JOIN approvals ON id = ANY ($1)";
const PENDING_OF_ALL: &str = pending_records!("");
const PENDING: &str = pending_records!("AND requester = $4 ");
const PENDING_IN_CHAT: &str = pending_records!("AND requester = $4 AND chat = $5 ");

/// The highest limit that Postgres gets. It adds a limit and a number of records.
const MAX_COUNT: i64 = 1 << 40;

/// A clock that is set back by more than this, in milliseconds, was wrong before.
const MAX_SET_BACK: i64 = 60_000;
