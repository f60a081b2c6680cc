//! [`LogStore`] of a [`PostgresStore`]: a row for the head of each log, for each entry, and for each message of
//! a snapshot.
//!
//! Each function is one statement, but for an append that begins a run or creates a log, and for the
//! deletion of a user. Appends of frames to several logs, and reads of several logs, share a statement. A head and what
//! belongs to it are read by one statement, so at one moment.

mod append;
mod batches;
mod deliveries;
mod read;
mod sweep;

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::Row;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatPage, ChatSummary, EntryKind, Epoch, LeftToServer, ListChats,
    LoadLog, LoadedLog, LogHead, LogKey, LogPage, LogStore, PutSnapshot, ReadLogEntries,
    ReadMessages, Snapshot, StoredEntry, Undelivered,
};

use crate::error::PostgresError;
use crate::hints::{list_digest, log_digest};
use crate::sweep::is_too_slow;
use crate::{PostgresStore, column, number, owner_key, stored, time_since};

pub(crate) use self::append::Columns;
pub(crate) use self::batches::Batches;
pub(crate) use self::read::Read;
pub(crate) use self::sweep::sweep;

impl From<PostgresError> for ChatStoreError {
    fn from(error: PostgresError) -> Self {
        ChatStoreError::new(error)
    }
}

impl LogStore for PostgresStore {
    fn load<'a>(
        &'a self,
        load: LoadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>> {
        Box::pin(async move {
            let (owner, id) = columns(load.key);
            let statement = if load.has_frames { LOAD } else { LOAD_WITHOUT_FRAMES };
            let rows = self.query(statement, &[&owner, &id, &load.has_messages]).await?;
            Ok(rows.first().map(loaded).transpose()?)
        })
    }

    fn messages<'a>(
        &'a self,
        read: ReadMessages<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, ChatStoreError>> {
        Box::pin(async move {
            let ((owner, id), epoch) = (columns(read.key), stored(read.epoch.0));
            let position = stored(read.position);
            let first = place(read.first);
            let max_bytes = stored(read.max_bytes as u64);
            let rows =
                self.query(MESSAGES, &[&owner, &id, &epoch, &position, &first, &max_bytes]).await?;
            Ok(rows.first().map(|row| column(row, 0)).transpose()?)
        })
    }

    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>> {
        Box::pin(async move { Ok(self.read_log(read).await?) })
    }

    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>> {
        Box::pin(async move { Ok(self.append_to_log(append).await?) })
    }

    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let ((owner, id), epoch) = (columns(put.key), stored(put.epoch.0));
            let unchanged = put.unchanged.map(|base| (stored(base.position), place(base.messages)));
            let (base, kept) = unchanged.unzip();
            let position = stored(put.position);
            let kept = kept.unwrap_or(0);
            let rows = self
                .query(
                    PUT_SNAPSHOT,
                    &[&owner, &id, &epoch, &position, &put.head, &base, &kept, &put.changed],
                )
                .await?;
            Ok(!rows.is_empty())
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let ((owner, id), epoch, control) = (columns(key), stored(epoch.0), stored(control));
            Ok(!self.query(DELETE, &[&owner, &id, &epoch, &control]).await?.is_empty())
        })
    }

    fn delete_user<'a>(
        &'a self,
        owner: &'a Principal,
    ) -> BoxFuture<'a, Result<usize, ChatStoreError>> {
        Box::pin(async move { Ok(self.delete_logs(&owner_key(owner)).await?) })
    }

    fn rename<'a>(
        &'a self,
        key: &'a LogKey,
        title: &'a str,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let (owner, id) = columns(key);
            Ok(!self.query(RENAME, &[&owner, &id, &title.as_bytes()]).await?.is_empty())
        })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(async move {
            let after = list.after.map(|after| (stored(after.updated_at.0), after.id.as_bytes()));
            let (time, id) = after.unzip();
            let limit = stored(list.limit.saturating_add(1) as u64);
            let search = list.search.map(|search| search.to_ascii_lowercase().into_bytes());
            let rows = self.query(LIST, &[&owner_key(owner), &time, &id, &limit, &search]).await?;
            let chats = rows.iter().map(|row| {
                Ok(ChatSummary {
                    id: text(column(row, 0)?)?.into(),
                    title: text(column(row, 1)?)?,
                    updated_at: UnixMillis(number(row, 2)?),
                    is_live: column(row, 3)?,
                    has_questions: column(row, 4)?,
                    control: number(row, 5)?,
                })
            });
            Ok(ChatPage::new(chats.collect::<Result<_, PostgresError>>()?, list.limit))
        })
    }

    fn undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> BoxFuture<'_, Result<Vec<Undelivered>, ChatStoreError>> {
        Box::pin(async move { Ok(self.take_undelivered(limit, retry_after).await?) })
    }

    fn acknowledge<'a>(
        &'a self,
        delivered: &'a Undelivered,
    ) -> BoxFuture<'a, Result<Option<Undelivered>, ChatStoreError>> {
        Box::pin(async move { Ok(self.note_delivered(delivered).await?) })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<LeftToServer, ChatStoreError>> {
        Box::pin(async move {
            let removed = self.logged(PostgresStore::sweep(self).await);
            let left = self.left_to_server().await?;
            // The failure was logged, and the server has something to do.
            if left == LeftToServer::default() {
                removed?
            }
            Ok(left)
        })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move { Ok(PostgresStore::ping(self).await?) })
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(log_digest(key), length))
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(list_digest(owner), 0))
    }
}

