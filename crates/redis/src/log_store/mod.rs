//! [`LogStore`] of a [`RedisStore`]: a hash for the head of each log, a list for its entries, and a list for
//! the messages of its snapshot.
//!
//! Each function is one script, but for loads of messages, for loads and pages of more than 512 KiB, for lists and
//! searches that look at more than 500 chats, the deletion of a user, and the sweep. Appends of frames of several runs
//! are one script together. An append that begins or ends a run, and a snapshot, also note in a script of their own
//! when the chat is swept: before an append, after a snapshot. A script that was sent twice finds another head the
//! second time: an append may return [`AppendResult::Conflict`] then, and a deletion `false`.

mod append;
mod deliveries;
mod frames;
mod pages;
mod sweep;

pub(crate) use self::frames::WaitingFrames;

use std::time::Duration;

use bytes::Bytes;
use redis::FromRedisValue;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatPage, ChatSummary, EntryKind, Epoch, LeftToServer, ListChats,
    LoadLog, LoadedLog, LogHead, LogKey, LogPage, LogStore, PutSnapshot, ReadLogEntries,
    ReadMessages, StoredEntry, Undelivered,
};

use crate::RedisStore;
use crate::error::RedisStoreError;
use crate::keys::UserKeys;
use crate::scripts::{self, Invocation, PublishingScript, Script};

impl LogStore for RedisStore {
    fn load<'a>(
        &'a self,
        load: LoadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>> {
        Box::pin(async move { self.load_log(load).await.map_err(ChatStoreError::new) })
    }

    fn messages<'a>(
        &'a self,
        read: ReadMessages<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, ChatStoreError>> {
        Box::pin(async move { self.read_messages(read).await.map_err(ChatStoreError::new) })
    }

    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>> {
        Box::pin(async move { self.read_entries(read).await.map_err(ChatStoreError::new) })
    }

    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>> {
        Box::pin(async move { self.append_to_log(append).await.map_err(ChatStoreError::new) })
    }

    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move { self.put_log_snapshot(put).await.map_err(ChatStoreError::new) })
    }

    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let number = control.to_string();
            let deleted = self.delete_one(key, &epoch.0.to_string(), &number).await;
            self.forget_list(&key.owner);
            deleted.map_err(ChatStoreError::new)
        })
    }

    fn delete_user<'a>(
        &'a self,
        owner: &'a Principal,
    ) -> BoxFuture<'a, Result<usize, ChatStoreError>> {
        Box::pin(async move { self.delete_logs(owner).await.map_err(ChatStoreError::new) })
    }

    fn rename<'a>(
        &'a self,
        key: &'a LogKey,
        title: &'a str,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let mut rename = self.log_of(key).prepare(self.publishing(&scripts::LOG_RENAME));
            let is_renamed = self.run(rename.arg(title)).await.map_err(ChatStoreError::new)?;
            self.forget_list(&key.owner);
            Ok(is_renamed)
        })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(async move { self.list_logs(owner, list).await.map_err(ChatStoreError::new) })
    }

    fn undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> BoxFuture<'_, Result<Vec<Undelivered>, ChatStoreError>> {
        Box::pin(async move {
            self.take_undelivered(limit, retry_after).await.map_err(ChatStoreError::new)
        })
    }

    fn acknowledge<'a>(
        &'a self,
        delivered: &'a Undelivered,
    ) -> BoxFuture<'a, Result<Option<Undelivered>, ChatStoreError>> {
        Box::pin(async move { self.note_delivered(delivered).await.map_err(ChatStoreError::new) })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<LeftToServer, ChatStoreError>> {
        Box::pin(async move { self.sweep_logs().await.map_err(ChatStoreError::new) })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move { self.ping().await.map_err(ChatStoreError::new) })
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.follower.changed(self.channel_of(key), length))
    }

    fn hinted_entries(&self, key: &LogKey, epoch: Epoch, position: u64) -> Vec<StoredEntry> {
        self.inner.hints.entries(&self.channel_of(key), epoch, position)
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        // A message on this channel holds no length.
        Box::pin(self.inner.follower.changed(self.inner.keys.user(owner).updated(), 0))
    }
}

impl RedisStore {
    /// Returns the keys of a log.
    fn log_of(&self, key: &LogKey) -> LogKeys {
        LogKeys::new(&self.inner.keys.user(&key.owner), key.chat.as_str())
    }

