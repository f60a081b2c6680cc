//! [`RunStore`] of a [`PostgresStore`]: a row for each run, and a row for each append to its log.
//!
//! An append and a take are one statement, which changes the run if it may. If it has changed
//! nothing, the run is read, and says why.

use bytes::Bytes;
use deadpool_postgres::{Client, Pool};
use tokio::time::Instant;
use ui_message_stream::BoxFuture;
use ui_message_stream::chat::log::{
    AppendEntries, AppendRefusal, AppendResult, BeginResult, BeginRun, Fence, HolderStatus,
    LogEntry, LogPage, ReadLog, RunKey, RunState, TakeCondition, TakeRefusal, TakeResult, TakeRun,
};
use ui_message_stream::chat::store::{RunStore, RunStoreError};

use crate::error::{DbResult, PostgresError};
use crate::hints::run_digest;
use crate::{
    OPERATION_TIMEOUT, PostgresStore, column, give_back, millis, number, owner_key, stored,
    time_since, until_time,
};

impl RunStore for PostgresStore {
    fn begin<'a>(
        &'a self,
        begin: BeginRun<'a>,
    ) -> BoxFuture<'a, Result<BeginResult, RunStoreError>> {
        Box::pin(async move { Ok(self.logged(begin_run(&self.inner.pool, begin).await)?) })
    }

    fn append<'a>(
        &'a self,
        append: AppendEntries<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, RunStoreError>> {
        Box::pin(async move { Ok(self.append_to(append).await?) })
    }

    fn read<'a>(
        &'a self,
        read: ReadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, RunStoreError>> {
        Box::pin(
            async move { Ok(self.read_run(read).await?.map(|run| run.into_page(read.max_bytes))) },
        )
    }

    fn take<'a>(&'a self, take: TakeRun<'a>) -> BoxFuture<'a, Result<TakeResult, RunStoreError>> {
        Box::pin(async move { Ok(self.take_run(take).await?) })
    }

    fn changed<'a>(&'a self, key: &'a RunKey, after: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(run_digest(key), after))
    }
}

impl PostgresStore {
    async fn append_to(&self, append: AppendEntries<'_>) -> Result<AppendResult, PostgresError> {
        let AppendEntries { key, fence, position, entries, end } = append;
        let (owner, chat, run) = columns(key);
        let count = stored(entries.len() as u64);
        let bytes = stored(entries.iter().map(page_bytes).sum::<usize>() as u64);
        let body: Vec<Vec<u8>> = entries.iter().map(encode).collect();
        let (old_fence, length) = (stored(fence.0), stored(position));
        loop {
            let appended = self
                .query(
                    APPEND,
                    &[&owner, &chat, &run, &old_fence, &length, &count, &end, &body, &bytes],
                )
                .await?;
            if let Some(row) = appended.first() {
                let (unread, has_to_end) = (time_since(row, 0)?, column(row, 1)?);
                return Ok(AppendResult::Appended(HolderStatus { unread, has_to_end }));
            }
            let read = ReadLog { key, after: position, max_bytes: usize::MAX, is_reader: false };
            let Some(run) = self.read_run(read).await? else {
                return Ok(AppendResult::Refused(AppendRefusal::NotFound));
            };
            let has_ended = run.state == RunState::Ended;
            let has_more = position < run.length;
            if run.fence != fence {
                return Ok(AppendResult::Refused(AppendRefusal::Taken));
            }
            if position > run.length {
                return Ok(AppendResult::Refused(AppendRefusal::Gap));
            }
            if has_more || has_ended {
                let renews_only = entries.is_empty() && !end;
                let ends_alike = !end || has_ended && run.entries.len() == entries.len();
                let is_repeated = !renews_only && ends_alike && run.entries.starts_with(entries);
                return Ok(match is_repeated {
                    true => AppendResult::Appended(run.status),
                    false if has_ended => AppendResult::Refused(AppendRefusal::Ended),
                    false => AppendResult::Refused(AppendRefusal::Gap),
                });
            }
            // Otherwise the run was changed between the statements.
        }
    }

