//! Removes expired logs, and entries before the snapshot that no reader may need.

use deadpool_postgres::Pool;
use tokio_postgres::Row;
use ui_message_stream_chat::store::{KEPT_AFTER_LOSS, LeftToServer, LogKey, MAX_SWEPT};

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
    /// Returns live runs whose lease has passed long ago, and logs that lack a snapshot.
    pub(super) async fn left_to_server(&self) -> Result<LeftToServer, PostgresError> {
        let time = millis(KEPT_AFTER_LOSS);
        let limit = stored(MAX_SWEPT as u64);
        let key = |row: &Row| {
            let chat = text(column(row, 1)?)?.into();
            Ok::<_, PostgresError>(LogKey { owner: owner(column(row, 0)?)?, chat })
        };
        let lost = self.query(LOST, &[&time, &limit]).await?;
        let lost = lost.iter().map(|row| Ok((key(row)?, text(column(row, 2)?)?.into())));
        let lost_runs = lost.collect::<Result<_, PostgresError>>()?;
        let old = self.query(OLD_SNAPSHOTS, &[&limit]).await?;
        Ok(LeftToServer {
            lost_runs,
            old_snapshots: old.iter().map(key).collect::<Result<_, PostgresError>>()?,
        })
    }
}

/// Visits the logs whose snapshot has entries before it, in the order of their keys.
async fn trim(pool: &Pool) -> Result<(), PostgresError> {
    let mut after = i64::MIN;
    let mut max_entries = MAX_ENTRIES;
    loop {
        let rows = match query(pool, TRIM, &[&after, &max_entries]).await {
            Ok(rows) => rows,
            Err(error) if is_too_slow(&error) && max_entries > 1 => {
                max_entries /= 2;
                continue;
            }
            Err(error) => return Err(error),
        };
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            let key = column::<i64>(row, 0)?;
            let has_more = column::<bool>(row, 1)?;
            after = key;
            if has_more {
                // The next statement begins with this log.
                after -= 1;
                break;
            }
        }
    }
}

// A log that another transaction changes is left out: the next sweep finds it.

const EXPIRED: &str = "DELETE FROM logs WHERE key IN (SELECT key FROM logs \
        WHERE expires_at <= (SELECT now_ms()) LIMIT $1::BIGINT FOR UPDATE SKIP LOCKED) \
    RETURNING publish_log(owner, id, 0, TRUE, TRUE)";

// 10 minutes. Those that have ended far in the future have ended before the clock was set back.
macro_rules! is_kept_no_longer {
    () => {
        "(ended_at <= (SELECT now_ms() - 600000) OR ended_at > (SELECT now_ms() + 60000))"
    };
}
// The snapshot of a log without a live run is not of the whole log.
macro_rules! has_old_snapshot {
    () => {
        "logs.live_run IS NULL AND logs.length > coalesce((SELECT position FROM log_snapshots \
            WHERE log_snapshots.log = logs.key), 0)"
    };
}
const ENDED_RUNS: &str = concat!(
    "DELETE FROM log_ended_runs WHERE key IN (SELECT key FROM log_ended_runs AS ended WHERE ",
    is_kept_no_longer!(),
    " AND NOT EXISTS (SELECT 1 FROM logs WHERE logs.key = ended.log AND ",
    has_old_snapshot!(),
    ") LIMIT $1::BIGINT FOR UPDATE SKIP LOCKED) RETURNING key"
);
/// The logs whose ended runs [`ENDED_RUNS`] leaves.
const OLD_SNAPSHOTS: &str = concat!(
    "SELECT owner, id FROM logs WHERE key IN (SELECT log FROM log_ended_runs WHERE ",
    is_kept_no_longer!(),
    ") AND ",
    has_old_snapshot!(),
    " ORDER BY random() LIMIT $1::BIGINT"
);

/// Visits at most 1000 logs after the key `$1`, and removes at most `$2` entries of each of the first ten from which something
/// can be removed. Returns their keys, and whether more can be removed now. With fewer than ten, the last key that was
/// visited follows.
///
/// What is kept is read at one moment, before the lock: what has changed since keeps no earlier entry. Both keys are
/// compared with `$1`: with one of them, Postgres may read the other table from its begin.
const TRIM: &str = "WITH visited AS MATERIALIZED (\
        SELECT logs.key, first, least(position, \
            CASE WHEN live_run IS NOT NULL THEN run_begin END, \
            (SELECT min(begin) FROM log_ended_runs WHERE log_ended_runs.log = logs.key)) AS until \
        FROM log_snapshots JOIN logs ON logs.key = log_snapshots.log \
        WHERE NOT is_trimmed AND log_snapshots.log > $1::BIGINT AND logs.key > $1::BIGINT \
        ORDER BY log_snapshots.log LIMIT 1000), \
    seen AS MATERIALIZED (SELECT * FROM visited WHERE until > first ORDER BY key LIMIT 10), \
    locked AS (SELECT seen.*, least(until, seen.first + $2::BIGINT) AS next \
        FROM seen JOIN logs ON logs.key = seen.key FOR NO KEY UPDATE OF logs SKIP LOCKED), \
    moved AS (UPDATE logs SET first = next FROM locked \
        WHERE logs.key = locked.key AND next > logs.first RETURNING logs.key, logs.first), \
    removed AS (DELETE FROM log_entries USING moved WHERE log = key AND position < first), \
    done AS (UPDATE log_snapshots SET is_trimmed = TRUE FROM locked \
        WHERE log = key AND position <= next) \
    SELECT seen.key, coalesce(seen.until > next, FALSE) \
    FROM seen LEFT JOIN locked ON locked.key = seen.key \
    UNION ALL SELECT max(key), FALSE FROM visited \
        HAVING count(*) > 0 AND (SELECT count(*) FROM seen) < 10 \
    ORDER BY key";

/// A lease that begins far in the future was renewed before the clock was set back. In any order, so that those that
/// cannot be ended do not hide the others.
const LOST: &str = "SELECT owner, id, live_run FROM logs WHERE live_run IS NOT NULL \
    AND (now_ms() - renewed_at - lease >= $1 OR renewed_at > now_ms() + 60000) \
    ORDER BY random() LIMIT $2";

const MAX_ENTRIES: i64 = 1000;
