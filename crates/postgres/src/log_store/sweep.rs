//! Removes expired logs, and entries before the snapshot that no reader may need.

use deadpool_postgres::Pool;
use ui_message_stream_chat::store::{KEPT_AFTER_LOSS, LogKey, LostRuns, MAX_LOST_RUNS};

use super::text;
use crate::error::PostgresError;
use crate::sweep::{delete_all, is_too_slow};
use crate::{PostgresStore, column, millis, owner, query, stored};

/// Removes what is not needed any more, a few rows at a time.
pub(crate) async fn sweep(pool: &Pool) -> Result<(), PostgresError> {
    // The others are executed also if one fails.
    let expired = delete_all(pool, EXPIRED, 20).await;
    let ended = delete_all(pool, ENDED_RUNS, 200).await;
    expired.and(ended).and(trim(pool).await)
}

impl PostgresStore {
    /// Returns live runs whose lease has passed long ago.
    pub(super) async fn lost_runs(&self) -> Result<LostRuns, PostgresError> {
        let (time, limit) = (millis(KEPT_AFTER_LOSS), stored(MAX_LOST_RUNS as u64));
        let rows = self.query(LOST, &[&time, &limit]).await?;
        let lost = rows.iter().map(|row| {
            let (chat, run) = (text(column(row, 1)?)?, text(column(row, 2)?)?);
            Ok((LogKey { owner: owner(column(row, 0)?)?, chat: chat.into() }, run.into()))
        });
        lost.collect()
    }
}

/// Visits the logs whose snapshot has entries before it, in the order of their keys.
async fn trim(pool: &Pool) -> Result<(), PostgresError> {
    let (mut after, mut max_entries) = (i64::MIN, MAX_ENTRIES);
    loop {
        let rows = match query(pool, TRIM, &[&after, &max_entries]).await {
            Ok(rows) => rows,
            Err(error) if is_too_slow(&error) && max_entries > 1 => {
                max_entries /= 2;
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(last) = rows.last() else { return Ok(()) };
        let mut has_more = false;
        for row in &rows {
            has_more |= column::<bool>(row, 1)?;
        }
        if !has_more {
            after = column(last, 0)?;
        }
    }
}

// A log that another transaction changes is left out: the next sweep finds it.

const EXPIRED: &str = "DELETE FROM logs WHERE key IN (SELECT key FROM logs \
        WHERE expires_at <= (SELECT now_ms()) LIMIT $1::BIGINT FOR UPDATE SKIP LOCKED) \
    RETURNING publish_log(owner, id, 0, TRUE, TRUE)";

// 10 minutes. Those that have ended far in the future have ended before the clock was set back.
const ENDED_RUNS: &str = "DELETE FROM log_ended_runs WHERE key IN (SELECT key FROM log_ended_runs \
        WHERE ended_at <= (SELECT now_ms() - 600000) OR ended_at > (SELECT now_ms() + 60000) \
        LIMIT $1::BIGINT FOR UPDATE SKIP LOCKED) \
    RETURNING key";

/// Removes at most `$2` entries of each of the next logs after the key `$1`. Returns their keys, and whether
/// more can be removed now.
///
/// What is kept is read at one moment, before the lock: what has changed since keeps no earlier entry.
const TRIM: &str = "WITH seen AS MATERIALIZED (\
        SELECT logs.key, first, least(log_snapshots.position, \
            CASE WHEN live_run IS NOT NULL THEN run_begin END, \
            (SELECT min(begin) FROM log_ended_runs WHERE log_ended_runs.log = logs.key)) AS until \
        FROM log_snapshots JOIN logs ON logs.key = log_snapshots.log \
        WHERE NOT is_trimmed AND log_snapshots.log > $1::BIGINT \
        ORDER BY log_snapshots.log LIMIT 10), \
    locked AS (SELECT seen.*, least(until, seen.first + $2::BIGINT) AS next \
        FROM seen JOIN logs ON logs.key = seen.key FOR NO KEY UPDATE OF logs SKIP LOCKED), \
    moved AS (UPDATE logs SET first = next FROM locked \
        WHERE logs.key = locked.key AND next > logs.first RETURNING logs.key, logs.first), \
    removed AS (DELETE FROM log_entries USING moved WHERE log = key AND position < first), \
    done AS (UPDATE log_snapshots SET is_trimmed = TRUE FROM locked \
        WHERE log = key AND position <= next) \
    SELECT seen.key, coalesce(seen.until > next, FALSE) \
    FROM seen LEFT JOIN locked ON locked.key = seen.key ORDER BY seen.key";

/// A lease that begins far in the future was renewed before the clock was set back.
const LOST: &str = "SELECT owner, id, live_run FROM logs WHERE live_run IS NOT NULL \
    AND (now_ms() - renewed_at - lease >= $1 OR renewed_at > now_ms() + 60000) LIMIT $2";

const MAX_ENTRIES: i64 = 1000;
