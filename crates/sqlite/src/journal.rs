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
use ui_message_stream::id::RunId;

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
    /// The key of the last row that cannot be read, or 0. What follows the place that cannot be read is
    /// missing in the logs of its runs.
    pub(crate) unreadable_row: i64,
}

impl Journal {
    /// Reads what was added or moved since the last call.
    pub(crate) fn refresh(&mut self, connection: &Connection) -> DbResult<()> {
        let refreshed = self.read_new_rows(connection);
        if refreshed.is_err() {
            // Else it could hold a part of the rows.
            *self = Journal::default();
        }
        refreshed
    }

    fn read_new_rows(&mut self, connection: &Connection) -> DbResult<()> {
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
            if self.add_row(at, body.into()).is_err() {
                self.unreadable_row = key;
            }
            self.next = key + 1;
        }
        Ok(())
    }

    fn add_row(&mut self, at: i64, mut body: Bytes) -> DbResult<()> {
        while body.has_remaining() {
            let (run, position) = (take_number(&mut body)?, take_number(&mut body)?);
            let (length, bytes) = (take_number(&mut body)?, take_number(&mut body)?);
            let bytes = take_bytes(&mut body, bytes)?;
            if position.checked_add(length).is_none() {
                return Err(UNREADABLE.into());
            }
            let tail = self.tail_at(run, position);
            tail.length += length;
            tail.at = at;
            tail.body.extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// Returns the newest entries of a run whose first entries, so many, were moved. Returns none if
    /// entries between them cannot be read: the log is shorter then.
    pub(crate) fn tail(&self, run: i64, moved: i64) -> Option<&Entries> {
        self.tails.get(&run).filter(|tail| tail.position <= moved)
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

    /// Removes the entries, which were moved. Their memory is kept for those that follow.
    pub(crate) fn clear(&mut self) {
        (self.position, self.length) = (self.end(), 0);
        self.body.clear();
    }

    /// Adds an entry of this run.
    pub(crate) fn push(&mut self, run: &RunId, entry: &LogEntry) {
        let (kind, bytes) = match entry {
            LogEntry::Note(bytes) => (NOTE, &**bytes),
            LogEntry::Frame(bytes) => match after_id(bytes, run, self.end()) {
                Some(rest) => match rest.strip_prefix(DATA).and_then(|it| it.strip_suffix(END)) {
                    Some(data) => (DATA_AFTER_ID, data),
                    None => (FRAME_AFTER_ID, rest),
                },
                None => (FRAME, &**bytes),
            },
        };
        self.put(kind, bytes);
    }

    fn put(&mut self, kind: i64, bytes: &[u8]) {
        put_number(&mut self.body, length_of(bytes) * KINDS + kind);
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

    /// Splits the entries into parts that are rows of a log.
    pub(crate) fn rows(&self) -> DbResult<Vec<Entries>> {
        let mut rows: Vec<Entries> = Vec::new();
        let mut body = Bytes::copy_from_slice(&self.body);
        for position in self.position..self.end() {
            let (kind, bytes) = take_entry(&mut body)?;
            if rows.last().is_none_or(|row| row.body.len() >= MAX_ROW_BYTES) {
                rows.push(Entries { position, at: self.at, ..Entries::default() });
            }
            if let Some(row) = rows.last_mut() {
                row.put(kind, &bytes);
            }
        }
        Ok(rows)
    }
}

/// Entries of a run as they are read.
#[derive(Debug)]
pub(crate) struct StoredEntries<'a> {
    pub(crate) run: &'a RunId,
    /// The number of entries before these.
    pub(crate) position: i64,
    pub(crate) body: Bytes,
}

impl StoredEntries<'_> {
    /// Calls a function with each of the entries from this position on, until it returns `false`.
    /// Returns whether it was called with all of them.
    pub(crate) fn visit_from(
        mut self,
        position: i64,
        visit: &mut impl FnMut(LogEntry) -> bool,
    ) -> DbResult<bool> {
        while self.body.has_remaining() {
            let (kind, bytes) = take_entry(&mut self.body)?;
            let at = self.position;
            self.position += 1;
            if at < position {
                continue;
            }
            let entry = match kind {
                FRAME => LogEntry::Frame(bytes),
                NOTE => LogEntry::Note(bytes),
                FRAME_AFTER_ID => {
                    LogEntry::Frame([id_line(self.run, at).as_bytes(), &bytes].concat().into())
                }
                DATA_AFTER_ID => LogEntry::Frame(
                    [id_line(self.run, at).as_bytes(), DATA, &bytes, END].concat().into(),
                ),
                // There is no other kind.
                _ => return Err(UNREADABLE.into()),
            };
            if !visit(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the maximum number of bytes that an entry takes as it is stored.
pub(crate) fn stored_bytes(entry: &LogEntry) -> usize {
    entry.bytes().len() + MAX_NUMBER_BYTES
}

/// Returns what follows the line with the id, if the frame begins with the id of its position.
fn after_id<'a>(frame: &'a [u8], run: &RunId, position: i64) -> Option<&'a [u8]> {
    let rest = frame.strip_prefix(b"id: ")?.strip_prefix(run.as_bytes())?.strip_prefix(b".")?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    let (number, rest) = rest.split_at_checked(end)?;
    // A number that begins with 0 would be written back without it.
    let is_exact = number.first() != Some(&b'0') || number.len() == 1;
    let number = str::from_utf8(number).ok()?.parse::<i64>().ok()?;
    rest.strip_prefix(b"\n").filter(|_| is_exact && number == position)
}

/// Returns the line with which the frame at a position of the log begins. It is not stored.
fn id_line(run: &RunId, position: i64) -> String {
    format!("id: {}.{position}\n", run.as_str())
}

// The kinds of entries.
const FRAME: i64 = 0;
const NOTE: i64 = 1;
const FRAME_AFTER_ID: i64 = 2;
const DATA_AFTER_ID: i64 = 3;
/// The factor of the number of bytes in the head of an entry. A fifth kind needs a larger one, and so a schema
/// that writes all entries again.
const KINDS: i64 = 4;

/// How an entry of the kind [`DATA_AFTER_ID`] begins and ends after the line with the id. This is not stored.
const DATA: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";

/// Takes the kind and the stored bytes of an entry.
fn take_entry(body: &mut Bytes) -> DbResult<(i64, Bytes)> {
    let head = take_number(body)?;
    Ok((head % KINDS, take_bytes(body, head / KINDS)?))
}

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

/// The maximum number of bytes that a number takes.
const MAX_NUMBER_BYTES: usize = 9;

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

/// The size of a row of a log, without its last entry. A reader reads whole rows.
const MAX_ROW_BYTES: usize = 32 << 10;