    /// Returns the channel of a log.
    fn channel_of(&self, key: &LogKey) -> String {
        self.inner.keys.user(&key.owner).channel(key.chat.as_str())
    }

    /// Wakes those who wait for a change of the list of this owner.
    fn forget_list(&self, owner: &Principal) {
        self.inner.hints.forget(&self.inner.keys.user(owner).updated());
    }

    /// Returns the script that publishes to the channels that the [follower](crate::follow) subscribes.
    fn publishing(&self, script: &'static PublishingScript) -> &'static Script {
        script.to_shard_channels(self.inner.follower.is_of_shards())
    }

    async fn run<T: FromRedisValue + Send>(
        &self,
        script: &Invocation<'_>,
    ) -> Result<T, RedisStoreError> {
        self.inner.connection.run(script).await
    }
}

/// The names of what belongs to a log.
struct LogKeys {
    chat: String,
    keys: [String; 9],
    channel: String,
}

impl LogKeys {
    fn new(user: &UserKeys, chat: &str) -> Self {
        let keys = user.log(chat);
        let channel = user.channel(chat);
        LogKeys { chat: chat.to_owned(), keys, channel }
    }

    /// Prepares a script with the keys and the argument that all scripts of logs have.
    fn prepare<'s>(&self, script: &'s Script) -> Invocation<'s> {
        let mut invocation = script.prepare_invoke();
        for key in &self.keys {
            invocation.key(key);
        }
        invocation.arg(&self.chat);
        invocation
    }
}

/// A head as `log.lua` returns it: the epoch, the length and the number of control entries, the live run,
/// whether it is lost, how long it was not read, in milliseconds, and whether it has to end.
type HeadReply = ((u64, u64, u64), Option<String>, bool, u64, bool);

fn log_head((numbers, live_run, is_lost, unread, has_to_end): HeadReply) -> LogHead {
    let (epoch, length, control) = numbers;
    LogHead {
        epoch: Epoch(epoch),
        length,
        control,
        live_run: live_run.map(RunId::from),
        is_lost,
        unread: Duration::from_millis(unread),
        has_to_end,
    }
}

/// Returns an entry as it is stored: its kind, and its bytes.
fn stored_entry(entry: &StoredEntry) -> Vec<u8> {
    let kind = match entry.kind {
        EntryKind::Frame => b'F',
        EntryKind::Note => b'N',
        EntryKind::Control => b'C',
    };
    let mut stored = Vec::with_capacity(1 + entry.bytes.len());
    stored.push(kind);
    stored.extend_from_slice(&entry.bytes);
    stored
}

/// Returns the entry that is stored as this, or `None` if it cannot be read.
pub(crate) fn entry_of(mut stored: Bytes) -> Option<StoredEntry> {
    let kind = match stored.first()? {
        b'F' => EntryKind::Frame,
        b'N' => EntryKind::Note,
        b'C' => EntryKind::Control,
        _ => return None,
    };
    Some(StoredEntry { kind, bytes: stored.split_off(1) })
}

fn read_entry(stored: Vec<u8>) -> Result<StoredEntry, RedisStoreError> {
    entry_of(stored.into()).ok_or(RedisStoreError::Unreadable("entry of a chat"))
}

/// A chat as `log_list.lua` returns it.
type SummaryReply = (String, u64, String, bool, bool, u64);

fn summary((id, updated_at, title, is_live, has_questions, control): SummaryReply) -> ChatSummary {
    let id = id.into();
    let updated_at = UnixMillis(updated_at);
    ChatSummary { id, title, updated_at, is_live, has_questions, control }
}

/// Returns a time in milliseconds, at most 300 years.
fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX).min(MAX_MILLIS)
}

const MAX_MILLIS: u64 = 300 * 366 * 24 * 60 * 60 * 1000;

/// Returns the chat with this name.
fn chat_of_name(name: &str) -> Result<LogKey, RedisStoreError> {
    let chat: Result<(Principal, String), _> = serde_json::from_str(name);
    let (owner, chat) = chat.map_err(|_| RedisStoreError::Unreadable("name of a chat"))?;
    Ok(LogKey { owner, chat: chat.into() })
}
