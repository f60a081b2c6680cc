//! Appends to a log.
//!
//! An append is one statement. One that begins a run or creates a log is a transaction, in which no other
//! of the same owner counts runs and chats.

use deadpool_postgres::{Client, Transaction};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, LiveRunChange,
};

use super::{CONTROL, FRAME, NOTE, columns, head, head_columns, this_log};
use crate::error::{DbResult, PostgresError};
use crate::{
    OPERATION_TIMEOUT, PostgresStore, column, give_back, millis, number, stored, until_time,
};

impl PostgresStore {
    pub(super) async fn append_to_log(
        &self,
        append: AppendLog<'_>,
    ) -> Result<AppendResult, PostgresError> {
        let begins = append.live_run.new_run().is_some();
        if begins || matches!(append.expected, Expected::NoLog(_)) {
            return self.logged(self.append_as_only_one(append).await);
        }
        let columns = Columns::new(&append);
        let rows = self.query(APPEND, &columns.values(&columns.expected, &None)).await?;
        appended(rows.first(), &append).map(|result| result.unwrap_or(AppendResult::Conflict))
    }

    /// Appends in a transaction, while no other one of this owner begins a run or creates a log.
    async fn append_as_only_one(
        &self,
        append: AppendLog<'_>,
    ) -> Result<AppendResult, PostgresError> {
        let pool = &self.inner.pool;
        let until = Instant::now() + OPERATION_TIMEOUT;
        let mut client = until_time(until, async { Ok(pool.get().await?) }).await?;
        let begun = Instant::now();
        let result = until_time(until, append_with(&mut client, append)).await;
        give_back(pool, (client, begun), result)
    }
}

async fn append_with(client: &mut Client, append: AppendLog<'_>) -> DbResult<AppendResult> {
    let columns = Columns::new(&append);
    let transaction = client.transaction().await?;
    query(&transaction, LOCK_OWNER, &[&columns.owner]).await?;
    let result = loop {
        let state = State::read(&transaction, &columns).await?;
        if let Some(refusal) = state.refusal(&append) {
            break refusal;
        }
        if state.lacks_place(&append) {
            // Another run may have to end for this one.
            let unread = millis(append.limits.unread);
            if query(&transaction, MARK, &[&columns.owner, &unread]).await?.is_empty() {
                break AppendResult::TooManyRuns;
            }
        }
        let mut expected = columns.expected;
        if let Expected::NoLog(_) = append.expected {
            query(&transaction, DELETE_EXPIRED, &[&columns.owner, &columns.id]).await?;
            query(&transaction, CREATE, &[&columns.owner, &columns.id, &expected.epoch]).await?;
            expected.position = Some(0);
        }
        let is_live = Some(state.is_live);
        let values = columns.values(&expected, &is_live);
        let rows = query(&transaction, APPEND, &values).await?;
        if let Some(result) = appended(rows.first(), &append)? {
            break result;
        }
        // Otherwise the log was changed between the statements.
    };
    match result {
        AppendResult::Appended { .. } => transaction.commit().await?,
        // Also not that another run has to end.
        _ => transaction.rollback().await?,
    }
    Ok(result)
}

async fn query(
    transaction: &Transaction<'_>,
    statement: &'static str,
    values: &[&(dyn ToSql + Sync)],
) -> DbResult<Vec<Row>> {
    let prepared = transaction.prepare_cached(statement).await?;
    Ok(transaction.query(&prepared, values).await?)
}

fn appended(
    row: Option<&Row>,
    append: &AppendLog<'_>,
) -> Result<Option<AppendResult>, PostgresError> {
    let head = row.map(head).transpose()?;
    Ok(head.map(|head| {
        let first = head.length.saturating_sub(append.entries.len() as u64);
        AppendResult::Appended { first, head }
    }))
}

/// What the limits and the expected log are compared with.
struct State {
    /// The epoch, the number of entries and the number of control entries. `None` if there is no log.
    log: Option<(Epoch, u64, u64)>,
    is_live: bool,
    is_lost: Option<bool>,
    /// The number of runs of the owner that take a place.
    runs: u64,
    /// The number of chats of the owner. Not counted if there is a log.
    chats: u64,
}

impl State {
    async fn read(transaction: &Transaction<'_>, columns: &Columns<'_>) -> DbResult<State> {
        let rows = query(transaction, STATE, &[&columns.owner, &columns.id]).await?;
        let row = rows.first().ok_or(PostgresError::Unreadable("log"))?;
        let log = match column::<Option<i64>>(row, 0)? {
            Some(_) => Some((Epoch(number(row, 0)?), number(row, 1)?, number(row, 2)?)),
            None => None,
        };
        Ok(State {
            log,
            is_live: column(row, 3)?,
            is_lost: column(row, 4)?,
            runs: number(row, 5)?,
            chats: number(row, 6)?,
        })
    }

