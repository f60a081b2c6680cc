//! Loads, pages of entries and of messages, and lists.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, Row, Rows, Transaction, params};
use tokio::time::timeout;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{
    ChatPage, ChatSummary, EntryKind, ListChats, LoadLog, LoadedLog, LogPage, ReadLogEntries,
    ReadMessages, Snapshot, StoredEntry,
};

use super::head::{Head, KeyColumns};
use super::{stored, unsigned, utf8};
use crate::clock::{stored_time, unix_millis};
use crate::error::{DbResult, SqliteError};
use crate::file::Durability;
use crate::{SqliteStore, owner_key};

impl SqliteStore {
    pub(super) async fn load_log(
        &self,
        load: LoadLog<'_>,
    ) -> Result<Option<LoadedLog>, SqliteError> {
        let LoadLog { has_frames, has_messages, .. } = load;
        let key = KeyColumns::of(load.key);
        self.read(move |transaction, now| {
            let Some(head) = Head::load(transaction, &key, now)? else { return Ok(None) };
            let snapshot = match head.folded {
                None => None,
                Some(folded) => {
                    let mut statement = transaction.prepare_cached(SNAPSHOT)?;
                    let json = statement.query_row([head.key], |row| row.get(0))?;
                    let messages = if has_messages {
                        messages(transaction, &head, 0, usize::MAX)?
                    } else {
                        Vec::new()
                    };
                    Some(Snapshot { position: unsigned(folded), head: json, messages })
                }
            };
            let select = if has_frames { ENTRIES } else { ENTRIES_WITHOUT_FRAMES };
            let mut statement = transaction.prepare_cached(select)?;
            let from = params![head.key, head.folded.unwrap_or(0)];
            let entries = statement.query_map(from, entry)?.collect::<Result<_, _>>()?;
            Ok(Some(LoadedLog { head: head.log_head(now), snapshot, entries }))
        })
        .await
    }

    pub(super) async fn read_messages(
        &self,
        read: ReadMessages<'_>,
    ) -> Result<Option<Vec<String>>, SqliteError> {
        let ReadMessages { epoch, position, first, max_bytes, .. } = read;
        let key = KeyColumns::of(read.key);
        self.read(move |transaction, now| {
            let head = Head::load(transaction, &key, now)?
                .filter(|head| head.epoch == epoch && head.folded.map(unsigned) == Some(position));
            let Some(head) = head else { return Ok(None) };
            messages(transaction, &head, first, max_bytes).map(Some)
        })
        .await
    }

    pub(super) async fn read_entries(
        &self,
        read: ReadLogEntries<'_>,
    ) -> Result<Option<LogPage>, SqliteError> {
        let ReadLogEntries { epoch, position, max_bytes, is_reader, .. } = read;
        let key = KeyColumns::of(read.key);
        let found = self.read(move |transaction, now| {
            let stored = Head::load(transaction, &key, now)?.filter(|head| {
                let is_stored =
                    unsigned(head.first) <= position && position <= unsigned(head.length);
                head.epoch == epoch && is_stored
            });
            let Some(mut head) = stored else { return Ok(None) };
            let mut statement = transaction.prepare_cached(ENTRIES)?;
            let rows = statement.query([head.key, self::stored(position)])?;
            let entries = within(rows, max_bytes, entry, |(_, entry)| entry.bytes.len())?;
            let entries = entries.into_iter().map(|(_, entry)| entry).collect();
            let mut noted = None;
            if let Some(live) = head.live.as_mut().filter(|_| is_reader) {
                noted = (live.unread(now) >= READ_PRECISION).then_some((head.key, live.begin, now));
                live.read_at = now;
            }
            Ok(Some((LogPage { head: head.log_head(now), entries }, noted)))
        });
        let Some((page, noted)) = found.await? else { return Ok(None) };
        if let Some(noted) = noted {
            let note = move |transaction: &Transaction<'_>, _: i64| {
                let (key, begin, now) = noted;
                Ok(transaction.prepare_cached(NOTE_READ)?.execute([key, begin, now])?)
            };
            // A failure was logged. The next read stores it again, and this page does not wait for a lock.
            let _ = timeout(MAX_NOTE_TIME, self.write(Durability::Written, note)).await;
        }
        Ok(Some(page))
    }

    pub(super) async fn list_logs(
        &self,
        owner: &Principal,
        list: ListChats<'_>,
    ) -> Result<ChatPage, SqliteError> {
        let owner = owner_key(owner);
        let after = list.after.cloned();
        let search = list.search.map(str::to_ascii_lowercase);
        let limit = list.limit;
        let chats = self.read(move |transaction, now| {
            let mut statement = transaction.prepare_cached(LIST)?;
            let mut rows = statement.query(params![
                owner,
                now,
                after.as_ref().map_or(i64::MAX, |after| stored_time(after.updated_at)),
                after.as_ref().map(|after| after.id.as_bytes()),
            ])?;
            let mut chats = Vec::new();
            while let Some(row) = rows.next()?
                && chats.len() <= limit
            {
                let chat = summary(row)?;
                // SQLite's functions for text end at a zero byte.
                let is_found = |search: &String| chat.title.to_ascii_lowercase().contains(search);
                if search.as_ref().is_none_or(is_found) {
                    chats.push(chat);
                }
            }
            Ok(chats)
        });
        Ok(ChatPage::new(chats.await?, limit))
    }
}

