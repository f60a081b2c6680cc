//! [`RunStore`] of a [`SqliteStore`]: a row for each run, and the entries of its log in rows and in the
//! [journal](crate::journal).

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params, params};
use ui_message_stream::BoxFuture;
use ui_message_stream::chat::log::{
    AppendEntries, AppendRefusal, AppendResult, BeginResult, BeginRun, Fence, HolderStatus,
    LogEntry, LogPage, ReadLog, RunKey, RunState, TakeCondition, TakeRefusal, TakeResult, TakeRun,
};
use ui_message_stream::chat::store::{RunStore, RunStoreError};

use crate::clock::{Clock, MAX_SET_BACK};
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::hints::Progress;
use crate::journal::{Journal, StoredEntries};
use crate::logs::Logs;
use crate::writer::Operation;
use crate::{SqliteStore, owner_key};

impl RunStore for SqliteStore {
    fn begin<'a>(
        &'a self,
        begin: BeginRun<'a>,
    ) -> BoxFuture<'a, Result<BeginResult, RunStoreError>> {
        let BeginRun { max_user_runs, .. } = begin;
        let (holder, lease) = (begin.holder.to_string(), millis(begin.lease));
        Box::pin(async move {
            let key = begin.key.clone();
            let begun = self.write_logs(Durability::Written, move |transaction, clock, logs| {
                let now = clock.now(0);
                let columns = KeyColumns::of(&key);
                match Run::load(transaction, &logs.journal, &columns)? {
                    Some(run) => {
                        logs.forget_run(&key);
                        run.begin_again(transaction, now, &holder)
                    }
                    None => {
                        let new = NewRun { columns, holder, lease, now };
                        new.begin(transaction, logs, max_user_runs)
                    }
                }
            });
            let begun = begun.await.map_err(RunStoreError::new)?;
            // A reader may have looked for the run before it began.
            self.inner.hints.forget(begin.key);
            Ok(begun)
        })
    }

    fn append<'a>(
        &'a self,
        append: AppendEntries<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, RunStoreError>> {
        let AppendEntries { fence, position, end, .. } = append;
        // The bytes of an entry are shared.
        let entries = append.entries.to_vec();
        Box::pin(async move {
            let length = position.saturating_add(entries.len() as u64);
            let new = Append { key: append.key.clone(), fence, position, entries, end };
            let appended = self.logged(self.inner.writer.run(Durability::Written, new).await);
            let appended = appended.map_err(RunStoreError::new)?;
            if let AppendResult::Appended(_) = appended {
                let progress = Progress { length, fence: fence.0, is_over: end };
                self.inner.hints.add(append.key, progress);
            }
            Ok(appended)
        })
    }

    fn read<'a>(
        &'a self,
        read: ReadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, RunStoreError>> {
        let ReadLog { after, max_bytes, is_reader, .. } = read;
        Box::pin(async move {
            let key = read.key.clone();
            let found = self.read_logs(move |transaction, clock, journal| {
                let now = clock.now(0);
                let run = Run::load(transaction, journal, &KeyColumns::of(&key))?;
                let Some(run) = run else { return Ok(None) };
                let page = run.read(transaction, journal, now, &key, after, max_bytes)?;
                let is_noted = !is_reader || run.unread(now) < READ_PRECISION;
                Ok(Some((page, (!is_noted).then_some((run.key, now)))))
            });
            let Some((page, noted)) = found.await.map_err(RunStoreError::new)? else {
                return Ok(None);
            };
            if let Some((run, now)) = noted {
                self.note_read(read.key, run, now);
            }
            Ok(Some(page))
        })
    }

    fn take<'a>(&'a self, take: TakeRun<'a>) -> BoxFuture<'a, Result<TakeResult, RunStoreError>> {
        let TakeRun { fence, condition, lease, .. } = take;
        let new = (take.holder.to_string(), millis(lease));
        Box::pin(async move {
            let key = take.key.clone();
            let taken = self.write_logs(Durability::Written, move |transaction, clock, logs| {
                let now = clock.now(0);
                let run = Run::load(transaction, &logs.journal, &KeyColumns::of(&key))?;
                let Some(run) = run else {
                    return Ok(TakeResult::Refused(TakeRefusal::NotFound));
                };
                logs.forget_run(&key);
                run.take(transaction, now, fence, condition, &new)
            });
            let taken = taken.await.map_err(RunStoreError::new)?;
            if let TakeResult::Taken(fence) = taken {
                let progress = Progress { fence: fence.0, ..Progress::default() };
                self.inner.hints.add(take.key, progress);
            }
            Ok(taken)
        })
    }

    fn changed<'a>(&'a self, key: &'a RunKey, after: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(key, after))
    }
}

