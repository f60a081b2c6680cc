//! The row that all writers of the file share: the latest time and the last revision.

use rusqlite::{Connection, Transaction};

use crate::clock::Clock;
use crate::error::DbResult;

/// Returns the time for a reader.
pub(crate) fn now(connection: &Connection, clock: &Clock) -> DbResult<i64> {
    let latest = connection
        .prepare_cached("SELECT latest_time FROM state")?
        .query_row([], |row| row.get(0))?;
    Ok(clock.now(latest))
}

/// Returns the time for a writer, and stores it: no process returns an earlier one.
pub(crate) fn tell_time(transaction: &Transaction<'_>, clock: &Clock) -> DbResult<i64> {
    let now = now(transaction, clock)?;
    keep_time(transaction, now)?;
    Ok(now)
}

/// Stores the time of a writer.
pub(crate) fn keep_time(transaction: &Transaction<'_>, now: i64) -> DbResult<()> {
    transaction.prepare_cached("UPDATE state SET latest_time = ?1")?.execute([now])?;
    Ok(())
}

/// Returns the time for a writer, and a revision that no chat has had.
pub(crate) fn next_revision(transaction: &Transaction<'_>, clock: &Clock) -> DbResult<(i64, i64)> {
    let now = tell_time(transaction, clock)?;
    let revision = transaction
        .prepare_cached(
            "UPDATE state SET last_revision = last_revision + 1 RETURNING last_revision",
        )?
        .query_row([], |row| row.get(0))?;
    Ok((now, revision))
}