    async fn take_run(&self, take: TakeRun<'_>) -> Result<TakeResult, PostgresError> {
        let (owner, chat, run) = columns(take.key);
        let fence = stored(take.fence.0).min(i64::MAX - 1);
        let (next, holder) = (fence + 1, take.holder.to_string());
        let takes_leased = take.condition == TakeCondition::Any;
        let lease = millis(take.lease);
        loop {
            let taken = self
                .query(TAKE, &[&owner, &chat, &run, &fence, &next, &holder, &takes_leased, &lease])
                .await?;
            if let Some(row) = taken.first() {
                return Ok(TakeResult::Taken(Fence(number(row, 0)?)));
            }
            let read = ReadLog { key: take.key, after: 0, max_bytes: 0, is_reader: false };
            let refusal = match self.read_run(read).await? {
                None => TakeRefusal::NotFound,
                Some(run) if run.state == RunState::Ended => TakeRefusal::Ended,
                Some(run) if run.fence != take.fence => TakeRefusal::OtherFence(run.fence),
                Some(run) if run.state == RunState::Leased && !takes_leased => {
                    TakeRefusal::LeaseRenewed
                }
                // The run was changed between the statements.
                Some(_) => continue,
            };
            return Ok(TakeResult::Refused(refusal));
        }
    }

    /// Reads a run, with the entries of a page, perhaps some more, and at least one, if there is one.
    async fn read_run(&self, read: ReadLog<'_>) -> Result<Option<Run>, PostgresError> {
        let (owner, chat, run) = columns(read.key);
        let (after, max_bytes) = (stored(read.after), stored(read.max_bytes as u64));
        let rows =
            self.query(READ, &[&owner, &chat, &run, &read.is_reader, &after, &max_bytes]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        check_format(column(row, 0)?)?;
        let mut entries = Vec::new();
        for row in &rows {
            let Some(stored) = column::<Option<Vec<Vec<u8>>>>(row, 8)? else { continue };
            let skipped = read.after.saturating_sub(number(row, 7)?);
            let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
            for entry in stored.into_iter().skip(skipped) {
                entries.push(decode(entry)?);
            }
        }
        let (has_ended, is_leased) = (column(row, 3)?, column(row, 4)?);
        Ok(Some(Run {
            fence: Fence(number(row, 1)?),
            length: number(row, 2)?,
            state: match (has_ended, is_leased) {
                (true, _) => RunState::Ended,
                (false, true) => RunState::Leased,
                (false, false) => RunState::LeasePassed,
            },
            status: HolderStatus { unread: time_since(row, 5)?, has_to_end: column(row, 6)? },
            entries,
        }))
    }
}

/// A run that was read, with some of its entries.
struct Run {
    fence: Fence,
    length: u64,
    state: RunState,
    status: HolderStatus,
    entries: Vec<LogEntry>,
}

impl Run {
    fn into_page(self, max_bytes: usize) -> LogPage {
        let Run { fence, length, state, mut entries, .. } = self;
        let mut bytes = 0_usize;
        let fitting = entries.iter().take_while(|entry| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(page_bytes(entry));
            is_first || bytes <= max_bytes
        });
        let count = fitting.count();
        entries.truncate(count);
        LogPage { entries, length, fence, state }
    }
}

/// Begins a run in one transaction. Only one run of an owner begins at a time.
async fn begin_run(pool: &Pool, begin: BeginRun<'_>) -> Result<BeginResult, PostgresError> {
    let until = Instant::now() + OPERATION_TIMEOUT;
    let mut client = until_time(until, async { Ok(pool.get().await?) }).await?;
    let begun = Instant::now();
    let result = until_time(until, begin_with(&mut client, begin)).await;
    give_back(pool, (client, begun), result)
}