impl SqliteStore {
    /// Stores that a run was read. The reader does not wait for it, and it may be lost: the next
    /// read stores it again.
    fn note_read(&self, key: &RunKey, run: i64, now: i64) {
        let key = key.clone();
        let note = move |transaction: &Transaction<'_>, _: &Clock, logs: &mut Logs| {
            transaction.prepare_cached(NOTE_READ)?.execute([run, now])?;
            if let Some(run) = logs.known_run(&key)
                && run.unread(now) > 0
            {
                run.read_at = now;
            }
            Ok(())
        };
        self.inner.writer.try_start(Durability::Written, note);
    }
}

/// The key of a run as it is stored.
pub(crate) struct KeyColumns<'a> {
    owner: String,
    key: &'a RunKey,
}

impl<'a> KeyColumns<'a> {
    pub(crate) fn of(key: &'a RunKey) -> Self {
        KeyColumns { owner: owner_key(&key.owner), key }
    }

    fn chat(&self) -> &[u8] {
        self.key.chat.as_bytes()
    }

    fn run(&self) -> &[u8] {
        self.key.run.as_bytes()
    }
}

/// A run that does not exist yet.
struct NewRun<'a> {
    columns: KeyColumns<'a>,
    holder: String,
    lease: i64,
    now: i64,
}

impl NewRun<'_> {
    fn begin(
        self,
        transaction: &Transaction<'_>,
        logs: &mut Logs,
        max_runs: usize,
    ) -> DbResult<BeginResult> {
        let NewRun { columns, holder, lease, now } = self;
        let live = live_runs(transaction, &logs.journal, &columns.owner, now, max_runs)?;
        if live.len() >= max_runs {
            let unread = live.iter().find(|run| run.unread(now) >= READER_TIMEOUT);
            let Some(oldest) = unread else { return Ok(BeginResult::TooManyRuns) };
            transaction
                .prepare_cached("UPDATE runs SET has_to_end = 1 WHERE key = ?1")?
                .execute([oldest.key])?;
            logs.forget_run_numbered(oldest.key);
        }
        transaction.prepare_cached(INSERT)?.execute(named_params! {
            ":owner": columns.owner, ":chat": columns.chat(), ":run": columns.run(),
            ":format": FORMAT, ":holder": holder, ":fence": FIRST, ":lease": lease, ":now": now,
        })?;
        Ok(BeginResult::Begun(fence_of(FIRST)))
    }
}

/// Returns the runs of an owner that count as live, oldest first. If they are fewer than `max_runs`,
/// it may return none.
fn live_runs(
    transaction: &Transaction<'_>,
    journal: &Journal,
    owner: &str,
    now: i64,
    max_runs: usize,
) -> DbResult<Vec<Run>> {
    let count = |row: &Row<'_>| row.get::<_, i64>(0);
    let without_end = transaction.prepare_cached(COUNT_WITHOUT_END)?.query_row([owner], count)?;
    if unsigned(without_end) < max_runs as u64 {
        return Ok(Vec::new());
    }
    let mut statement = transaction.prepare_cached(COUNTED)?;
    let runs = statement.query_map([owner], |row| Run::from_row(row, journal))?;
    let counted: Vec<Run> = runs.collect::<Result<_, _>>()?;
    Ok(counted.into_iter().filter(|run| run.is_leased(now)).collect())
}

/// An append, with what it needs on another thread.
pub(crate) struct Append {
    pub(crate) key: RunKey,
    fence: Fence,
    position: u64,
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) end: bool,
}

impl Operation<AppendResult> for Append {
    fn is_frames(&self) -> bool {
        !self.end && self.entries.iter().all(|entry| matches!(entry, LogEntry::Frame(_)))
    }

    fn try_in_memory(&mut self, clock: &Clock, logs: &mut Logs) -> Option<AppendResult> {
        logs.append_in_memory(clock.now(0), self).map(AppendResult::Appended)
    }

    fn run(
        self,
        transaction: &Transaction<'_>,
        clock: &Clock,
        logs: &mut Logs,
    ) -> DbResult<AppendResult> {
        logs.refresh(transaction)?;
        logs.append(transaction, clock.now(0), &self)
    }
}

