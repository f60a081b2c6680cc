//! The row that all writers of the file share: the latest time.

use rusqlite::{Connection, Transaction};

use crate::clock::Clock;
use crate::error::DbResult;

/// Returns the time for a transaction.
pub(crate) fn now(connection: &Connection, clock: &Clock) -> DbResult<i64> {
    let latest = connection
        .prepare_cached("SELECT latest_time FROM state")?
        .query_row([], |row| row.get(0))?;
    Ok(clock.now(latest))
}

/// Stores the time of a writer: no process returns an earlier one.
pub(crate) fn keep_time(transaction: &Transaction<'_>, now: i64) -> DbResult<()> {
    transaction.prepare_cached("UPDATE state SET latest_time = ?1")?.execute([now])?;
    Ok(())
}

/// Writes the row. SQLite does not write one that stays the same.
pub(crate) fn ping(transaction: &Transaction<'_>, now: i64) -> DbResult<()> {
    let ping = "UPDATE state SET latest_time = ?1, pings = pings + 1";
    transaction.prepare_cached(ping)?.execute([now])?;
    Ok(())
}
