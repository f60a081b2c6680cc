//! [`Append`]: entries are appended, and the head is changed, in one step.

use std::cmp::Reverse;
use std::time::Duration;

use rusqlite::{Transaction, named_params, params};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Expected, LiveRunChange, StoredEntry, UserLimits,
};

use super::head::{Head, KeyColumns, LiveRun, is_lost, unread};
use super::{deliveries, millis, removal, stored, unsigned};
use crate::clock::{stored_time, unix_millis};
use crate::error::DbResult;
use crate::file::Durability;
use crate::state;
use crate::writer::Operation;

/// An append, with what it needs on another thread.
pub(super) struct Append {
    key: KeyColumns,
    expected: Expected,
    entries: Vec<StoredEntry>,
    /// The number of control entries.
    controls: i64,
    /// In milliseconds.
    lease: Option<i64>,
    only_lost: bool,
    live_run: NewLiveRun,
    listed: Option<(String, bool)>,
    keep_for: Option<Duration>,
    limits: UserLimits,
    is_for_sink: bool,
}

/// [`LiveRunChange`], owned.
enum NewLiveRun {
    Unchanged,
    Begins(RunId),
    Resumes(RunId),
    Ends,
}

impl NewLiveRun {
    fn borrowed(&self) -> LiveRunChange<'_> {
        match self {
            NewLiveRun::Unchanged => LiveRunChange::None,
            NewLiveRun::Begins(run) => LiveRunChange::Begins(run),
            NewLiveRun::Resumes(run) => LiveRunChange::Resumes(run),
            NewLiveRun::Ends => LiveRunChange::Ends,
        }
    }
}

impl Append {
    pub(super) fn of(append: AppendLog<'_>) -> Self {
        Append {
            key: KeyColumns::of(append.key),
            expected: append.expected,
            // The bytes of an entry are shared.
            entries: append.entries.to_vec(),
            controls: stored(append.controls()),
            lease: append.lease.map(millis),
            only_lost: append.only_lost,
            live_run: match append.live_run {
                LiveRunChange::None => NewLiveRun::Unchanged,
                LiveRunChange::Begins(run) => NewLiveRun::Begins(run.clone()),
                LiveRunChange::Resumes(run) => NewLiveRun::Resumes(run.clone()),
                LiveRunChange::Ends => NewLiveRun::Ends,
            },
            listed: append.listed.map(|listed| (listed.title.to_owned(), listed.has_questions)),
            keep_for: append.keep_for,
            limits: append.limits,
            is_for_sink: append.is_for_sink,
        }
    }

    /// What other servers decide on has to be on the disk.
    pub(super) fn durability(&self) -> Durability {
        if self.is_plain() { Durability::Written } else { Durability::Synced }
    }

    /// Whether the append adds frames and notes, or sets the lease, and changes nothing else.
    fn is_plain(&self) -> bool {
        self.controls == 0
            && self.listed.is_none()
            && !self.is_for_sink
            && matches!(self.live_run, NewLiveRun::Unchanged)
            && !matches!(self.expected, Expected::NoLog(_))
    }

    fn is_expected(&self, head: Option<&Head>) -> bool {
        let numbers = |head: &Head| (head.epoch, unsigned(head.length), unsigned(head.control));
        self.expected.is_met(head.map(numbers))
    }

    /// Returns whether the owner may begin a run. Another one may have to end for it.
    fn has_place(&self, transaction: &Transaction<'_>, now: i64) -> DbResult<bool> {
        let mut statement = transaction.prepare_cached(LIVE)?;
        let live = statement.query_map(params![self.key.owner, now], |row| {
            let lease = row.get(2)?;
            let leased_at = row.get(3)?;
            let run: (i64, i64) = (row.get(0)?, row.get(1)?);
            // A run whose lease has passed, or that has to end, takes no place.
            Ok((!is_lost(lease, leased_at, now)).then_some(run))
        })?;
        let live: Vec<Option<(i64, i64)>> = live.collect::<Result<_, _>>()?;
        let live: Vec<(i64, i64)> = live.into_iter().flatten().collect();
        if live.len() < self.limits.runs {
            return Ok(true);
        }
        let oldest = live.into_iter().min_by_key(|(_, read_at)| Reverse(unread(*read_at, now)));
        let is_unread =
            |(_, read_at): &(i64, i64)| unread(*read_at, now) >= millis(self.limits.unread);
        let Some((key, _)) = oldest.filter(is_unread) else { return Ok(false) };
        let mut statement =
            transaction.prepare_cached("UPDATE logs SET has_to_end = 1 WHERE key = ?1")?;
        statement.execute([key])?;
        Ok(true)
    }