/// What is to be done for an append.
pub(crate) enum CheckedAppend {
    /// The log does not hold it yet.
    New(HolderStatus),
    /// The log is not changed.
    Done(AppendResult),
}

/// A stored run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) key: i64,
    format: i64,
    holder: String,
    fence: i64,
    lease: i64,
    /// The last renewal of the lease, with or without an entry.
    renewed_at: i64,
    pub(crate) read_at: i64,
    has_to_end: bool,
    pub(crate) ended_at: Option<i64>,
    /// The number of entries.
    pub(crate) length: i64,
    /// The number of entries that are in rows of the log, and not only in the journal.
    pub(crate) moved: i64,
}

impl Run {
    /// Loads a run. Fails if a newer version has written it.
    pub(crate) fn load(
        connection: &Connection,
        journal: &Journal,
        key: &KeyColumns<'_>,
    ) -> DbResult<Option<Self>> {
        let mut statement = connection.prepare_cached(LOAD)?;
        let key = params![key.owner, key.chat(), key.run()];
        let run = statement.query_row(key, |row| Self::from_row(row, journal));
        match run.optional()? {
            Some(Run { format, .. }) if format > FORMAT => {
                Err(SqliteError::NewerRunFormat { format, known: FORMAT }.into())
            }
            run => Ok(run),
        }
    }

