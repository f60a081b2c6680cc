//! [`LogStore`]: the storage of the logs of chats.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::append_log::{AppendLog, AppendResult, Undelivered};
use super::log_head::{Epoch, LogHead, LogKey, StoredEntry};
use crate::store::{ChatCursor, ChatStoreError};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::{ChatId, RunId};

/// A load of a log.
#[derive(Debug, Clone, Copy)]
pub struct LoadLog<'a> {
    /// The chat.
    pub key: &'a LogKey,
    /// Whether frames are loaded.
    pub has_frames: bool,
    /// Whether the messages of the snapshot are loaded.
    pub has_messages: bool,
}

/// A loaded log.
#[derive(Clone, PartialEq)]
pub struct LoadedLog {
    /// The head.
    pub head: LogHead,
    /// The newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// The entries after the snapshot, or from the first one on, each with its position.
    pub entries: Vec<(u64, StoredEntry)>,
}

debug_without_content!(LoadedLog { head, snapshot; entries });

/// The state of a chat after the first entries of its log. It is a cache: the entries after it continue it.
#[derive(Clone, PartialEq, Default)]
pub struct Snapshot {
    /// The number of these entries.
    pub position: u64,
    /// Everything but the messages, as JSON.
    pub head: String,
    /// The messages as JSON, the oldest first.
    pub messages: Vec<String>,
}

debug_without_content!(Snapshot { position; messages });

/// A request to store a snapshot. A store writes only the messages that have changed.
#[derive(Clone, Copy)]
pub struct PutSnapshot<'a> {
    /// The chat.
    pub key: &'a LogKey,
    /// The epoch of the log. There may be another one now.
    pub epoch: Epoch,
    /// The number of entries before the snapshot.
    pub position: u64,
    /// Everything but the messages, as JSON.
    pub head: &'a str,
    /// The first messages that stay as they are stored. `None` if all messages are written.
    pub unchanged: Option<Unchanged>,
    /// The messages after these, as JSON. There are no further ones.
    pub changed: &'a [String],
}

impl fmt::Debug for PutSnapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutSnapshot")
            .field("key", self.key)
            .field("epoch", &self.epoch)
            .field("position", &self.position)
            .field("unchanged", &self.unchanged)
            .field("changed", &self.changed.len())
            .finish_non_exhaustive()
    }
}

/// Messages of a stored snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unchanged {
    /// The position of the snapshot.
    pub position: u64,
    /// How many of its first messages.
    pub messages: usize,
}

/// A request for messages of the stored snapshot.
#[derive(Debug, Clone, Copy)]
pub struct ReadMessages<'a> {
    /// The chat.
    pub key: &'a LogKey,
    /// The epoch of the log.
    pub epoch: Epoch,
    /// The position of the snapshot.
    pub position: u64,
    /// The index of the first message.
    pub first: usize,
    /// The page holds at least one message, if there is one, and no further one beyond this number of
    /// bytes.
    pub max_bytes: usize,
}

/// A read of entries.
#[derive(Debug, Clone, Copy)]
pub struct ReadLogEntries<'a> {
    /// The chat.
    pub key: &'a LogKey,
    /// The epoch of the log.
    pub epoch: Epoch,
    /// The position of the first entry.
    pub position: u64,
    /// The page holds at least one entry, if there is one, and no further one beyond this number of bytes.
    pub max_bytes: usize,
    /// Whether a client reads the live run, which then counts as read at this moment.
    pub is_reader: bool,
}

/// Entries of a log, without a gap, from the position of the read on.
#[derive(Clone, PartialEq)]
pub struct LogPage {
    /// The head, when the entries were read.
    pub head: LogHead,
    /// The entries.
    pub entries: Vec<StoredEntry>,
}

debug_without_content!(LogPage { head; entries });

/// Selects a page of the chats of one owner.
#[derive(Debug, Clone, Copy)]
pub struct ListChats<'a> {
    /// The maximum number of chats in the page, at least 1.
    pub limit: usize,
    /// The place after which the page begins. `None` for the first page.
    pub after: Option<&'a ChatCursor>,
    /// Selects the chats whose title contains this text. Upper and lower case of ASCII letters are the
    /// same.
    pub search: Option<&'a str>,
}

/// A chat in a list. As JSON it is `{"id", "title", "updatedAt", "isLive", "hasQuestions", "version"}`.
#[derive(Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChatSummary {
    /// The id of the chat.
    pub id: ChatId,
    /// Its title.
    pub title: String,
    /// The time of the last append with a control entry, by the clock of the store.
    pub updated_at: UnixMillis,
    /// Whether a run is live, lost ones included.
    pub is_live: bool,
    /// Whether the chat waits for an answer of its user.
    pub has_questions: bool,
    /// The number of control entries. It grows with each change of the messages, also within a millisecond.
    #[serde(rename = "version")]
    pub control: u64,
}

