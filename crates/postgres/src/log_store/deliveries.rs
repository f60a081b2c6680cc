//! What a sink has to get of the logs. The deletion of a log is noted by a trigger.

use std::time::Duration;

use tokio_postgres::Row;
use ui_message_stream_chat::store::{Epoch, LogKey, Undelivered};

use super::{columns, text};
use crate::error::PostgresError;
use crate::{PostgresStore, column, millis, number, stored};

impl PostgresStore {
    pub(super) async fn take_undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> Result<Vec<Undelivered>, PostgresError> {
        let limit = stored(limit as u64);
        let retry_after = millis(retry_after);
        let rows = self.query(TAKE, &[&limit, &retry_after]).await?;
        rows.iter().map(undelivered).collect()
    }

    pub(super) async fn note_delivered(
        &self,
        delivered: &Undelivered,
    ) -> Result<Option<Undelivered>, PostgresError> {
        let Undelivered { key, epoch, position } = delivered;
        let (owner, id) = columns(key);
        let epoch = stored(epoch.0);
        let position = stored(*position);
        let rows = self.query(NOTE, &[&owner, &id, &epoch, &position]).await?;
        let found = rows.first().map(undelivered).transpose()?;
        let is_deletion = delivered.position == Undelivered::DELETED;
        let deletion = || Undelivered::deletion(key.clone(), delivered.epoch);
        Ok(match found {
            Some(found) => (!found.is_acknowledged_by(delivered)).then_some(found),
            None => (!is_deletion).then(deletion),
        })
    }
}

fn undelivered(row: &Row) -> Result<Undelivered, PostgresError> {
    let owner: String = column(row, 0)?;
    let owner = serde_json::from_str(&owner).map_err(|_| PostgresError::Unreadable("log"))?;
    Ok(Undelivered {
        key: LogKey { owner, chat: text(column(row, 1)?)?.into() },
        epoch: Epoch(number(row, 2)?),
        position: number(row, 3)?,
    })
}

/// What is due in more than an hour was taken before the clock was set back.
const TAKE: &str = "WITH due AS MATERIALIZED (SELECT owner, id FROM log_deliveries \
        WHERE due_at IS NOT NULL AND due_at NOT BETWEEN (SELECT now_ms()) + 1 \
            AND (SELECT now_ms()) + 3600000 \
        ORDER BY due_at LIMIT $1::BIGINT FOR UPDATE SKIP LOCKED) \
    UPDATE log_deliveries AS delivery SET due_at = now_ms() + $2::BIGINT FROM due \
    WHERE delivery.owner = due.owner AND delivery.id = due.id \
    RETURNING delivery.owner, delivery.id, epoch, position";
/// Returns the row as it was before. A row that is acknowledged ([`Undelivered::is_acknowledged_by`]) is deleted with
/// a deletion, and otherwise changed.
const NOTE: &str = "WITH found AS MATERIALIZED (SELECT * FROM log_deliveries \
        WHERE owner = $1 AND id = $2 FOR UPDATE), \
    acknowledged AS (SELECT owner, id FROM found \
        WHERE epoch = $3::BIGINT AND position <= $4::BIGINT \
            OR epoch < $3 AND position = 9007199254740991), \
    forgotten AS (DELETE FROM log_deliveries \
        WHERE (owner, id) IN (SELECT * FROM acknowledged) AND $4 = 9007199254740991), \
    noted AS (UPDATE log_deliveries SET epoch = $3, position = $4, due_at = NULL \
        WHERE (owner, id) IN (SELECT * FROM acknowledged) AND $4 < 9007199254740991) \
    SELECT owner, id, epoch, position FROM found";
