//! [`SqliteStore::sweep`]: deletes what is kept no longer.

use rusqlite::{Connection, OptionalExtension};

use crate::clock::Clock;
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::journal::Journal;
use crate::runs::{BY_NUMBER, Run, WITHOUT_END};
use crate::{SqliteStore, ledger};

impl SqliteStore {
    /// Deletes what is kept no longer: chats whose time has passed, approvals
    /// [24 hours](ui_message_stream::approval::store::RECORD_RETENTION) after they have expired, and
    /// logs 10 minutes after their end, or earlier if all ended logs have more than
    /// [`max_ended_bytes`](crate::SqliteOptions::with_max_ended_bytes).
    ///
    /// The store calls it once a minute. Each step is a short transaction, so that other writers get
    /// their turn.
    ///
    /// # Errors
    /// [`SqliteError`] if the file cannot be written. Part may have been deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, the rest is deleted by the next call.
    pub async fn sweep(&self) -> Result<(), SqliteError> {
        #[cfg(feature = "log-store")]
        self.sweep_logs().await?;
        loop {
            let deleted = self.write(Durability::Written, |transaction, clock| {
                let now = crate::state::now(transaction, clock)?;
                let chats = transaction.prepare_cached(SWEEP_CHATS)?.execute([now])?;
                let users = transaction.prepare_cached(SWEEP_DELETED_USERS)?.execute([now])?;
                Ok(chats + users + ledger::sweep(transaction, now)?)
            });
            if deleted.await? == 0 {
                break;
            }
        }
        let max_bytes = self.inner.options.max_ended_bytes;
        // Then the journal holds no entries of logs that are deleted. If it fails, they are skipped later.
        let moved =
            self.write_logs(Durability::Written, |transaction, _, logs| logs.move_all(transaction));
        if let Err(error) = moved.await {
            tracing::warn!(%error, "the entries of the journal were not moved");
        }
        let runs = self.read_logs(move |connection, clock, journal| {
            runs_to_delete(connection, clock, journal, max_bytes)
        });
        for (run, listed) in runs.await? {
            self.write_logs(Durability::Written, move |transaction, clock, logs| {
                let mut statement = transaction.prepare_cached(BY_NUMBER)?;
                let stored = statement.query_row([run], |row| Run::from_row(row, &logs.journal));
                let stored = stored.optional()?;
                // Its holder may have renewed the lease since, or another one may have ended the log,
                // which is then kept for 10 more minutes.
                if stored.and_then(|run| Over::of(&run, clock.now(0))) == Some(listed) {
                    transaction
                        .prepare_cached("DELETE FROM runs WHERE key = ?1")?
                        .execute([run])?;
                    logs.forget_run_numbered(run);
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

/// Returns the runs that are over for too long, and the oldest ones if all that are over have too
/// many bytes. Returns their keys, and since when they are over.
fn runs_to_delete(
    connection: &Connection,
    clock: &Clock,
    journal: &Journal,
    max_bytes: u64,
) -> DbResult<Vec<(i64, Over)>> {
    let now = clock.now(0);
    // The times until which they are kept, their keys, the bytes of their logs, and since when they
    // are over.
    let mut over: Vec<(i64, i64, i64, Over)> = Vec::new();
    let mut statement = connection.prepare_cached(ENDED)?;
    for run in statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))? {
        let (ended_at, key, bytes): (i64, i64, i64) = run?;
        over.push((ended_at.saturating_add(RETENTION), key, bytes, Over::Ended(ended_at)));
    }
    let mut statement = connection.prepare_cached(WITHOUT_END)?;
    for run in statement.query_map([], |row| Run::from_row(row, journal))? {
        let run = run?;
        if let Some(since) = Over::of(&run, now) {
            let bytes = run.bytes(connection, journal)?;
            let until = run.lease_end().min(now).saturating_add(LOST_RETENTION);
            over.push((until, run.key, bytes, since));
        }
    }
    // The first ones are kept longest.
    over.sort_unstable_by(|one, other| other.cmp(one));
    let mut bytes = 0_u64;
    let mut to_delete = Vec::new();
    for (until, run, more, since) in over {
        bytes = bytes.saturating_add(more.try_into().unwrap_or(0));
        if until <= now || bytes > max_bytes {
            to_delete.push((run, since));
        }
    }
    to_delete.reverse();
    Ok(to_delete)
}

/// Since when a run is over.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Over {
    /// Since its log has ended at this time.
    Ended(i64),
    /// Since its lease, which ends at this time, has passed.
    Lost(i64),
}

impl Over {
    /// Returns `None` if the run is live.
    fn of(run: &Run, now: i64) -> Option<Self> {
        match run.ended_at {
            Some(at) => Some(Over::Ended(at)),
            None => (!run.is_leased(now)).then(|| Over::Lost(run.lease_end())),
        }
    }
}

const SWEEP_CHATS: &str = "DELETE FROM chats WHERE key IN \
    (SELECT key FROM chats WHERE expires_at <= ?1 LIMIT 20)";
// A day.
const SWEEP_DELETED_USERS: &str = "DELETE FROM deleted_users WHERE owner IN \
    (SELECT owner FROM deleted_users WHERE deleted_at <= ?1 - 86400000 LIMIT 200)";
const ENDED: &str = "SELECT ended_at, key, ended_bytes FROM runs WHERE ended_at IS NOT NULL";

/// How long a log is kept after its end, in milliseconds.
const RETENTION: i64 = 10 * 60 * 1000;

/// How long a log without an end is kept after its lease has passed, in milliseconds.
const LOST_RETENTION: i64 = 7 * 24 * 60 * 60 * 1000;
