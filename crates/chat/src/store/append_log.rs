//! What is appended to a log, and what a store answers.

use std::fmt;
use std::time::Duration;

use super::log_head::{EntryKind, Epoch, LogHead, LogKey, StoredEntry};
use ui_message_stream::id::RunId;

/// What an append compares in the step that writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The chat has no log. The append creates one with this epoch.
    NoLog(Epoch),
    /// The log has this epoch and this number of control entries. Other entries may have been appended.
    Control {
        /// The epoch of the log.
        epoch: Epoch,
        /// The number of control entries.
        control: u64,
    },
    /// The log has this epoch and this number of entries.
    Position {
        /// The epoch of the log.
        epoch: Epoch,
        /// The number of entries.
        position: u64,
    },
}

impl Expected {
    /// Returns whether a log is the expected one: its epoch, its number of entries, and its number of control
    /// entries. `None` if the chat has no log.
    pub fn is_met(self, log: Option<(Epoch, u64, u64)>) -> bool {
        match (self, log) {
            (Expected::NoLog(_), log) => log.is_none(),
            (_, None) => false,
            (Expected::Control { epoch, control }, Some(log)) => (epoch, control) == (log.0, log.2),
            (Expected::Position { epoch, position }, Some(log)) => {
                (epoch, position) == (log.0, log.1)
            }
        }
    }
}

/// What an append changes about the live run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LiveRunChange<'a> {
    /// Nothing.
    #[default]
    None,
    /// This run begins. If another one was live, it has ended.
    Begins(&'a RunId),
    /// This run takes the place of the live one, whose readers read on in this one. If none is live, it begins.
    Resumes(&'a RunId),
    /// The live run has ended, or one that has begun in this append.
    Ends,
}

impl<'a> LiveRunChange<'a> {
    /// Returns the run that the append makes live.
    pub fn new_run(self) -> Option<&'a RunId> {
        match self {
            LiveRunChange::Begins(run) | LiveRunChange::Resumes(run) => Some(run),
            LiveRunChange::None | LiveRunChange::Ends => None,
        }
    }

    /// Returns where the run begins that the append makes live. `live` is where the run begins that was live
    /// before, and `first` the position of the first entry of the append.
    pub fn new_begin(self, live: Option<u64>, first: u64) -> u64 {
        match self {
            LiveRunChange::Resumes(_) => live.unwrap_or(first),
            _ => first,
        }
    }

    /// Returns where the run begins that has ended with the append and is kept for readers.
    pub fn ended_begin(self, live: Option<u64>, first: u64) -> Option<u64> {
        match self {
            LiveRunChange::Begins(_) => live,
            LiveRunChange::Ends => Some(live.unwrap_or(first)),
            LiveRunChange::None | LiveRunChange::Resumes(_) => None,
        }
    }
}

/// How many chats and live runs a user may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimits {
    /// The maximum number of chats, with the one that is created.
    pub chats: usize,
    /// The maximum number of live runs, with the one that begins.
    pub runs: usize,
    /// A run may have to end for another one if no client has read it for this time.
    pub unread: Duration,
}

/// What lists show of a chat, after an append.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListedChat<'a> {
    /// The title, unless the chat was [renamed](super::LogStore::rename).
    pub title: &'a str,
    /// Whether the chat waits for an answer of its user.
    pub has_questions: bool,
}

impl fmt::Debug for ListedChat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ListedChat");
        debug.field("has_questions", &self.has_questions).finish_non_exhaustive()
    }
}

/// An append.
#[derive(Debug, Clone, Copy)]
pub struct AppendLog<'a> {
    /// The chat.
    pub key: &'a LogKey,
    /// What the append compares.
    pub expected: Expected,
    /// The entries. There may be none, if the append only sets the lease.
    pub entries: &'a [StoredEntry],
    /// Sets the lease of the run that is live after the append: it passes after this time. Zero hands the
    /// run over. `None` leaves the lease as it is; the lease of a run that begins has then passed at once. A store may
    /// leave a lease that was set to the same within the last second, or a tenth of it if that is less.
    pub lease: Option<Duration>,
    /// The append is refused unless a run is live whose lease has passed.
    pub only_lost: bool,
    /// What the append changes about the live run.
    pub live_run: LiveRunChange<'a>,
    /// What lists show from now on. `None` changes nothing.
    pub listed: Option<ListedChat<'a>>,
    /// If the append has a control entry: after this time without another one the chat is deleted. `None`
    /// keeps it until it is deleted.
    pub keep_for: Option<Duration>,
    /// Checked if the append creates a log, and if it begins a run without ending one.
    pub limits: UserLimits,
    /// The append changes messages that a [sink](crate::MessageSink) has to get: the log is
    /// [undelivered](super::LogStore::undelivered) from now on, up to the last of these entries.
    pub is_for_sink: bool,
}

/// What a [sink](crate::MessageSink) has not got.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Undelivered {
    /// The chat.
    pub key: LogKey,
    /// Which of the logs that the chat had.
    pub epoch: Epoch,
    /// The number of entries whose messages are to be delivered, or [`DELETED`](Self::DELETED).
    pub position: u64,
}

impl Undelivered {
    /// The position of the deletion of a log: no position of an entry is as high.
    pub const DELETED: u64 = Epoch::MAX;

    /// Whether a sink that has got `delivered` has got this, too: the rule of
    /// [`LogStore::acknowledge`](super::LogStore::acknowledge). Both are of one chat.
    pub fn is_acknowledged_by(&self, delivered: &Self) -> bool {
        if self.epoch == delivered.epoch {
            self.position <= delivered.position
        } else {
            self.position == Self::DELETED && self.epoch < delivered.epoch
        }
    }

    /// Returns the deletion of the log with this epoch.
    pub fn deletion(key: LogKey, epoch: Epoch) -> Self {
        Undelivered { key, epoch, position: Self::DELETED }
    }
}

impl AppendLog<'_> {
    /// Returns the number of control entries.
    pub fn controls(&self) -> u64 {
        let is_control = |entry: &&StoredEntry| entry.kind == EntryKind::Control;
        self.entries.iter().filter(is_control).count() as u64
    }
}

impl AppendLog<'_> {
    /// Whether the append changes what [lists](super::LogStore::list) show of the chat.
    pub fn changes_list(&self) -> bool {
        self.listed.is_some()
            || self.live_run != LiveRunChange::None
            || matches!(self.expected, Expected::NoLog(_))
            || self.entries.iter().any(|entry| entry.kind == EntryKind::Control)
    }
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum AppendResult {
    /// The entries are in the log.
    Appended {
        /// The position of the first one.
        first: u64,
        /// The head after the append.
        head: LogHead,
    },
    /// The log is not the expected one, or its lease has not passed. Nothing was changed, unless the store
    /// has sent this append twice, and the log is not the expected one because of the first time.
    Conflict,
    /// The user has the maximum number of chats. Nothing was changed.
    TooManyChats,
    /// The user has the maximum number of live runs, and clients read all of them. Nothing was changed.
    TooManyRuns,
}