    /// Returns whether the owner may have another chat.
    fn has_room(&self, transaction: &Transaction<'_>, now: i64) -> DbResult<bool> {
        let max = stored(self.limits.chats as u64);
        // This count reads only an index, and most users have fewer.
        let mut count = transaction.prepare_cached(COUNT_ALL)?;
        if count.query_row([&self.key.owner], |row| row.get::<_, i64>(0))? < max {
            return Ok(true);
        }
        let mut count = transaction.prepare_cached(COUNT)?;
        let counted = params![self.key.owner, now];
        Ok(count.query_row(counted, |row| row.get::<_, i64>(0))? < max)
    }

    /// Creates the row of a log without entries.
    fn create(&self, transaction: &Transaction<'_>, now: i64) -> DbResult<Option<Head>> {
        if let Expected::NoLog(epoch) = self.expected {
            let KeyColumns { owner, chat } = &self.key;
            removal::remove_expired(transaction, &self.key, now)?;
            let values = params![owner, chat, epoch.0.cast_signed(), now];
            transaction.prepare_cached(INSERT)?.execute(values)?;
        }
        Head::load(transaction, &self.key, now)
    }

    /// Changes the live run. Keeps where one that ends has begun.
    fn change_run(&self, transaction: &Transaction<'_>, head: &mut Head, now: i64) -> DbResult<()> {
        let change = self.live_run.borrowed();
        if change == LiveRunChange::None {
            return Ok(());
        }
        let live = head.live.take().map(|live| unsigned(live.begin));
        let first = unsigned(head.length);
        if let Some(begin) = change.ended_begin(live, first) {
            transaction.prepare_cached(END)?.execute([head.key, stored(begin), now])?;
        }
        head.live = change.new_run().map(|run| LiveRun {
            run: run.clone(),
            begin: stored(change.new_begin(live, first)),
            lease: 0,
            leased_at: now,
            read_at: now,
            has_to_end: false,
        });
        Ok(())
    }

    fn insert_entries(&self, transaction: &Transaction<'_>, head: &Head) -> DbResult<()> {
        let mut statement = transaction.prepare_cached(INSERT_ENTRY)?;
        for (position, entry) in (head.length..).zip(&self.entries) {
            let kind = match entry.kind {
                EntryKind::Frame => super::FRAME,
                EntryKind::Note => super::NOTE,
                EntryKind::Control => super::CONTROL,
            };
            statement.execute(params![head.key, position, kind, &entry.bytes[..]])?;
        }
        Ok(())
    }

    fn update(&self, transaction: &Transaction<'_>, head: &Head, now: i64) -> DbResult<()> {
        let live = head.live.as_ref();
        let lease = live.map(|live| live.lease);
        let leased_at = live.map(|live| live.leased_at);
        if self.is_plain() {
            // It names no column of an index.
            let values = params![head.key, head.length, lease, leased_at];
            transaction.prepare_cached(UPDATE_PLAIN)?.execute(values)?;
            return Ok(());
        }
        let expires_at = self.keep_for.map(|time| stored_time(unix_millis(now).after(time)));
        transaction.prepare_cached(UPDATE)?.execute(named_params! {
            ":key": head.key,
            ":length": head.length,
            ":control": head.control,
            ":live_run": live.map(|live| live.run.as_bytes()),
            ":begin": live.map(|live| live.begin),
            ":lease": lease,
            ":leased_at": leased_at,
            ":read_at": live.map(|live| live.read_at),
            ":has_to_end": live.map(|live| live.has_to_end),
            ":title": self.listed.as_ref().map(|(title, _)| title),
            ":has_questions": self.listed.as_ref().map(|(_, has_questions)| has_questions),
            ":has_control": self.controls > 0,
            ":now": now,
            ":expires_at": expires_at,
        })?;
        state::keep_time(transaction, now)
    }
}

