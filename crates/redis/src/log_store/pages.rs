//! Loads, pages of entries and messages, and lists.

use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{
    ChatPage, ListChats, LoadLog, LoadedLog, LogHead, LogKey, LogPage, ReadLogEntries,
    ReadMessages, Snapshot, StoredEntry,
};

use super::{HeadReply, LogKeys, SummaryReply, log_head, read_entry, summary};
use crate::error::RedisStoreError;
use crate::{RedisStore, scripts};

/// A part of a log: the head, the number of entries before the snapshot, the snapshot without its messages,
/// the positions if frames are left out, and the entries.
type LoadReply = (HeadReply, Option<u64>, Option<String>, Vec<u64>, Vec<Vec<u8>>);

impl RedisStore {
    /// Loads a log in parts, between which Redis serves others. What was loaded changes only if the log is
    /// trimmed or deleted, and then the load begins again.
    pub(super) async fn load_log(
        &self,
        load: LoadLog<'_>,
    ) -> Result<Option<LoadedLog>, RedisStoreError> {
        loop {
            let mut first = self.log_of(load.key).prepare(&scripts::LOG_LOAD);
            first.arg(u8::from(load.has_frames)).arg(MAX_PART_BYTES);
            let Some((head, folded, json, positions, entries)) =
                self.run::<Option<LoadReply>>(&first).await?
            else {
                return Ok(None);
            };
            let head = log_head(head);
            let entries = entries.into_iter().map(read_entry);
            let mut entries: Vec<StoredEntry> = entries.collect::<Result<_, _>>()?;
            let from = folded.unwrap_or(0);
            if load.has_frames && !self.load_rest(load.key, &head, from, &mut entries).await? {
                continue;
            }
            let snapshot = match (folded, json) {
                (Some(position), Some(head_json)) => {
                    let mut messages = Vec::new();
                    if load.has_messages {
                        let key = load.key;
                        let epoch = head.epoch;
                        let first = 0;
                        let max_bytes = usize::MAX;
                        let read = ReadMessages { key, epoch, position, first, max_bytes };
                        let Some(all) = self.read_messages(read).await? else { continue };
                        messages = all;
                    }
                    Some(Snapshot { position, head: head_json, messages })
                }
                _ => None,
            };
            let entries = if load.has_frames {
                (from..).zip(entries).collect()
            } else {
                positions.into_iter().zip(entries).collect()
            };
            return Ok(Some(LoadedLog { head, snapshot, entries }));
        }
    }