async fn begin_with(client: &mut Client, begin: BeginRun<'_>) -> DbResult<BeginResult> {
    let (owner, chat, run) = columns(begin.key);
    let (holder, lease) = (begin.holder.to_string(), millis(begin.lease));
    let transaction = client.transaction().await?;
    let lock = transaction.prepare_cached(LOCK_OWNER).await?;
    transaction.query(&lock, &[&owner]).await?;

    let list = transaction.prepare_cached(RUNS_OF_OWNER).await?;
    let (mut live, mut oldest_unread) = (0, None::<i64>);
    for row in transaction.query(&list, &[&owner, &chat, &run]).await? {
        let key = column(&row, 0)?;
        if column(&row, 1)? {
            check_format(column(&row, 2)?)?;
            let renew = transaction.prepare_cached(BEGIN_AGAIN).await?;
            let is_same = transaction.execute(&renew, &[&key, &holder]).await? == 1;
            transaction.commit().await?;
            return Ok(if is_same { BeginResult::Begun(FIRST) } else { BeginResult::Exists });
        }
        if column(&row, 3)? {
            live += 1;
            let is_unread: bool = column(&row, 4)?;
            oldest_unread = oldest_unread.or(is_unread.then_some(key));
        }
    }
    let to_end = match (live < begin.max_user_runs, oldest_unread) {
        (true, _) => None,
        (false, Some(oldest)) => Some(oldest),
        (false, None) => return Ok(BeginResult::TooManyRuns),
    };
    let insert = transaction.prepare_cached(BEGIN).await?;
    transaction.execute(&insert, &[&owner, &chat, &run, &holder, &lease, &to_end]).await?;
    transaction.commit().await?;
    Ok(BeginResult::Begun(FIRST))
}

/// Returns the bytes that an entry counts in a page.
fn page_bytes(entry: &LogEntry) -> usize {
    entry.bytes().len().max(1)
}

/// Returns an entry as it is stored: its kind, and its bytes.
fn encode(entry: &LogEntry) -> Vec<u8> {
    let kind = match entry {
        LogEntry::Frame(_) => FRAME,
        LogEntry::Note(_) => NOTE,
    };
    [&[kind], &**entry.bytes()].concat()
}

fn decode(stored: Vec<u8>) -> Result<LogEntry, PostgresError> {
    let mut bytes = Bytes::from(stored);
    match bytes.first() {
        Some(&FRAME) => Ok(LogEntry::Frame(bytes.split_off(1))),
        Some(&NOTE) => Ok(LogEntry::Note(bytes.split_off(1))),
        _ => Err(PostgresError::Unreadable("entry")),
    }
}

/// Returns the key of a run as it is stored.
fn columns(key: &RunKey) -> (String, &[u8], &[u8]) {
    (owner_key(&key.owner), key.chat.as_bytes(), key.run.as_bytes())
}

fn check_format(format: i32) -> Result<(), PostgresError> {
    match format {
        ..=FORMAT => Ok(()),
        _ => Err(PostgresError::NewerRunFormat { format, known: FORMAT }),
    }
}

/// Changes a run, if it has not ended and its format is known.
macro_rules! update_run {
    ($change:literal) => {
        concat!(
            "WITH changed AS (UPDATE runs SET renewed_at = now_ms(), ",
            $change,
            " AND owner = $1 AND chat = $2 AND run = $3 AND format <= 1 AND ended_at IS NULL \
            RETURNING *)"
        )
    };
}