debug_without_content!(ChatSummary { id, updated_at, is_live, has_questions, control });

/// A page of the chats of one owner. As JSON it is `{"chats": […], "after"?}`.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ChatPage {
    /// The chats.
    pub chats: Vec<ChatSummary>,
    /// Where the next page begins. `None` if there are no more chats.
    #[serde(rename = "after", skip_serializing_if = "Option::is_none")]
    pub next: Option<ChatCursor>,
}

impl ChatPage {
    /// Creates a page of at most `limit` chats. If there are more in `chats`, the next page begins with the
    /// first of these. A store reads one chat more than the limit.
    pub fn new(mut chats: Vec<ChatSummary>, limit: usize) -> Self {
        let has_more = chats.len() > limit;
        chats.truncate(limit);
        let next = chats.last().filter(|_| has_more);
        let next = next.map(|last| ChatCursor { updated_at: last.updated_at, id: last.id.clone() });
        ChatPage { chats, next }
    }
}

/// Stores the logs of chats: for each chat one append-only list of entries, its head, and a snapshot.
///
/// # Requirements
/// - Each function is one atomic step. An [`append`](Self::append) compares in the step that writes.
/// - After an append has returned [`AppendResult::Appended`], its entries are stored and never change.
/// - The store has one clock for all servers. The lease of a run has passed when the time since it was set
///   is at least its duration.
/// - A store decodes no entry, no head of a snapshot and no message.
/// - If the reply to an append is lost, the append may have been executed, or may be executed later. The
///   caller loads the log, and decides again.
/// - A chat whose [time](AppendLog::keep_for) has passed is treated as deleted by each function.
pub trait LogStore: Send + Sync + fmt::Debug + 'static {
    /// Loads a log. Returns `None` if the chat has none.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the log cannot be read.
    fn load<'a>(
        &'a self,
        load: LoadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>>;

    /// Reads messages of a snapshot. Returns `None` if the stored snapshot is another one.
    ///
    /// # Errors
    /// [`ChatStoreError`] if they cannot be read.
    fn messages<'a>(
        &'a self,
        read: ReadMessages<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, ChatStoreError>>;

    /// Reads entries. Returns `None` if there is no log with this epoch, if its entries from this position
    /// on are not stored any more, or if the log is shorter.
    ///
    /// # Errors
    /// [`ChatStoreError`] if they cannot be read.
    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>>;

    /// Appends entries, sets the lease and changes the head, if the log is the expected one.
    ///
    /// A log that is created has no entry before these. An append that begins a run while none is live in the
    /// log takes a place of the user. Live runs have the places, except those whose lease has passed and
    /// those that [have to end](LogHead::has_to_end). If there is no place, the run that no client has read
    /// for longest has to end, and the new one gets its place, if that time is as long as in
    /// [`UserLimits`](super::UserLimits). A store that may lose chats, such as one in memory, can delete
    /// another chat of the user in place of [`AppendResult::TooManyChats`], but none with a live run or with
    /// questions.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the log cannot be written. The entries may have been appended, or may still
    /// be.
    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>>;

    /// Stores a snapshot, in place of an older one. Returns whether it was stored. It is not if there is no
    /// log with this epoch, if the log is shorter, if the stored snapshot is not older, or if it is not the
    /// one whose messages are unchanged.
    ///
    /// # Errors
    /// [`ChatStoreError`] if it cannot be written. It may have been stored.
    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>>;

    /// Deletes a log with everything of it, if it has this epoch and this number of control entries.
    /// Returns whether it did.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the log cannot be deleted. It may have been deleted.
    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>>;

    /// Deletes all logs of a user. Returns their number. A log that is created meanwhile may stay.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the logs cannot be deleted. Some may have been deleted.
    fn delete_user<'a>(
        &'a self,
        owner: &'a Principal,
    ) -> BoxFuture<'a, Result<usize, ChatStoreError>>;

    /// Gives a chat a title that appends do not change. It changes neither the time of the chat nor the
    /// numbers of its head. Returns whether there is such a chat.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the title cannot be written.
    fn rename<'a>(
        &'a self,
        key: &'a LogKey,
        title: &'a str,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>>;

    /// Lists the chats of an owner, the last updated first, page by page. Chats of the same millisecond are
    /// in the descending order of the bytes of their ids.
    ///
    /// A chat that does not change while the pages are read is on exactly one of them.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the chats cannot be read.
    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>>;

    /// Returns logs that were changed for a sink, or deleted since, and that are not
    /// [acknowledged](Self::acknowledge), in any order. If there are more than `limit`, it returns those that were
    /// changed, deleted or returned first. What this function
    /// has returned, it returns again only after `retry_after`, which is at most an hour, or if the log was
    /// changed or deleted again.
    ///
    /// A log that was once changed [for a sink](AppendLog::is_for_sink) is undelivered when it is deleted, or
    /// when its time has passed and the store has been [swept](Self::sweep), until the deletion is acknowledged.
    /// If the chat begins again before, and is changed for a sink, only the new log is undelivered. A sweep forgets a
    /// deletion that no call has returned for [30 days](KEPT_UNDELIVERED), because no server has a sink any more. A
    /// store in memory can forget deletions earlier.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the store cannot be read or written.
    fn undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> BoxFuture<'_, Result<Vec<Undelivered>, ChatStoreError>>;

    /// Notes that a sink has got what a log held at this position, or its deletion. The log is delivered if it
    /// has this epoch and was not changed for a sink after this position, or if it was deleted and has a lower
    /// epoch ([`Undelivered::is_acknowledged_by`]). Otherwise nothing is noted, and the result is what the sink
    /// has to get next: the sink may have got this after something newer. If nothing is
    /// known of the log, and no deletion is acknowledged, the log was deleted.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the store cannot be read or written. It may have been noted.
    fn acknowledge<'a>(
        &'a self,
        delivered: &'a Undelivered,
    ) -> BoxFuture<'a, Result<Option<Undelivered>, ChatStoreError>>;

    /// Removes what is not needed any more: chats whose time has passed, and entries before the snapshot
    /// that no reader may need. Readers may need those of the live run, and those of a run that has ended
    /// less than [10 minutes](KEPT_AFTER_END) ago. A run begins with the append in which it begins, or where the
    /// run has begun that it [resumes](super::LiveRunChange::Resumes).
    ///
    /// Returns what is left to the server, which calls this about once a minute. If there is much, a part of it
    /// is enough, but not always the same part: something that cannot be done keeps nothing else waiting. Each
    /// server of a store may get the same.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the store cannot be written. Part may have been removed.
    fn sweep(&self) -> BoxFuture<'_, Result<LeftToServer, ChatStoreError>>;

    /// Checks that the store can be read and written.
    ///
    /// # Errors
    /// [`ChatStoreError`] if it cannot.
    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>>;

    /// Waits until the log may hold more than `length` entries, or may be another one.
    ///
    /// This is a hint: the future may be ready too early, and the caller waits no longer than it can afford
    /// to miss an entry. The default waits for half a second.
    fn changed<'a>(&'a self, _key: &'a LogKey, _length: u64) -> BoxFuture<'a, ()> {
        Box::pin(tokio::time::sleep(DEFAULT_POLL_INTERVAL))
    }

    /// Returns entries from this position on, without a gap, that have come with hints of
    /// [`changed`](Self::changed). The store is not asked for them.
    ///
    /// They are what a [read](Self::read) of a log with this epoch returns, or would have returned before the log was
    /// deleted. The caller reads the log if there are none, and from time to time: a hint may be missed, also one of
    /// a deletion. The default returns none.
    fn hinted_entries(&self, _key: &LogKey, _epoch: Epoch, _position: u64) -> Vec<StoredEntry> {
        Vec::new()
    }

    /// Waits until the [list](Self::list) of an owner may have changed since the first poll of the future:
    /// a chat was created, renamed or deleted, an append had a control entry, or it has changed the live run
    /// or what lists show. It may take a [sweep](Self::sweep) until a chat counts as deleted whose time has passed.
    ///
    /// This is a hint, as of [`changed`](Self::changed). While a store may miss changes, the future is ready
    /// after half a second. The default waits for so long.
    fn changed_list<'a>(&'a self, _owner: &'a Principal) -> BoxFuture<'a, ()> {
        Box::pin(tokio::time::sleep(DEFAULT_POLL_INTERVAL))
    }
}