    /// Loads the entries after the first part. Returns `false` if the log is another one now.
    async fn load_rest(
        &self,
        key: &LogKey,
        head: &LogHead,
        from: u64,
        entries: &mut Vec<StoredEntry>,
    ) -> Result<bool, RedisStoreError> {
        loop {
            let position = from + entries.len() as u64;
            if position >= head.length {
                return Ok(true);
            }
            let epoch = head.epoch;
            let max_bytes = MAX_PART_BYTES;
            let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader: false };
            let Some(page) = self.read_entries(read).await? else { return Ok(false) };
            let missing = usize::try_from(head.length - position).unwrap_or(usize::MAX);
            entries.extend(page.entries.into_iter().take(missing));
        }
    }

    pub(super) async fn read_messages(
        &self,
        read: ReadMessages<'_>,
    ) -> Result<Option<Vec<String>>, RedisStoreError> {
        let log = self.log_of(read.key);
        let mut page = Page::new(read.max_bytes);
        loop {
            let mut part = log.prepare(&scripts::LOG_MESSAGES);
            let max_bytes = page.max_part();
            part.arg(read.epoch.0)
                .arg(read.position)
                .arg(read.first + page.items.len())
                .arg(max_bytes);
            let Some(messages) = self.run::<Option<Vec<String>>>(&part).await? else {
                return Ok(None);
            };
            if messages.is_empty() || page.add(messages, max_bytes, String::len) {
                return Ok(Some(page.items));
            }
        }
    }

    pub(super) async fn read_entries(
        &self,
        read: ReadLogEntries<'_>,
    ) -> Result<Option<LogPage>, RedisStoreError> {
        let log = self.log_of(read.key);
        let mut page = Page::new(read.max_bytes);
        let known = self.inner.hints.known(&log.channel);
        loop {
            let position = read.position + page.items.len() as u64;
            let max_bytes = page.max_part();
            let Some((head, entries)) =
                self.read_part(&log, ReadLogEntries { position, max_bytes, ..read }).await?
            else {
                return Ok(None);
            };
            let is_full = page.add(entries, max_bytes, |entry| entry.bytes.len());
            if is_full || position + page.added >= head.length {
                // Redis has lost entries. With what was known before, a reader would not wait for entries
                // that Redis does not have.
                if known > head.length {
                    self.inner.hints.forget(&log.channel);
                }
                return Ok(Some(LogPage { head, entries: page.items }));
            }
        }
    }

    async fn read_part(
        &self,
        log: &LogKeys,
        read: ReadLogEntries<'_>,
    ) -> Result<Option<(LogHead, Vec<StoredEntry>)>, RedisStoreError> {
        let mut part = log.prepare(&scripts::LOG_READ);
        part.arg(read.epoch.0).arg(read.position).arg(read.max_bytes).arg(u8::from(read.is_reader));
        let reply: Option<(HeadReply, Vec<Vec<u8>>)> = self.run(&part).await?;
        let Some((head, entries)) = reply else { return Ok(None) };
        let entries = entries.into_iter().map(read_entry).collect::<Result<_, _>>()?;
        Ok(Some((log_head(head), entries)))
    }

    pub(super) async fn list_logs(
        &self,
        owner: &Principal,
        list: ListChats<'_>,
    ) -> Result<ChatPage, RedisStoreError> {
        let log = LogKeys::new(&self.inner.keys.user(owner), "");
        let search = list.search.map(str::to_ascii_lowercase);
        let after = list.after.map(|after| (after.updated_at.0.to_string(), after.id.to_string()));
        let mut after = after.unwrap_or_default();
        let mut found = Vec::new();
        loop {
            let mut part = log.prepare(&scripts::LOG_LIST);
            part.arg(&after.0)
                .arg(&after.1)
                .arg(list.limit.saturating_add(1) - found.len())
                .arg(u8::from(search.is_some()))
                .arg(search.as_deref().unwrap_or_default());
            let (chats, last): (Vec<SummaryReply>, Option<(String, String)>) =
                self.run(&part).await?;
            found.extend(chats.into_iter().map(summary));
            match last {
                Some(last) if found.len() <= list.limit => after = last,
                _ => return Ok(ChatPage::new(found, list.limit)),
            }
        }
    }
}

/// The items of a page that were read so far, in parts.
struct Page<T> {
    items: Vec<T>,
    /// The number of items in the last part.
    added: u64,
    bytes: usize,
    max_bytes: usize,
}

impl<T> Page<T> {
    fn new(max_bytes: usize) -> Self {
        Page { items: Vec::new(), added: 0, bytes: 0, max_bytes }
    }

    /// Returns the maximum number of bytes of the next part.
    fn max_part(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes).min(MAX_PART_BYTES)
    }

    /// Adds a part that was read with this limit, and has at least one item. Returns whether the page is
    /// full.
    fn add(&mut self, part: Vec<T>, max_part: usize, bytes: impl Fn(&T) -> usize) -> bool {
        self.added = 0;
        for item in part {
            self.bytes = self.bytes.saturating_add(bytes(&item));
            if self.bytes > self.max_bytes && !self.items.is_empty() {
                return true;
            }
            self.items.push(item);
            self.added += 1;
        }
        // A part that has the limit of the page holds all that fits into the page.
        max_part < MAX_PART_BYTES
    }
}

/// The maximum number of bytes of a part.
const MAX_PART_BYTES: usize = 512 << 10;