const APPEND: &str = concat!(
    update_run!(
        "length = length + $6::BIGINT, ended_at = CASE WHEN $7::BOOLEAN THEN now_ms() END \
        WHERE fence = $4::BIGINT AND length = $5::BIGINT"
    ),
    ", written AS (INSERT INTO run_entries (run, position, entries, bytes) \
        SELECT key, $5, $8, $9 FROM changed WHERE $6 > 0) \
    SELECT now_ms() - read_at, has_to_end, CASE WHEN $6 > 0 OR $7 \
        THEN publish(owner, chat, run, length, fence, $7) END FROM changed"
);
const TAKE: &str = concat!(
    update_run!(
        "fence = $5::BIGINT, holder = $6, lease = $8::BIGINT WHERE (fence = $5 AND holder = $6 \
            OR fence = $4::BIGINT AND ($7::BOOLEAN OR NOT is_leased(renewed_at, lease)))"
    ),
    " SELECT fence, publish(owner, chat, run, length, fence, FALSE) FROM changed"
);
/// Reads a run and the rows of its log from the one that holds the entry at `$5`, until they have
/// `$6` bytes. The time at which a client reads the run is stored, once a second.
///
/// The bytes are added up in parts of the log, each as long as all before it together, until there
/// are enough. So the rows far behind those of a page are not visited.
const READ: &str = "WITH RECURSIVE noted AS (UPDATE runs SET read_at = now_ms() \
        WHERE $4::BOOLEAN AND owner = $1 AND chat = $2 AND run = $3 AND format <= 1 \
            AND now_ms() - read_at NOT BETWEEN 0 AND 999), \
    parts (run, length, first, until, bytes) AS (\
        SELECT key, length, start, start, 0::BIGINT \
        FROM runs, LATERAL (SELECT max(position) AS start FROM run_entries \
            WHERE run_entries.run = runs.key AND position <= $5) AS log \
        WHERE owner = $1 AND chat = $2 AND runs.run = $3 AND $5 < length \
        UNION ALL \
        SELECT run, length, first, until + greatest(until - first, 64), bytes + (\
            SELECT coalesce(sum(run_entries.bytes), 0)::BIGINT FROM run_entries \
            WHERE run_entries.run = parts.run AND position >= until \
                AND position < until + greatest(until - first, 64)) \
        FROM parts WHERE bytes < greatest($6::BIGINT, 1) AND until < length) \
    SELECT format, fence, runs.length, ended_at IS NOT NULL, is_leased(renewed_at, lease), \
        now_ms() - read_at, has_to_end, log.position, log.entries \
    FROM runs LEFT JOIN LATERAL (SELECT position, entries, sum(bytes) \
            OVER (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
        FROM run_entries WHERE run_entries.run = runs.key \
            AND position >= (SELECT min(first) FROM parts) \
            AND position < (SELECT max(until) FROM parts)\
        ) AS log ON log.before IS NULL OR log.before < $6 \
    WHERE owner = $1 AND chat = $2 AND runs.run = $3 ORDER BY log.position";
const LOCK_OWNER: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended($1, hashtext(current_schema())))";
/// The runs of an owner that are not over, and the one that begins, if it exists: the oldest first.
/// Whether it is this one, and whether it counts as live and has had no reader for 30 seconds. A read
/// far in the future was before the clock was set back, and does not count.
const RUNS_OF_OWNER: &str = "SELECT key, chat = $2 AND run = $3, format, \
        NOT has_to_end AND fence = 1 AND ended_at IS NULL AND is_leased(renewed_at, lease), \
        now_ms() - read_at NOT BETWEEN -60000 AND 29999 \
    FROM runs WHERE owner = $1 AND (ended_at IS NULL OR chat = $2 AND run = $3) ORDER BY key";
const BEGIN_AGAIN: &str = "UPDATE runs SET renewed_at = now_ms() WHERE key = $1 AND holder = $2 \
    AND fence = 1 AND length = 0 AND ended_at IS NULL";
const BEGIN: &str = "WITH marked AS (UPDATE runs SET has_to_end = TRUE WHERE key = $6) \
    INSERT INTO runs (owner, chat, run, format, holder, fence, lease, renewed_at, read_at) \
    SELECT $1, $2, $3, 1, $4, 1, $5, now, now FROM (SELECT now_ms() AS now) AS clock";

/// The format of a run and of its entries, which the statements above name, too.
const FORMAT: i32 = 1;

const FRAME: u8 = 0;
const NOTE: u8 = 1;

/// The fence of the holder that began a run.
const FIRST: Fence = Fence(1);
