//! [`Logs`]: what the thread that writes knows of the logs.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};
use ui_message_stream::chat::log::{AppendRefusal, AppendResult, HolderStatus, RunKey};

use crate::error::DbResult;
use crate::journal::{Entries, Journal, stored_bytes};
use crate::runs::{Append, CheckedAppend, KeyColumns, Run};

/// The runs and the journal as the connection that writes sees them. An append reads nothing from the
/// file, and what the appends of a transaction add is written at once.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// The version of the file. It changes when another connection commits.
    version: Option<i64>,
    /// Whether the journal has to be refreshed before it is used.
    is_stale: bool,
    pub(crate) journal: Journal,
    /// The runs to which was appended, while the file has this version.
    runs: HashMap<RunKey, Run>,
    added: Added,
    /// The last row of the journal that was logged because it cannot be read.
    logged_row: i64,
}

/// What the transaction adds to the journal.
#[derive(Debug, Default)]
struct Added {
    row: Vec<u8>,
    at: i64,
    /// How many bytes of the row are written to the journal or, as entries, to the rows of their runs.
    written: usize,
}

/// A point of a transaction to which it can return.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    length: usize,
    written: usize,
}

impl Added {
    /// Adds the last entries of a run: those that begin at this index of the body.
    fn add(&mut self, run: &mut Run, tail: &Entries, begin: usize) {
        tail.put_last(begin, run.length, run.key, &mut self.row);
        self.at = tail.at;
        run.length = tail.end();
    }
}

