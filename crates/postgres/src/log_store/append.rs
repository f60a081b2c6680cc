//! Appends to a log.
//!
//! An append is one call of a function in Postgres. Appends to several logs that are ready at the same moment are one call,
//! unless they change lists. One that begins a run or creates a log is a transaction, in which no other of the same
//! owner counts runs and chats.

use bytes::Bytes;
use deadpool_postgres::{Client, Transaction};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, LiveRunChange, LogHead,
};

use super::batches::{Batched, Batches, Executed, in_order};
use super::{CONTROL, FRAME, NOTE, columns, head, head_columns};
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
        // These change no row that those of other logs change, or wait for.
        let may_be_together = !append.changes_list() && !append.only_lost && !append.is_for_sink;
        if may_be_together && let Some(head) = self.execute_in_batch(columns.clone()).await? {
            return Ok(appended(head, &append));
        }
        // Alone it waits for another transaction that has locked the log.
        let is_alone = false;
        let columns = [columns];
        let values = values(&is_alone, &columns);
        let rows = self.query(APPEND, &references(&values)).await?;
        let head = rows.first().map(head).transpose()?;
        Ok(head.map_or(AppendResult::Conflict, |head| appended(head, &append)))
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

impl Batched for Columns {
    type Reply = LogHead;

    fn batches(store: &PostgresStore) -> &Batches<Self> {
        &store.inner.appends
    }

    fn bytes(&self) -> usize {
        self.bodies.iter().map(Bytes::len).sum()
    }

    async fn execute(
        store: &PostgresStore,
        batch: &[Self],
    ) -> Result<Vec<Executed<LogHead>>, PostgresError> {
        let skips_locked = true;
        let values = values(&skips_locked, batch);
        let rows = store.query(APPEND, &references(&values)).await?;
        in_order(&rows, batch.len(), head)
    }
}

async fn append_with(client: &mut Client, append: AppendLog<'_>) -> DbResult<AppendResult> {
    let mut columns = Columns::new(&append);
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
        if let Expected::NoLog(_) = append.expected {
            query(&transaction, DELETE_EXPIRED, &[&columns.owner, &columns.id]).await?;
            query(&transaction, CREATE, &[&columns.owner, &columns.id, &columns.epoch]).await?;
            columns.position = Some(0);
        }
        columns.is_live = Some(state.is_live);
        let skips_locked = false;
        let batch = std::slice::from_ref(&columns);
        let values = values(&skips_locked, batch);
        if let Some(row) = query(&transaction, APPEND, &references(&values)).await?.first() {
            break appended(head(row)?, &append);
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

fn appended(head: LogHead, append: &AppendLog<'_>) -> AppendResult {
    let first = head.length.saturating_sub(append.entries.len() as u64);
    AppendResult::Appended { first, head }
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
    async fn read(transaction: &Transaction<'_>, columns: &Columns) -> DbResult<State> {
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

/// An append as the function takes it.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    owner: String,
    id: Vec<u8>,
    epoch: i64,
    control: Option<i64>,
    position: Option<i64>,
    /// A run must be live, or none.
    is_live: Option<bool>,
    only_lost: bool,
    kinds: Vec<i16>,
    bodies: Vec<Bytes>,
    controls: i64,
    lease: Option<i64>,
    /// 0 nothing, 1 the live run ends, 2 a run begins, 3 a run resumes the live one.
    change: i16,
    run: Option<Vec<u8>>,
    title: Option<Vec<u8>>,
    has_questions: Option<bool>,
    keep_for: Option<i64>,
    is_for_sink: bool,
    changes_list: bool,
}

impl Columns {
    fn new(append: &AppendLog<'_>) -> Self {
        let (owner, id) = columns(append.key);
        let kind = |kind| match kind {
            EntryKind::Frame => FRAME,
            EntryKind::Note => NOTE,
            EntryKind::Control => CONTROL,
        };
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
            id: id.to_vec(),
            epoch: stored(epoch.0),
            control,
            position,
            is_live: None,
            only_lost: append.only_lost,
            kinds: append.entries.iter().map(|entry| kind(entry.kind)).collect(),
            bodies: append.entries.iter().map(|entry| entry.bytes.clone()).collect(),
            controls: stored(append.controls()),
            lease: append.lease.map(millis),
            change,
            run: append.live_run.new_run().map(|run| run.as_bytes().to_vec()),
            title: append.listed.map(|listed| listed.title.as_bytes().to_vec()),
            has_questions: append.listed.map(|listed| listed.has_questions),
            keep_for: append.keep_for.map(millis),
            is_for_sink: append.is_for_sink,
            changes_list: append.changes_list(),
        }
    }

    fn entries(&self) -> i32 {
        self.kinds.len().try_into().unwrap_or(i32::MAX)
    }
}

type Value<'v> = Box<dyn ToSql + Sync + Send + 'v>;

/// Returns the values of [`APPEND`]: an array of each column.
fn values<'v>(skips_locked: &'v bool, appends: &'v [Columns]) -> Vec<Value<'v>> {
    fn each<'v, T>(appends: &'v [Columns], column: impl FnMut(&'v Columns) -> T) -> Value<'v>
    where
        T: ToSql + Sync + Send + 'v,
    {
        Box::new(appends.iter().map(column).collect::<Vec<T>>())
    }
    let mut last_entry = 0;
    let kinds: Vec<i16> = appends.iter().flat_map(|append| append.kinds.iter().copied()).collect();
    let bodies: Vec<&[u8]> =
        appends.iter().flat_map(|append| append.bodies.iter().map(|body| &**body)).collect();
    vec![
        Box::new(skips_locked),
        each(appends, |append| &*append.owner),
        each(appends, |append| &*append.id),
        each(appends, |append| append.epoch),
        each(appends, |append| append.control),
        each(appends, |append| append.position),
        each(appends, |append| append.is_live),
        each(appends, |append| append.only_lost),
        each(appends, Columns::entries),
        each(appends, |append| append.controls),
        each(appends, |append| {
            last_entry += append.entries();
            last_entry
        }),
        each(appends, |append| append.lease),
        each(appends, |append| append.change),
        each(appends, |append| append.run.as_deref()),
        each(appends, |append| append.title.as_deref()),
        each(appends, |append| append.has_questions),
        each(appends, |append| append.keep_for),
        each(appends, |append| append.is_for_sink),
        each(appends, |append| append.changes_list),
        Box::new(kinds),
        Box::new(bodies),
    ]
}

fn references<'v>(values: &'v [Value<'_>]) -> Vec<&'v (dyn ToSql + Sync)> {
    values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
}

/// Returns the heads of the logs that are the expected ones, each with the number of its append, from 1.
const APPEND: &str = concat!(
    "SELECT ",
    head_columns!(),
    ", number FROM append_to_logs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, \
        $17, $18, $19, $20, $21)"
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