impl Operation<AppendResult> for Append {
    fn is_frames(&self) -> bool {
        self.is_plain()
            && !self.entries.is_empty()
            && self.entries.iter().all(|entry| entry.kind == EntryKind::Frame)
    }

    fn run(self, transaction: &Transaction<'_>, now: i64) -> DbResult<AppendResult> {
        let head = Head::load(transaction, &self.key, now)?;
        let live = head.as_ref().and_then(|head| head.live.as_ref());
        let is_refused = self.only_lost && live.is_none_or(|live| !live.is_lost(now));
        if is_refused || !self.is_expected(head.as_ref()) {
            return Ok(AppendResult::Conflict);
        }
        let begins = self.live_run.borrowed().new_run().is_some() && live.is_none();
        if head.is_none() && !self.has_room(transaction, now)? {
            return Ok(AppendResult::TooManyChats);
        }
        if begins && !self.has_place(transaction, now)? {
            return Ok(AppendResult::TooManyRuns);
        }
        let head = match head {
            Some(head) => Some(head),
            None => self.create(transaction, now)?,
        };
        let Some(mut head) = head else { return Ok(AppendResult::Conflict) };
        self.insert_entries(transaction, &head)?;
        self.change_run(transaction, &mut head, now)?;
        if let (Some(lease), Some(live)) = (self.lease, &mut head.live) {
            (live.lease, live.leased_at) = (lease, now);
        }
        let first = unsigned(head.length);
        head.length += stored(self.entries.len() as u64);
        head.control += self.controls;
        self.update(transaction, &head, now)?;
        if self.is_for_sink {
            deliveries::has_changed(transaction, &self.key, &head, now)?;
        }
        Ok(AppendResult::Appended { first, head: head.log_head(now) })
    }
}

const INSERT: &str = "INSERT INTO logs \
        (owner, chat, epoch, length, control, first, title, is_renamed, has_questions, updated_at) \
    VALUES (?1, ?2, ?3, 0, 0, 0, '', 0, 0, ?4)";
const INSERT_ENTRY: &str =
    "INSERT INTO log_entries (log, position, kind, body) VALUES (?1, ?2, ?3, ?4)";
const UPDATE_PLAIN: &str = "UPDATE logs SET length = ?2, lease = ?3, leased_at = ?4 WHERE key = ?1";
const UPDATE: &str = "UPDATE logs SET length = :length, control = :control, live_run = :live_run, \
        begin = :begin, lease = :lease, leased_at = :leased_at, read_at = :read_at, \
        has_to_end = :has_to_end, \
        title = CASE WHEN is_renamed THEN title ELSE coalesce(:title, title) END, \
        has_questions = coalesce(:has_questions, has_questions), \
        updated_at = CASE WHEN :has_control THEN :now ELSE updated_at END, \
        expires_at = CASE WHEN :has_control THEN :expires_at ELSE expires_at END \
    WHERE key = :key";
/// Two runs begin at the same position if the first one has no entries.
const END: &str = "INSERT INTO log_ended_runs (log, begin, ended_at, bytes) \
    SELECT ?1, ?2, ?3, coalesce(sum(length(body)), 0) FROM log_entries \
        WHERE log = ?1 AND position >= ?2 \
    ON CONFLICT (log, begin) DO UPDATE SET ended_at = excluded.ended_at, bytes = excluded.bytes";
const LIVE: &str = "SELECT key, read_at, lease, leased_at FROM logs INDEXED BY live_logs \
    WHERE owner = ?1 AND live_run IS NOT NULL AND NOT has_to_end \
        AND (expires_at IS NULL OR expires_at > ?2) ORDER BY chat";
const COUNT_ALL: &str = "SELECT count(*) FROM logs WHERE owner = ?1";
const COUNT: &str = "SELECT count(*) FROM logs \
    WHERE owner = ?1 AND (expires_at IS NULL OR expires_at > ?2)";
