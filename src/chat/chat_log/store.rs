//! [`LogStore`]: the storage of the logs of chats.

use std::fmt;
use std::time::Duration;

use super::entry::StoredEntry;
use crate::approval::Principal;
use crate::boxed::BoxFuture;
use crate::chat::conversation::Messages;
use crate::chat::store::ChatStoreError;
use crate::id::{ChatId, RunId};

/// A chat of a user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogKey {
    pub(crate) owner: Principal,
    pub(crate) chat: ChatId,
}

/// Which of the logs that a chat had. It is a random number: a chat that was deleted and begun again
/// has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(pub(crate) u64);

impl Epoch {
    /// Returns the epoch of a further attempt to create a log.
    pub(crate) fn after(self, attempts: u32) -> Self {
        Epoch(self.0.wrapping_add(attempts.into()))
    }
}

/// What an append compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The chat has no log. The append creates one with this epoch.
    NoLog(Epoch),
    /// No control entry was appended since. Frames of the live run may have been.
    Control { epoch: Epoch, control: u64 },
    /// No entry was appended since.
    Position { epoch: Epoch, position: u64 },
}

/// The head of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogHead {
    pub(crate) epoch: Epoch,
    /// The number of entries. It is the position of the next one.
    pub(crate) length: u64,
    /// The number of control entries.
    pub(crate) control: u64,
    pub(crate) live_run: Option<RunId>,
    /// Whether the lease of the live run has passed.
    pub(crate) is_lost: bool,
    /// The time since the live run was read last.
    pub(crate) unread: Duration,
    /// Another run of the user needs the place of this one.
    pub(crate) has_to_end: bool,
}

/// What an append changes in the head, beside the numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LiveRunChange<'a> {
    #[default]
    None,
    Begins(&'a RunId),
    Ends,
}

/// How many chats and live runs a user may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UserLimits {
    pub(crate) chats: usize,
    pub(crate) runs: usize,
    /// A run may have to end for another one if nobody has read it for this time.
    pub(crate) unread: Duration,
}

/// An append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppendLog<'a> {
    pub(crate) key: &'a LogKey,
    pub(crate) expected: Expected,
    pub(crate) entries: &'a [StoredEntry],
    /// Sets the lease of the live run. Zero hands the run over.
    pub(crate) lease: Option<Duration>,
    /// The append is refused if the lease of the live run has not passed.
    pub(crate) only_lost: bool,
    pub(crate) live_run: LiveRunChange<'a>,
    /// Checked if the append creates a log, or begins a run without ending one.
    pub(crate) limits: UserLimits,
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub(crate) enum AppendResult {
    /// The entries are in the log, the first one at this position.
    Appended {
        first: u64,
        head: LogHead,
    },
    /// The log has changed, or there is another one or none, or its lease has not passed.
    Conflict,
    TooManyChats,
    /// The user has too many live runs. The one that nobody has read for longest has to end.
    TooManyRuns,
}

/// Which part of a log is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadLog {
    /// The snapshot, and the entries after it except frames.
    Control,
    /// The snapshot, and all entries after it.
    Whole,
}

/// A log as a turn loads it.
#[derive(Debug, Clone)]
pub(crate) struct LoadedLog {
    pub(crate) head: LogHead,
    pub(crate) snapshot: Option<Snapshot>,
    /// The entries after the snapshot with their positions.
    pub(crate) entries: Vec<(u64, StoredEntry)>,
}

/// The fold of the first entries of a log.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// The number of these entries.
    pub(crate) position: u64,
    /// Everything but the messages, as JSON.
    pub(crate) head: String,
    pub(crate) messages: Messages,
}

/// A read of entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLogEntries<'a> {
    pub(crate) key: &'a LogKey,
    pub(crate) epoch: Epoch,
    pub(crate) position: u64,
    /// The page holds at least one entry, and no further one beyond this number of bytes.
    pub(crate) max_bytes: usize,
    /// Whether a client reads the live run.
    pub(crate) is_reader: bool,
}

/// Entries of a log, without a gap, from the position of the read on.
#[derive(Debug, Clone)]
pub(crate) struct LogPage {
    pub(crate) head: LogHead,
    pub(crate) entries: Vec<StoredEntry>,
}

/// A snapshot to store. An older one than the stored one changes nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PutSnapshot<'a> {
    pub(crate) key: &'a LogKey,
    pub(crate) epoch: Epoch,
    pub(crate) snapshot: &'a Snapshot,
    /// The number of first messages that the snapshot shares with the one before it.
    pub(crate) unchanged: usize,
}

/// Stores the logs of chats. Each function is one atomic step.
///
/// A store decodes no entry. The reply to an append may be lost: the caller loads the tail, and decides
/// again.
pub(crate) trait LogStore: Send + Sync + fmt::Debug + 'static {
    /// Loads a log. Returns `None` if the chat has none.
    fn load<'a>(
        &'a self,
        key: &'a LogKey,
        load: LoadLog,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>>;

    /// Reads entries. Returns `None` if there is no log with this epoch, or if its entries from this
    /// position on are not stored any more.
    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>>;

    /// Appends entries.
    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>>;

    /// Stores a snapshot. Does nothing if there is no log with this epoch.
    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<(), ChatStoreError>>;

    /// Deletes a log, if it has this epoch and this number of control entries. Returns whether it did.
    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>>;

    /// Removes frames that no reader may need any more.
    fn sweep(&self) -> BoxFuture<'_, Result<(), ChatStoreError>>;
}