impl PostgresStore {
    /// Deletes the logs of an owner, a few at a time, and fewer if that takes too long. Returns the number of those
    /// whose time has not passed.
    pub(crate) async fn delete_logs(&self, owner: &str) -> Result<usize, PostgresError> {
        let mut deleted = 0;
        let mut max_logs = 20_i64;
        loop {
            match self.query(DELETE_SOME, &[&owner, &max_logs]).await {
                Ok(rows) if rows.is_empty() => return Ok(deleted),
                Ok(rows) => {
                    for row in &rows {
                        deleted += usize::from(column::<bool>(row, 0)?);
                    }
                }
                Err(error) if is_too_slow(&error) && max_logs > 1 => max_logs /= 2,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the key of a log as it is stored.
fn columns(key: &LogKey) -> (String, &[u8]) {
    (owner_key(&key.owner), key.chat.as_bytes())
}

/// Returns a number of messages as it is stored: no chat has more.
fn place(messages: usize) -> i32 {
    messages.try_into().unwrap_or(i32::MAX)
}

/// Returns a text that is stored as bytes.
fn text(bytes: Vec<u8>) -> Result<String, PostgresError> {
    String::from_utf8(bytes).map_err(|_| PostgresError::Unreadable("log"))
}

/// Returns the head in the first columns of a row.
fn head(row: &Row) -> Result<LogHead, PostgresError> {
    let live_run = column::<Option<Vec<u8>>>(row, 3)?;
    let is_live = live_run.is_some();
    Ok(LogHead {
        epoch: Epoch(number(row, 0)?),
        length: number(row, 1)?,
        control: number(row, 2)?,
        live_run: live_run.map(|run| Ok(RunId::from(text(run)?))).transpose()?,
        is_lost: is_live && column(row, 4)?,
        unread: if is_live { time_since(row, 5)? } else { Default::default() },
        has_to_end: is_live && column(row, 6)?,
    })
}

fn loaded(row: &Row) -> Result<LoadedLog, PostgresError> {
    let entries = entries(row, HEAD_COLUMNS)?;
    let positions = column::<Option<Vec<i64>>>(row, HEAD_COLUMNS + 2)?.unwrap_or_default();
    let positions = positions.into_iter().map(i64::unsigned_abs);
    let snapshot = column::<Option<String>>(row, HEAD_COLUMNS + 3)?;
    let snapshot = snapshot.map(|head| {
        let position = number(row, HEAD_COLUMNS + 4)?;
        let messages: Option<_> = column(row, HEAD_COLUMNS + 5)?;
        Ok(Snapshot { position, head, messages: messages.unwrap_or_default() })
    });
    let entries = positions.zip(entries).collect();
    Ok(LoadedLog { head: head(row)?, snapshot: snapshot.transpose()?, entries })
}

/// Returns the entries whose kinds are in this column, and whose bytes are in the next one.
fn entries(row: &Row, at: usize) -> Result<Vec<StoredEntry>, PostgresError> {
    let kinds = column::<Option<Vec<i16>>>(row, at)?.unwrap_or_default();
    let bodies = column::<Option<Vec<Vec<u8>>>>(row, at + 1)?.unwrap_or_default();
    let entries = kinds.into_iter().zip(bodies).map(|(kind, body)| {
        let kind = match kind {
            FRAME => EntryKind::Frame,
            NOTE => EntryKind::Note,
            CONTROL => EntryKind::Control,
            _ => return Err(PostgresError::Unreadable("entry")),
        };
        Ok(StoredEntry { kind, bytes: Bytes::from(body) })
    });
    entries.collect()
}

/// The columns that [`head`] reads.
macro_rules! head_columns {
    () => {
        "epoch, length, control, live_run, NOT is_leased(renewed_at, lease), now_ms() - read_at, \
            has_to_end"
    };
}

/// Selects a log whose time has not passed by its owner `$1` and its id `$2`.
macro_rules! this_log {
    () => {
        "owner = $1 AND id = $2 AND (expires_at IS NULL OR expires_at > now_ms())"
    };
}

use head_columns;

macro_rules! load {
    ($kinds:literal) => {
        concat!(
            "SELECT ",
            head_columns!(),
            ", kinds, bodies, positions, snapshot.head, snapshot.position, \
            CASE WHEN $3::BOOLEAN THEN ARRAY(SELECT body FROM log_messages \
                WHERE log = key AND place < snapshot.messages ORDER BY place) END \
            FROM logs LEFT JOIN log_snapshots AS snapshot ON snapshot.log = key \
            LEFT JOIN LATERAL (SELECT array_agg(kind) AS kinds, array_agg(body) AS bodies, \
                    array_agg(entry.position) AS positions \
                FROM (SELECT position, kind, body FROM log_entries \
                    WHERE log = key AND position >= coalesce(snapshot.position, 0) AND ",
            $kinds,
            " ORDER BY position) AS entry) AS entries ON TRUE WHERE ",
            this_log!()
        )
    };
}

const LOAD: &str = load!("TRUE");
const LOAD_WITHOUT_FRAMES: &str = load!("kind <> 0");

/// Reads the messages from `$5` on: at least one, and at most 1024.
const MESSAGES: &str = concat!(
    "SELECT ARRAY(SELECT body \
        FROM (SELECT *, sum(octet_length(body)) OVER (ORDER BY place) AS bytes \
            FROM log_messages WHERE log = key AND place >= $5 \
                AND place < least(messages, least($5, messages) + 1024)) AS counted \
        WHERE bytes <= $6::BIGINT OR place = $5::INT ORDER BY place) \
    FROM logs JOIN log_snapshots ON log = key WHERE ",
    this_log!(),
    " AND epoch = $3 AND position = $4"
);

/// `$6` is the position of the snapshot whose first `$7` messages are unchanged, or `NULL`. The lock keeps
/// the log from being deleted, and lets others append.
const PUT_SNAPSHOT: &str = concat!(
    "WITH target AS (SELECT key FROM logs WHERE ",
    this_log!(),
    " AND epoch = $3 AND length >= $4::BIGINT FOR KEY SHARE), \
    saved AS (INSERT INTO log_snapshots AS old (log, position, head, messages, is_trimmed) \
        SELECT key, $4, $5::TEXT, $7::INT + cardinality($8::TEXT[]), FALSE FROM target \
        WHERE $6::BIGINT IS NULL OR EXISTS (SELECT FROM log_snapshots WHERE log = key) \
        ON CONFLICT (log) DO UPDATE SET position = excluded.position, head = excluded.head, \
            messages = excluded.messages, is_trimmed = FALSE \
        WHERE old.position < excluded.position \
            AND ($6 IS NULL OR old.position = $6 AND old.messages >= $7) \
        RETURNING log, messages), \
    removed AS (DELETE FROM log_messages USING saved \
        WHERE log_messages.log = saved.log AND place >= messages), \
    written AS (INSERT INTO log_messages (log, place, body) \
        SELECT log, $7 + place - 1, body \
        FROM saved, unnest($8) WITH ORDINALITY AS message (body, place) \
        ON CONFLICT (log, place) DO UPDATE SET body = excluded.body) \
    SELECT log FROM saved"
);
const DELETE: &str = concat!(
    "DELETE FROM logs WHERE ",
    this_log!(),
    " AND epoch = $3 AND control = $4 RETURNING publish_log(owner, id, 0, TRUE, TRUE)"
);
const DELETE_SOME: &str = "WITH deleted AS (DELETE FROM logs WHERE key IN \
        (SELECT key FROM logs WHERE owner = $1 LIMIT $2::BIGINT FOR UPDATE) RETURNING *) \
    SELECT expires_at IS NULL OR expires_at > now_ms(), publish_log(owner, id, 0, TRUE, TRUE) \
    FROM deleted";
const RENAME: &str = concat!(
    "UPDATE logs SET title = $3, is_renamed = TRUE WHERE ",
    this_log!(),
    " RETURNING publish_log(owner, id, length, FALSE, TRUE)"
);

/// In the form `escape` all bytes but those of ASCII are octal digits. So `lower` changes only letters of
/// ASCII.
const LIST: &str = "SELECT id, title, updated_at, live_run IS NOT NULL, has_questions, control FROM logs \
    WHERE owner = $1 AND (expires_at IS NULL OR expires_at > now_ms()) \
        AND ($2::BIGINT IS NULL OR (updated_at, id) < ($2, $3::BYTEA)) \
        AND ($5::BYTEA IS NULL OR position($5 IN \
            decode(lower(encode(title, 'escape') COLLATE \"C\"), 'escape')) > 0) \
    ORDER BY updated_at DESC, id DESC LIMIT $4";

const FRAME: i16 = 0;
const NOTE: i16 = 1;
const CONTROL: i16 = 2;

/// The number of the columns of a head.
const HEAD_COLUMNS: usize = 7;
