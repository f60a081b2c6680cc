//! What a sink has to get of the logs. The deletion of a log is noted by a trigger.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, Transaction, params};
use ui_message_stream_chat::store::{Epoch, LogKey, Undelivered};

use super::head::{Head, KeyColumns};
use super::{millis, stored, unsigned, utf8};
use crate::SqliteStore;
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;

/// Notes that the sink has to get this log.
pub(super) fn has_changed(
    transaction: &Transaction<'_>,
    key: &KeyColumns,
    head: &Head,
    now: i64,
) -> DbResult<()> {
    let values = params![key.owner, key.chat, head.epoch.0.cast_signed(), head.length, now];
    transaction.prepare_cached(CHANGE)?.execute(values)?;
    Ok(())
}

impl SqliteStore {
    pub(super) async fn take_undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> Result<Vec<Undelivered>, SqliteError> {
        let limit = stored(limit as u64);
        let retry_after = millis(retry_after);
        // Most often there is nothing to write.
        let has_any = move |transaction: &Transaction<'_>, now: i64| {
            let mut statement = transaction.prepare_cached(IS_ANY_DUE)?;
            Ok(statement.query_row([now], |row| row.get(0))?)
        };
        if !self.read(has_any).await? {
            return Ok(Vec::new());
        }
        let take = move |transaction: &Transaction<'_>, now: i64| {
            let mut statement = transaction.prepare_cached(TAKE)?;
            let taken = statement.query_map([now, retry_after, limit], undelivered)?;
            Ok(taken.collect::<Result<_, _>>()?)
        };
        self.write(Durability::Written, take).await
    }

    pub(super) async fn note_delivered(
        &self,
        delivered: &Undelivered,
    ) -> Result<Option<Undelivered>, SqliteError> {
        let (delivered, columns) = (delivered.clone(), KeyColumns::of(&delivered.key));
        let note = move |transaction: &Transaction<'_>, _: i64| {
            let key = params![columns.owner, columns.chat];
            let mut load = transaction.prepare_cached(LOAD)?;
            let Undelivered { epoch, position, .. } = delivered;
            let is_deletion = position == Undelivered::DELETED;
            match load.query_row(key, undelivered).optional()? {
                None if is_deletion => return Ok(None),
                None => return Ok(Some(Undelivered::deletion(delivered.key, epoch))),
                Some(delivery) if !delivery.is_acknowledged_by(&delivered) => {
                    return Ok(Some(delivery));
                }
                Some(_) if is_deletion => transaction.prepare_cached(FORGET)?.execute(key)?,
                Some(_) => {
                    let owner = &columns.owner;
                    let chat = &columns.chat;
                    let values = params![owner, chat, epoch.0.cast_signed(), stored(position)];
                    transaction.prepare_cached(NOTE_DELIVERED)?.execute(values)?
                }
            };
            Ok(None)
        };
        self.write(Durability::Written, note).await
    }
}

fn undelivered(row: &Row<'_>) -> rusqlite::Result<Undelivered> {
    let owner: String = row.get(0)?;
    let unreadable = |error| {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(0, kind, Box::new(error))
    };
    let owner = serde_json::from_str(&owner).map_err(unreadable)?;
    Ok(Undelivered {
        key: LogKey { owner, chat: utf8(1, row.get(1)?)?.into() },
        epoch: Epoch(row.get::<_, i64>(2)?.cast_unsigned()),
        position: unsigned(row.get(3)?),
    })
}

/// What is due in more than an hour was taken before the clock was set back.
macro_rules! due {
    () => {
        "due_at IS NOT NULL AND (due_at <= ?1 OR due_at > ?1 + 3600000)"
    };
}

const CHANGE: &str = "INSERT INTO log_deliveries (owner, chat, epoch, position, due_at) \
    VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (owner, chat) DO UPDATE \
    SET epoch = excluded.epoch, position = excluded.position, due_at = excluded.due_at";
const IS_ANY_DUE: &str = concat!("SELECT EXISTS (SELECT 1 FROM log_deliveries WHERE ", due!(), ")");
const TAKE: &str = concat!(
    "UPDATE log_deliveries SET due_at = ?1 + ?2 WHERE (owner, chat) IN \
        (SELECT owner, chat FROM log_deliveries WHERE ",
    due!(),
    " ORDER BY due_at LIMIT ?3) RETURNING owner, chat, epoch, position"
);
const LOAD: &str =
    "SELECT owner, chat, epoch, position FROM log_deliveries WHERE owner = ?1 AND chat = ?2";
const NOTE_DELIVERED: &str = "UPDATE log_deliveries SET epoch = ?3, position = ?4, due_at = NULL \
    WHERE owner = ?1 AND chat = ?2";
const FORGET: &str = "DELETE FROM log_deliveries WHERE owner = ?1 AND chat = ?2";