    /// Reads the columns that [`LOAD`] selects.
    pub(crate) fn from_row(row: &Row<'_>, journal: &Journal) -> rusqlite::Result<Self> {
        let (key, mut renewed_at): (i64, i64) = (row.get(0)?, row.get(5)?);
        let moved = row.get::<_, Option<i64>>(9)?.unwrap_or(0);
        renewed_at = row.get::<_, Option<i64>>(10)?.map_or(renewed_at, |at| at.max(renewed_at));
        let mut length = moved;
        if let Some(tail) = journal.tail(key, moved) {
            (length, renewed_at) = (length.max(tail.end()), renewed_at.max(tail.at));
        }
        Ok(Run {
            key,
            format: row.get(1)?,
            holder: row.get(2)?,
            fence: row.get(3)?,
            lease: row.get(4)?,
            renewed_at,
            read_at: row.get(6)?,
            has_to_end: row.get(7)?,
            ended_at: row.get(8)?,
            length,
            moved,
        })
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            length: unsigned(self.length),
            fence: unsigned(self.fence),
            is_over: self.ended_at.is_some(),
        }
    }

    pub(crate) fn lease_end(&self) -> i64 {
        self.renewed_at.saturating_add(self.lease)
    }

    /// Whether the lease has not passed. A lease that was renewed far in the future was renewed
    /// before the clock was set back.
    pub(crate) fn is_leased(&self, now: i64) -> bool {
        now < self.lease_end() && self.renewed_at.saturating_sub(now) <= MAX_SET_BACK
    }

    /// Returns how long no reader has read the run. It is negative if the clock was set back. A read
    /// far in the future was before the clock was set back by more, and does not count.
    fn unread(&self, now: i64) -> i64 {
        match now.saturating_sub(self.read_at) {
            unread if unread >= -MAX_SET_BACK => unread,
            _ => i64::MAX,
        }
    }

    fn begin_again(
        self,
        transaction: &Transaction<'_>,
        now: i64,
        holder: &str,
    ) -> DbResult<BeginResult> {
        let is_same = self.holder == holder && self.fence == FIRST && self.length == 0;
        if !is_same || self.ended_at.is_some() {
            return Ok(BeginResult::Exists);
        }
        self.renew(transaction, now)?;
        Ok(BeginResult::Begun(fence_of(FIRST)))
    }

    fn status(&self, now: i64) -> HolderStatus {
        HolderStatus {
            unread: Duration::from_millis(unsigned(now - self.read_at)),
            has_to_end: self.has_to_end,
        }
    }

    /// Returns the status for the holder if this append is the next one.
    pub(crate) fn check_next(&self, now: i64, append: &Append) -> Option<HolderStatus> {
        let is_next = fence_of(self.fence) == append.fence
            && unsigned(self.length) == append.position
            && self.ended_at.is_none();
        is_next.then(|| self.status(now))
    }

    /// Decides what is to be done for an append.
    pub(crate) fn check_append(
        &self,
        transaction: &Connection,
        journal: &Journal,
        now: i64,
        append: &Append,
    ) -> DbResult<CheckedAppend> {
        let done = |result| Ok(CheckedAppend::Done(result));
        let refused = |refusal| done(AppendResult::Refused(refusal));
        if fence_of(self.fence) != append.fence {
            return refused(AppendRefusal::Taken);
        }
        let position = match i64::try_from(append.position) {
            Ok(position) if position <= self.length => position,
            _ => return refused(AppendRefusal::Gap),
        };
        let status = self.status(now);
        let has_ended = self.ended_at.is_some();
        if position < self.length || has_ended {
            let renews_only = append.entries.is_empty() && !append.end;
            let stored = unsigned(self.length - position);
            let ends_alike = !append.end || has_ended && stored == append.entries.len() as u64;
            let is_repeated = !renews_only
                && ends_alike
                && self.holds(transaction, journal, &append.key, position, &append.entries)?;
            return match is_repeated {
                true => done(AppendResult::Appended(status)),
                false if has_ended => refused(AppendRefusal::Ended),
                false => refused(AppendRefusal::Gap),
            };
        }
        Ok(CheckedAppend::New(status))
    }

    /// Ends the log.
    pub(crate) fn end(
        &self,
        transaction: &Connection,
        journal: &Journal,
        now: i64,
    ) -> DbResult<()> {
        let bytes = self.bytes(transaction, journal)?;
        transaction.prepare_cached(END)?.execute([self.key, now, bytes])?;
        Ok(())
    }

    /// Returns the bytes of the log, with those that a run needs besides.
    pub(crate) fn bytes(&self, connection: &Connection, journal: &Journal) -> DbResult<i64> {
        let bytes: i64 =
            connection.prepare_cached(BYTES)?.query_row([self.key], |row| row.get(0))?;
        // Else the entries in the journal are in the rows, too.
        let tail = journal.tail(self.key, self.moved).filter(|tail| tail.end() > self.moved);
        let tail = tail.map_or(0, |tail| tail.body.len());
        Ok(bytes.saturating_add_unsigned(tail as u64))
    }

    /// Whether the log holds these entries at this position.
    fn holds(
        &self,
        transaction: &Connection,
        journal: &Journal,
        key: &RunKey,
        position: i64,
        entries: &[LogEntry],
    ) -> DbResult<bool> {
        let (mut rest, mut is_same) = (entries.iter(), true);
        self.visit(transaction, journal, key, position, |stored| {
            let Some(entry) = rest.next() else { return false };
            is_same = stored == *entry;
            is_same
        })?;
        Ok(is_same && rest.next().is_none())
    }

    /// Calls a function with each entry of the log from this position on, until it returns `false`.
    fn visit(
        &self,
        connection: &Connection,
        journal: &Journal,
        key: &RunKey,
        position: i64,
        mut visit: impl FnMut(LogEntry) -> bool,
    ) -> DbResult<()> {
        if position < self.moved {
            let mut statement = connection.prepare_cached(ENTRIES)?;
            let mut rows = statement.query([self.key, position])?;
            while let Some(row) = rows.next()? {
                let body = row.get::<_, Vec<u8>>(1)?.into();
                let stored = StoredEntries { run: &key.run, position: row.get(0)?, body };
                if !stored.visit_from(position, &mut visit)? {
                    return Ok(());
                }
            }
        }
        if let Some(tail) = journal.tail(self.key, self.moved) {
            let body = Bytes::copy_from_slice(&tail.body);
            let stored = StoredEntries { run: &key.run, position: tail.position, body };
            stored.visit_from(position.max(self.moved), &mut visit)?;
        }
        Ok(())
    }

    fn read(
        &self,
        transaction: &Connection,
        journal: &Journal,
        now: i64,
        key: &RunKey,
        after: u64,
        max_bytes: usize,
    ) -> DbResult<LogPage> {
        let mut entries = Vec::new();
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        if after < self.length {
            let mut bytes = 0_usize;
            self.visit(transaction, journal, key, after, |entry| {
                bytes = bytes.saturating_add(entry.bytes().len().max(1));
                let fits = entries.is_empty() || bytes <= max_bytes;
                if fits {
                    entries.push(entry);
                }
                fits
            })?;
        }
        let state = match (self.ended_at, self.is_leased(now)) {
            (Some(_), _) => RunState::Ended,
            (None, true) => RunState::Leased,
            (None, false) => RunState::LeasePassed,
        };
        let length = unsigned(self.length);
        Ok(LogPage { entries, length, fence: fence_of(self.fence), state })
    }

    fn take(
        self,
        transaction: &Transaction<'_>,
        now: i64,
        fence: Fence,
        condition: TakeCondition,
        (holder, lease): &(String, i64),
    ) -> DbResult<TakeResult> {
        let refused = |refusal| Ok(TakeResult::Refused(refusal));
        let newest = fence_of(self.fence);
        if self.ended_at.is_some() {
            return refused(TakeRefusal::Ended);
        }
        let is_repeated = fence.0.checked_add(1) == Some(newest.0) && self.holder == *holder;
        if !is_repeated && newest != fence {
            return refused(TakeRefusal::OtherFence(newest));
        }
        if !is_repeated && condition == TakeCondition::LeasePassed && self.is_leased(now) {
            return refused(TakeRefusal::LeaseRenewed);
        }
        let next = self.fence + i64::from(!is_repeated);
        transaction.prepare_cached(TAKE)?.execute(params![self.key, next, holder, now, lease])?;
        Ok(TakeResult::Taken(fence_of(next)))
    }

    /// Begins the lease again.
    pub(crate) fn renew(&self, transaction: &Connection, now: i64) -> DbResult<()> {
        transaction
            .prepare_cached("UPDATE runs SET renewed_at = ?2 WHERE key = ?1")?
            .execute([self.key, now])?;
        Ok(())
    }
}