/// Reads messages of the snapshot, from the one with this index on.
fn messages(
    connection: &Connection,
    head: &Head,
    first: usize,
    max_bytes: usize,
) -> DbResult<Vec<String>> {
    let mut statement = connection.prepare_cached(MESSAGES)?;
    let rows = statement.query([head.key, stored(first as u64)])?;
    within(rows, max_bytes, |row| row.get(0), String::len)
}

/// Reads the first rows that have this number of bytes together, and at least one.
fn within<T>(
    mut rows: Rows<'_>,
    max_bytes: usize,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    bytes: impl Fn(&T) -> usize,
) -> DbResult<Vec<T>> {
    let mut page = Vec::new();
    let mut sum = 0_usize;
    while let Some(row) = rows.next()? {
        let item = read(row)?;
        sum = sum.saturating_add(bytes(&item));
        if !page.is_empty() && sum > max_bytes {
            break;
        }
        page.push(item);
    }
    Ok(page)
}

/// Reads an entry and its position.
fn entry(row: &Row<'_>) -> rusqlite::Result<(u64, StoredEntry)> {
    let kind = match row.get(1)? {
        super::FRAME => EntryKind::Frame,
        super::NOTE => EntryKind::Note,
        super::CONTROL => EntryKind::Control,
        kind => return Err(rusqlite::Error::IntegralValueOutOfRange(1, kind)),
    };
    let bytes = Bytes::from(row.get::<_, Vec<u8>>(2)?);
    Ok((unsigned(row.get(0)?), StoredEntry { kind, bytes }))
}

fn summary(row: &Row<'_>) -> rusqlite::Result<ChatSummary> {
    Ok(ChatSummary {
        id: utf8(0, row.get(0)?)?.into(),
        title: row.get(1)?,
        updated_at: unix_millis(row.get(2)?),
        is_live: row.get(3)?,
        has_questions: row.get(4)?,
        control: unsigned(row.get(5)?),
    })
}

const SNAPSHOT: &str = "SELECT head FROM log_snapshots WHERE log = ?1";
const MESSAGES: &str =
    "SELECT body FROM log_messages WHERE log = ?1 AND place >= ?2 ORDER BY place";
const ENTRIES: &str = "SELECT position, kind, body FROM log_entries \
    WHERE log = ?1 AND position >= ?2 ORDER BY position";
const ENTRIES_WITHOUT_FRAMES: &str = "SELECT position, kind, body \
    FROM log_entries INDEXED BY log_entries_without_frames \
    WHERE log = ?1 AND position >= ?2 AND kind <> 0 ORDER BY position";
const NOTE_READ: &str = "UPDATE logs SET read_at = ?3 WHERE key = ?1 AND begin = ?2 \
    AND live_run IS NOT NULL AND (read_at < ?3 OR read_at > ?3 + 60000)";
/// Without an id, the page begins with the newest chats.
const LIST: &str = "SELECT chat, title, updated_at, live_run IS NOT NULL, has_questions, control \
    FROM logs WHERE owner = ?1 AND (expires_at IS NULL OR expires_at > ?2) \
    AND updated_at <= ?3 AND (?4 IS NULL OR (updated_at, chat) < (?3, ?4)) \
    ORDER BY updated_at DESC, chat DESC";

/// A run that was read within this time, in milliseconds, is not marked as read again.
const READ_PRECISION: i64 = 1_000;

/// How long a page waits until it is stored that the run was read.
const MAX_NOTE_TIME: Duration = Duration::from_millis(100);