    fn refusal(&self, append: &AppendLog<'_>) -> Option<AppendResult> {
        let creates = self.log.is_none();
        match () {
            () if !append.expected.is_met(self.log) => Some(AppendResult::Conflict),
            () if append.only_lost && !(self.is_live && self.is_lost == Some(true)) => {
                Some(AppendResult::Conflict)
            }
            () if creates && self.chats >= append.limits.chats as u64 => {
                Some(AppendResult::TooManyChats)
            }
            () => None,
        }
    }

    /// Whether the owner has no place for the run that begins.
    fn lacks_place(&self, append: &AppendLog<'_>) -> bool {
        let begins = append.live_run.new_run().is_some() && !self.is_live;
        begins && self.runs >= append.limits.runs as u64
    }
}

/// An append as the statement takes it.
struct Columns<'a> {
    owner: String,
    id: &'a [u8],
    expected: ExpectedColumns,
    kinds: Vec<i16>,
    bodies: Vec<&'a [u8]>,
    controls: i64,
    lease: Option<i64>,
    only_lost: bool,
    /// 0 nothing, 1 the live run ends, 2 a run begins, 3 a run resumes the live one.
    change: i16,
    run: Option<&'a [u8]>,
    title: Option<&'a [u8]>,
    has_questions: Option<bool>,
    keep_for: Option<i64>,
    is_for_sink: bool,
    changes_list: bool,
}

#[derive(Clone, Copy)]
struct ExpectedColumns {
    epoch: i64,
    control: Option<i64>,
    position: Option<i64>,
}

impl<'a> Columns<'a> {
    fn new(append: &AppendLog<'a>) -> Self {
        let (owner, id) = columns(append.key);
        let kind = |kind| match kind {
            EntryKind::Frame => FRAME,
            EntryKind::Note => NOTE,
            EntryKind::Control => CONTROL,
        };
        let kinds: Vec<i16> = append.entries.iter().map(|entry| kind(entry.kind)).collect();
        let (epoch, control, position) = match append.expected {
            Expected::NoLog(epoch) => (epoch, None, None),
            Expected::Control { epoch, control } => (epoch, Some(stored(control)), None),
            Expected::Position { epoch, position } => (epoch, None, Some(stored(position))),
        };
        let change = match append.live_run {
            LiveRunChange::None => 0,
            LiveRunChange::Ends => 1,
            LiveRunChange::Begins(_) => 2,
            LiveRunChange::Resumes(_) => 3,
        };
        Columns {
            owner,
            id,
            expected: ExpectedColumns { epoch: stored(epoch.0), control, position },
            kinds,
            bodies: append.entries.iter().map(|entry| &*entry.bytes).collect(),
            controls: stored(append.controls()),
            lease: append.lease.map(millis),
            only_lost: append.only_lost,
            change,
            run: append.live_run.new_run().map(|run| run.as_bytes()),
            title: append.listed.map(|listed| listed.title.as_bytes()),
            has_questions: append.listed.map(|listed| listed.has_questions),
            keep_for: append.keep_for.map(millis),
            is_for_sink: append.is_for_sink,
            changes_list: append.changes_list(),
        }
    }

    /// Returns the values of [`APPEND`]. With `is_live` a run must be live, or none.
    fn values<'v>(
        &'v self,
        expected: &'v ExpectedColumns,
        is_live: &'v Option<bool>,
    ) -> [&'v (dyn ToSql + Sync); 18] {
        [
            &self.owner,
            &self.id,
            &expected.epoch,
            &expected.control,
            &expected.position,
            is_live,
            &self.kinds,
            &self.bodies,
            &self.controls,
            &self.lease,
            &self.only_lost,
            &self.change,
            &self.run,
            &self.title,
            &self.has_questions,
            &self.keep_for,
            &self.is_for_sink,
            &self.changes_list,
        ]
    }
}