fn fence_of(stored: i64) -> Fence {
    Fence(unsigned(stored))
}

fn unsigned(number: i64) -> u64 {
    number.try_into().unwrap_or(0)
}

fn millis(time: Duration) -> i64 {
    time.as_millis().try_into().unwrap_or(i64::MAX)
}

/// Selects the columns of a [`Run`].
macro_rules! select_run {
    ($condition:literal) => {
        concat!(
            "SELECT runs.key, format, holder, fence, lease, renewed_at, read_at, has_to_end, ended_at, \
                last.position + last.length, last.at \
            FROM runs LEFT JOIN run_entries AS last ON last.run = runs.key AND last.position = \
                (SELECT max(position) FROM run_entries WHERE run_entries.run = runs.key) ",
            $condition
        )
    };
}

const LOAD: &str = select_run!("WHERE owner = ?1 AND chat = ?2 AND runs.run = ?3");
/// Reads only the index of the runs without end.
const COUNT_WITHOUT_END: &str = "SELECT count(*) FROM runs WHERE owner = ?1 AND ended_at IS NULL";
/// The runs of an owner that may count as live, oldest first.
const COUNTED: &str = select_run!(
    "WHERE owner = ?1 AND ended_at IS NULL AND has_to_end = 0 AND fence = 1 ORDER BY runs.key"
);
/// The runs whose log has not ended, also those whose lease has passed.
pub(crate) const WITHOUT_END: &str = select_run!("WHERE ended_at IS NULL");
pub(crate) const BY_NUMBER: &str = select_run!("WHERE runs.key = ?1");
const INSERT: &str = "INSERT INTO runs (owner, chat, run, format, holder, fence, lease, \
        renewed_at, read_at, has_to_end) \
    VALUES (:owner, :chat, :run, :format, :holder, :fence, :lease, :now, :now, 0)";
/// The rows that hold the entry at a position and those after it.
const ENTRIES: &str = "SELECT position, body FROM run_entries \
    WHERE run = ?1 AND position >= \
        (SELECT max(position) FROM run_entries WHERE run = ?1 AND position <= ?2) \
    ORDER BY position";
const END: &str = "UPDATE runs SET ended_at = ?2, ended_bytes = ?3 WHERE key = ?1";
/// The bytes of the rows of a log, with those that a run and a row need besides their content.
const BYTES: &str = "SELECT 512 + count(*) * 64 + coalesce(sum(length(body)), 0) \
    FROM run_entries WHERE run = ?1";
const TAKE: &str =
    "UPDATE runs SET fence = ?2, holder = ?3, renewed_at = ?4, lease = ?5 WHERE key = ?1";
const NOTE_READ: &str = "UPDATE runs SET read_at = ?2 WHERE key = ?1 \
    AND (read_at < ?2 OR read_at > ?2 + 60000)";

/// The format of a run and of its entries. It is stored with each run.
const FORMAT: i64 = 1;

/// The fence of the holder that began a run.
const FIRST: i64 = 1;

/// The time, in milliseconds, after which a reader that reads no more does not count.
const READER_TIMEOUT: i64 = 30_000;

/// A run that was read within this time, in milliseconds, is not marked as read again.
const READ_PRECISION: i64 = 1_000;