/// What is left to the server after a [sweep](LogStore::sweep).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LeftToServer {
    /// Live runs whose lease has passed [7 days](KEPT_AFTER_LOSS) ago, each with its log. The server ends them.
    pub lost_runs: Vec<(LogKey, RunId)>,
    /// Logs without a live run, of which a run has ended more than [10 minutes](KEPT_AFTER_END) ago, and whose
    /// snapshot is not of the whole log, for example because the server that has ended the run was lost before it
    /// stored one. The server stores one, and the entries of the run are kept until then. A store may return a
    /// log again only after a while.
    pub old_snapshots: Vec<LogKey>,
}

/// How long a run that has ended is kept for readers.
pub const KEPT_AFTER_END: Duration = Duration::from_secs(10 * 60);

/// How long after the end of its lease a lost run is ended without a request.
pub const KEPT_AFTER_LOSS: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long a deletion is kept that [`LogStore::undelivered`] has not returned.
pub const KEPT_UNDELIVERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How many lost runs, and how many old snapshots, a database returns from a sweep, or a few more.
pub const MAX_SWEPT: usize = 100;

/// How many bytes a store in memory or in a file keeps of runs that have ended, for readers.
pub const MAX_ENDED_BYTES: usize = 256 << 20;

/// How long readers wait between two reads if the store gives no hints.
pub(super) const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(500);