/// Returns the head, or no row if the log is not the expected one.
const APPEND: &str = concat!(
    "WITH changed AS (UPDATE logs SET length = length + cardinality($7::SMALLINT[]), \
        control = control + $9::BIGINT, \
        ended_begin = CASE WHEN $12::SMALLINT IN (1, 2) AND live_run IS NOT NULL \
            THEN run_begin WHEN $12 = 1 THEN length END, \
        live_run = CASE $12 WHEN 0 THEN live_run ELSE $13::BYTEA END, \
        run_begin = CASE WHEN $12 = 2 OR $12 = 3 AND live_run IS NULL THEN length ELSE run_begin END, \
        lease = coalesce($10::BIGINT, CASE WHEN $12 < 2 THEN lease ELSE 0 END), \
        renewed_at = CASE WHEN $10 IS NULL AND $12 < 2 THEN renewed_at ELSE now_ms() END, \
        read_at = CASE WHEN $12 < 2 THEN read_at ELSE now_ms() END, \
        has_to_end = has_to_end AND $12 = 0, \
        title = CASE WHEN is_renamed THEN title ELSE coalesce($14::BYTEA, title) END, \
        has_questions = coalesce($15::BOOLEAN, has_questions), \
        updated_at = CASE WHEN $9 = 0 THEN updated_at ELSE \
            now_not_before((SELECT max(updated_at) FROM logs WHERE owner = $1)) END, \
        expires_at = CASE WHEN $9 = 0 THEN expires_at ELSE now_ms() + $16::BIGINT END \
    WHERE ",
    this_log!(),
    " AND epoch = $3::BIGINT AND ($4::BIGINT IS NULL OR control = $4) \
        AND ($5::BIGINT IS NULL OR length = $5) \
        AND ($6::BOOLEAN IS NULL OR (live_run IS NOT NULL) = $6) \
        AND (NOT $11::BOOLEAN OR live_run IS NOT NULL AND NOT is_leased(renewed_at, lease)) \
    RETURNING *), \
    written AS (INSERT INTO log_entries (log, position, kind, body) \
        SELECT key, length - cardinality($7) + entry.number - 1, entry.kind, entry.body \
        FROM changed, unnest($7, $8::BYTEA[]) WITH ORDINALITY AS entry (kind, body, number)), \
    ended AS (INSERT INTO log_ended_runs (log, begin, ended_at) \
        SELECT key, ended_begin, now_ms() FROM changed WHERE ended_begin IS NOT NULL), \
    delivery AS (INSERT INTO log_deliveries (owner, id, epoch, position, due_at) \
        SELECT owner, id, epoch, length, now_ms() FROM changed WHERE $17::BOOLEAN \
        ON CONFLICT (owner, id) DO UPDATE SET epoch = excluded.epoch, \
            position = excluded.position, due_at = excluded.due_at) \
    SELECT ",
    head_columns!(),
    ", CASE WHEN cardinality($7) > 0 OR $18::BOOLEAN \
        THEN publish_log(owner, id, length, FALSE, $18) END FROM changed"
);
const LOCK_OWNER: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended($1, hashtext(current_schema() || ' logs')))";
const STATE: &str = "SELECT epoch, length, control, live_run IS NOT NULL, \
        NOT is_leased(renewed_at, lease), \
        (SELECT count(*) FROM logs WHERE owner = $1 AND live_run IS NOT NULL \
            AND NOT has_to_end AND is_leased(renewed_at, lease) \
            AND (expires_at IS NULL OR expires_at > now_ms())), \
        CASE WHEN epoch IS NULL THEN (SELECT count(*) FROM logs \
            WHERE owner = $1 AND (expires_at IS NULL OR expires_at > now_ms())) ELSE 0 END \
    FROM (VALUES (0)) AS one LEFT JOIN logs ON owner = $1 AND id = $2 \
        AND (expires_at IS NULL OR expires_at > now_ms())";
/// A read far in the future was before the clock was set back, and does not count.
const MARK: &str = "UPDATE logs SET has_to_end = TRUE \
    WHERE now_ms() - read_at NOT BETWEEN -60000 AND $2::BIGINT - 1 AND live_run IS NOT NULL \
        AND key = (SELECT key FROM logs WHERE owner = $1 AND live_run IS NOT NULL \
            AND NOT has_to_end AND is_leased(renewed_at, lease) \
            AND (expires_at IS NULL OR expires_at > now_ms()) \
            ORDER BY read_at <= now_ms() + 60000, read_at, id LIMIT 1) RETURNING key";
const DELETE_EXPIRED: &str =
    "DELETE FROM logs WHERE owner = $1 AND id = $2 AND expires_at <= now_ms()";
const CREATE: &str = "INSERT INTO logs (owner, id, epoch, updated_at) VALUES ($1, $2, $3, \
    now_not_before((SELECT max(updated_at) FROM logs WHERE owner = $1)))";
