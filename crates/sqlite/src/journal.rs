//! [`Journal`]: the newest entries of all runs, in the order in which they arrived.
//!
//! ```text
//! append ──▶ run_journal ────────▶ run_entries
//!            a row for each        rows for each run
//!            transaction
//! ```
//!
//! The logs of many runs grow at the same time. If each append wrote the last page of its own log, a
//! transaction would write a page for each append. So a transaction appends all its entries to the
//! journal, as one row, and from time to time the entries of each run are [moved](Logs::move_all) into
//! rows of their own. Each connection that reads logs has a copy of the journal in memory, and reads
//! only what was added since.
//!
//! [`Logs::move_all`]: crate::logs::Logs::move_all

use std::collections::HashMap;

use bytes::{Buf, Bytes};
use rusqlite::Connection;
use ui_message_stream::chat::log::LogEntry;

use crate::error::{DbResult, SqliteError};

/// A copy of the journal.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// The key of the first row. It changes when all rows before it were moved.
    pub(crate) first: i64,
    /// The key of the next row.
    pub(crate) next: i64,
    /// The bytes of the rows.
    pub(crate) bytes: usize,
    /// The newest entries of each run, by the number of the run.
    pub(crate) tails: HashMap<i64, Entries>,
}

impl Journal {
    /// Reads what was added or moved since the last call.
    pub(crate) fn refresh(&mut self, connection: &Connection) -> DbResult<()> {
        let first = connection
            .prepare_cached("SELECT first_journal_key FROM state")?
            .query_row([], |row| row.get(0))?;
        if self.first != first {
            *self = Journal { first, next: first, ..Journal::default() };
        }
        let mut statement = connection
            .prepare_cached("SELECT key, at, body FROM run_journal WHERE key >= ?1 ORDER BY key")?;
        let mut rows = statement.query([self.next])?;
        while let Some(row) = rows.next()? {
            let (key, at): (i64, i64) = (row.get(0)?, row.get(1)?);
            let body: Vec<u8> = row.get(2)?;
            self.bytes += body.len();
            self.add_row(at, body.into())?;
            self.next = key + 1;
        }
        Ok(())
    }

    fn add_row(&mut self, at: i64, mut body: Bytes) -> DbResult<()> {
        while body.has_remaining() {
            let (run, position) = (take_number(&mut body)?, take_number(&mut body)?);
            let (length, bytes) = (take_number(&mut body)?, take_number(&mut body)?);
            let bytes = take_bytes(&mut body, bytes)?;
            let tail = self.tail_at(run, position);
            tail.length += length;
            tail.at = at;
            tail.body.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// Returns the newest entries of a run, to which entries at this position are added. Entries that
    /// do not reach to the position were moved.
    pub(crate) fn tail_at(&mut self, run: i64, position: i64) -> &mut Entries {
        let tail = self.tails.entry(run).or_default();
        if tail.end() != position {
            *tail = Entries { position, ..Entries::default() };
        }
        tail
    }
}

/// Entries that follow each other in the log of a run, as they are stored.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// The number of entries before these.
    pub(crate) position: i64,
    pub(crate) length: i64,
    /// When the last of them was appended.
    pub(crate) at: i64,
    pub(crate) body: Vec<u8>,
}

impl Entries {
    /// Returns the number of entries of the log up to the last of these.
    pub(crate) fn end(&self) -> i64 {
        self.position + self.length
    }

    pub(crate) fn push(&mut self, entry: &LogEntry) {
        let (bytes, kind) = match entry {
            LogEntry::Frame(bytes) => (bytes, FRAME),
            LogEntry::Note(bytes) => (bytes, NOTE),
        };
        put_number(&mut self.body, 2 * length_of(bytes) + kind);
        self.body.extend_from_slice(bytes);
        self.length += 1;
    }

    /// Appends the last entries to a row of the journal: those that begin at this index of the body,
    /// and at this position of the log of the run.
    pub(crate) fn put_last(&self, index: usize, position: i64, run: i64, row: &mut Vec<u8>) {
        let bytes = self.body.get(index..).unwrap_or_default();
        for number in [run, position, self.end() - position, length_of(bytes)] {
            put_number(row, number);
        }
        row.extend_from_slice(bytes);
    }

    /// Calls a function with each of the entries from this position on, until it returns `false`.
    /// Returns whether it was called with all of them.
    pub(crate) fn visit(
        first: i64,
        mut body: Bytes,
        position: i64,
        mut visit: impl FnMut(LogEntry) -> bool,
    ) -> DbResult<bool> {
        for at in first.. {
            if !body.has_remaining() {
                break;
            }
            let head = take_number(&mut body)?;
            let bytes = take_bytes(&mut body, head / 2)?;
            let entry = match head % 2 {
                FRAME => LogEntry::Frame(bytes),
                _ => LogEntry::Note(bytes),
            };
            if at >= position && !visit(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Splits the entries from this position on into parts that are rows of a log.
    pub(crate) fn rows_from(&self, position: i64) -> DbResult<Vec<Entries>> {
        let mut rows: Vec<Entries> = Vec::new();
        let body = Bytes::copy_from_slice(&self.body);
        let mut at = position.max(self.position);
        Self::visit(self.position, body, position, |entry| {
            if rows.last().is_none_or(|row| row.body.len() >= ROW_BYTES) {
                rows.push(Entries { position: at, at: self.at, ..Entries::default() });
            }
            if let Some(row) = rows.last_mut() {
                row.push(&entry);
            }
            at += 1;
            true
        })?;
        Ok(rows)
    }
}

// The kinds of entries.
const FRAME: i64 = 0;
const NOTE: i64 = 1;

fn length_of(bytes: &[u8]) -> i64 {
    bytes.len().try_into().unwrap_or(i64::MAX)
}

/// Appends a number that is not negative: seven bits in each byte, the lowest first. All bytes but the
/// last have the highest bit.
fn put_number(bytes: &mut Vec<u8>, number: i64) {
    let mut rest = number;
    while rest >= 0x80 {
        bytes.push(0x80 | low_bits(rest));
        rest >>= 7;
    }
    bytes.push(low_bits(rest));
}

fn low_bits(number: i64) -> u8 {
    number.to_le_bytes()[0] & 0x7F
}

fn take_number(bytes: &mut Bytes) -> DbResult<i64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let byte = bytes.try_get_u8().map_err(|_| UNREADABLE)?;
        number |= i64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(UNREADABLE.into())
}

fn take_bytes(bytes: &mut Bytes, count: i64) -> DbResult<Bytes> {
    match usize::try_from(count) {
        Ok(count) if count <= bytes.len() => Ok(bytes.split_to(count)),
        _ => Err(UNREADABLE.into()),
    }
}

const UNREADABLE: SqliteError = SqliteError::Unreadable("log");

/// The size of a row of a log, without its last entry.
pub(crate) const ROW_BYTES: usize = 16 << 10;