impl Logs {
    /// Begins a transaction.
    pub(crate) fn begin(&mut self, transaction: &Connection) -> DbResult<()> {
        let version = transaction
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get::<_, i64>(0))?;
        if self.version != Some(version) {
            self.runs.clear();
            self.is_stale = true;
            self.version = Some(version);
        }
        Ok(())
    }

    /// Reads what other connections have written. It is called by each operation that uses the logs, so
    /// that a journal that cannot be read is no error of the others.
    pub(crate) fn refresh(&mut self, transaction: &Connection) -> DbResult<()> {
        if self.is_stale {
            self.journal.refresh(transaction)?;
            self.is_stale = false;
            let row = self.journal.unreadable_row;
            if row > self.logged_row {
                tracing::error!(
                    row,
                    "a row of the table `run_journal` cannot be read: the answers that it held a part \
                     of end with an error, and nothing has to be deleted. Check the disk, and the file \
                     with `PRAGMA integrity_check`"
                );
                self.logged_row = row;
            }
        }
        Ok(())
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { length: self.added.row.len(), written: self.added.written }
    }

    /// Goes on after the transaction was rolled back to this point.
    pub(crate) fn return_to(&mut self, transaction: &Connection, mark: Mark) -> DbResult<()> {
        self.added.row.truncate(mark.length);
        self.added.written = mark.written;
        self.runs.clear();
        self.journal = Journal::default();
        self.is_stale = true;
        if self.added.written < self.added.row.len() {
            self.journal.refresh(transaction)?;
            self.insert_added(transaction)?;
        }
        Ok(())
    }

    /// Writes what the transaction has added, before it is committed.
    pub(crate) fn finish(&mut self, transaction: &Connection) -> DbResult<()> {
        let bytes = self.insert_added(transaction)?;
        if bytes > 0 {
            self.journal.next += 1;
            self.journal.bytes += bytes;
        }
        self.added.row.clear();
        self.added.written = 0;
        if self.journal.bytes > MAX_JOURNAL_BYTES && !self.is_stale {
            self.try_move_all(transaction)?;
        }
        Ok(())
    }

    /// Moves all entries, or none if this fails: what the jobs have written is kept.
    fn try_move_all(&mut self, transaction: &Connection) -> DbResult<()> {
        transaction.prepare_cached("SAVEPOINT move")?.execute([])?;
        if let Err(failure) = self.move_all(transaction) {
            // Some failures of the disk have ended the transaction.
            if transaction.is_autocommit() {
                return Err(failure);
            }
            tracing::warn!(error = %failure.0, "the entries of the journal were not moved");
            transaction.prepare_cached("ROLLBACK TO move")?.execute([])?;
        }
        transaction.prepare_cached("RELEASE move")?.execute([])?;
        Ok(())
    }

    /// Writes a row of the journal, if there is something to write. Returns its bytes.
    fn insert_added(&mut self, transaction: &Connection) -> DbResult<usize> {
        let row = self.added.row.get(self.added.written..).unwrap_or_default();
        if row.is_empty() {
            return Ok(0);
        }
        transaction
            .prepare_cached("INSERT INTO run_journal (key, at, body) VALUES (?1, ?2, ?3)")?
            .execute(params![self.journal.next, self.added.at, row])?;
        let bytes = row.len();
        self.added.written = self.added.row.len();
        Ok(bytes)
    }

    /// Forgets everything, because the transaction was rolled back.
    pub(crate) fn forget(&mut self) {
        *self = Logs { logged_row: self.logged_row, ..Logs::default() };
    }

    /// Forgets a run that was changed in another way than by an append.
    pub(crate) fn forget_run(&mut self, key: &RunKey) {
        self.runs.remove(key);
    }

    /// The same with all runs.
    pub(crate) fn forget_runs(&mut self) {
        self.runs.clear();
    }

    /// The same with the number of the run.
    pub(crate) fn forget_run_numbered(&mut self, number: i64) {
        self.runs.retain(|_, run| run.key != number);
    }

    /// Returns what is known of a run, if anything is. The caller may change it.
    pub(crate) fn known_run(&mut self, key: &RunKey) -> Option<&mut Run> {
        self.runs.get_mut(key)
    }

    /// Appends to a run that is known, if only the row of the journal that the transaction writes has to
    /// change for it. Most appends are of this kind. Otherwise returns `None` and changes nothing.
    pub(crate) fn append_in_memory(&mut self, now: i64, append: &Append) -> Option<HolderStatus> {
        let Append { key, entries, end, .. } = append;
        let run = self.runs.get_mut(key).filter(|_| !end && !entries.is_empty())?;
        let status = run.check_next(now, append)?;
        let tail = self.journal.tail_at(run.key, run.length);
        let begin = tail.body.len();
        let bytes: usize = entries.iter().map(stored_bytes).sum();
        if begin + bytes >= MAX_TAIL_BYTES {
            return None;
        }
        entries.iter().for_each(|entry| tail.push(&key.run, entry));
        tail.at = now;
        self.added.add(run, tail, begin);
        Some(status)
    }

    pub(crate) fn append(
        &mut self,
        transaction: &Connection,
        now: i64,
        append: &Append,
    ) -> DbResult<AppendResult> {
        let key = &append.key;
        if self.runs.len() > MAX_RUNS {
            self.runs.clear();
        }
        let run = match self.runs.get_mut(key) {
            Some(run) => run,
            None => match Run::load(transaction, &self.journal, &KeyColumns::of(key))? {
                Some(run) => self.runs.entry(key.clone()).or_insert(run),
                None => return Ok(AppendResult::Refused(AppendRefusal::NotFound)),
            },
        };
        let status = match run.check_append(transaction, &self.journal, now, append)? {
            CheckedAppend::New(status) => status,
            CheckedAppend::Done(result) => return Ok(result),
        };
        if !append.entries.is_empty() {
            let tail = self.journal.tail_at(run.key, run.length);
            let begin = tail.body.len();
            append.entries.iter().for_each(|entry| tail.push(&key.run, entry));
            tail.at = now;
            if tail.body.len() < MAX_TAIL_BYTES {
                self.added.add(run, tail, begin);
            } else if let Some(tail) = self.journal.tails.remove(&run.key) {
                // The journal may hold a part of them too. Readers ignore what is before the end of the rows.
                for row in tail.rows()? {
                    insert_row(transaction, run.key, &row)?;
                }
                run.length = tail.end();
                run.moved = run.length;
            }
        }
        if append.end {
            run.end(transaction, &self.journal, now)?;
            self.forget_run(key);
        } else if append.entries.is_empty() {
            run.renew(transaction, now)?;
        }
        Ok(AppendResult::Appended(status))
    }

    /// Moves all entries into the rows of their runs.
    pub(crate) fn move_all(&mut self, transaction: &Connection) -> DbResult<()> {
        self.added.written = self.added.row.len();
        // A run without new entries is over, or pauses. The memory of the others is kept.
        self.journal.tails.retain(|_, tail| tail.length > 0);
        if self.journal.first == self.journal.next && self.journal.tails.is_empty() {
            return Ok(());
        }
        for (run, tail) in &self.journal.tails {
            let moved: Option<i64> =
                transaction.prepare_cached(MOVED)?.query_row([run], |row| row.get(0)).optional()?;
            // Else the run was deleted, or these entries were moved, or those before them cannot be read.
            // They are not decoded: a newer version may have written them.
            if moved == Some(tail.position) {
                insert_row(transaction, *run, tail)?;
            }
        }
        transaction.execute("DELETE FROM run_journal", [])?;
        let first = self.journal.next;
        transaction.prepare_cached("UPDATE state SET first_journal_key = ?1")?.execute([first])?;
        (self.journal.first, self.journal.bytes) = (first, 0);
        self.journal.tails.values_mut().for_each(Entries::clear);
        self.runs.values_mut().for_each(|run| run.moved = run.length);
        Ok(())
    }
}

/// Writes entries into a row of a log.
fn insert_row(transaction: &Connection, run: i64, row: &Entries) -> DbResult<()> {
    transaction.prepare_cached(INSERT_ROW)?.execute(params![
        run,
        row.position,
        row.length,
        row.at,
        row.body
    ])?;
    Ok(())
}

const INSERT_ROW: &str = "INSERT INTO run_entries (run, position, length, at, body) \
    VALUES (?1, ?2, ?3, ?4, ?5)";
/// The number of entries of a run that are in rows of their own.
const MOVED: &str = "SELECT coalesce((SELECT position + length FROM run_entries \
        WHERE run_entries.run = runs.key ORDER BY position DESC LIMIT 1), 0) \
    FROM runs WHERE key = ?1";

/// The bytes of the journal with which all entries are moved.
const MAX_JOURNAL_BYTES: usize = 1 << 20;

/// The bytes of the newest entries of a run with which they are moved at once. What is larger would be
/// written twice for no gain.
const MAX_TAIL_BYTES: usize = 16 << 10;

/// How many runs are kept in memory.
const MAX_RUNS: usize = 4_096;
