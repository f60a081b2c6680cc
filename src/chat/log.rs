//! The log of a run: the append-only list of entries from which every reader of the run reads, the
//! response to the POST included.
//!
//! ```text
//!  begin ──▶ append … append ──▶ append with the end
//!               ▲                        ▲
//!  the holder ──┘   take: a new fence    │ the new holder
//! ```
//!
//! A run has one holder, who has the newest fence. Each append proves the fence and renews the
//! lease of the holder. [`RunStore`](crate::chat::store::RunStore) stores logs.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::approval::{LeaseHolderId, Principal};
use crate::id::{ChatId, RunId};

/// The key of a run: the owner and the id of its conversation, and the id of the run.
///
/// The owner and the conversation are part of the key, so that the run of another user is never
/// found.
#[derive(Debug, Clone, Eq, PartialOrd, Ord)]
pub struct RunKey {
    /// The owner of the conversation.
    pub owner: Principal,
    /// The id of the conversation.
    pub chat: ChatId,
    /// The id of the run.
    pub run: RunId,
}

impl PartialEq for RunKey {
    fn eq(&self, other: &Self) -> bool {
        // Most keys share their strings with the key with which the run was begun.
        let is_same = |one: &str, other: &str| std::ptr::eq(one, other) || one == other;
        is_same(&self.run, &other.run)
            && is_same(&self.chat, &other.chat)
            && self.owner == other.owner
    }
}

impl Hash for RunKey {
    /// Hashes only the end of the id of the run, which is chosen at random.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let id = self.run.as_bytes();
        state.write(id.last_chunk::<16>().map_or(id, |end| end));
    }
}

/// The number of the holder of a run. It begins at 1, and each take of the run increases it by 1.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Fence(pub u64);

#[cfg(feature = "approvals")]
impl Fence {
    /// The fence of the holder that began a run.
    pub(crate) const FIRST: Self = Fence(1);
}

/// An entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    /// The bytes of one frame, which are sent to every reader.
    Frame(Bytes),
    /// What the frames do not show, for the server that stores the message. It is never sent.
    Note(Bytes),
}

impl LogEntry {
    /// Returns the bytes of the entry.
    pub fn bytes(&self) -> &Bytes {
        match self {
            LogEntry::Frame(bytes) | LogEntry::Note(bytes) => bytes,
        }
    }
}

/// A request to begin a log.
#[derive(Debug, Clone, Copy)]
pub struct BeginRun<'a> {
    /// The key of the new run. The caller chooses the id of the run at random.
    pub key: &'a RunKey,
    /// The holder. If it begins the same run again, the run is not changed.
    pub holder: LeaseHolderId,
    /// The duration of the lease. Every append and every take renews it.
    pub lease: Duration,
    /// The maximum number of live runs of the owner.
    pub max_user_runs: usize,
}

/// The result of a [`BeginRun`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum BeginResult {
    /// The log exists, is empty, and belongs to the caller.
    Begun(Fence),
    /// The run exists, and another holder began it, it was taken, or its log is not empty or has
    /// ended.
    Exists,
    /// The owner has the maximum number of live runs, and all of them have readers.
    TooManyRuns,
}

/// A request to append entries to a log.
#[derive(Debug, Clone, Copy)]
pub struct AppendEntries<'a> {
    /// The key of the run.
    pub key: &'a RunKey,
    /// The fence of the caller.
    pub fence: Fence,
    /// The number of entries before these.
    pub position: u64,
    /// The entries. May be empty: the append then renews the lease, or ends the log if `end` is
    /// set.
    pub entries: &'a [LogEntry],
    /// Whether the log ends after the entries.
    pub end: bool,
}

/// The result of an [`AppendEntries`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum AppendResult {
    /// The log holds the entries, from this append or from an earlier one.
    Appended(HolderStatus),
    /// The log was not changed.
    Refused(AppendRefusal),
}

/// What an append returns to the holder of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HolderStatus {
    /// For how long no reader has read the log. The time begins when the run begins, and again with
    /// each [read](ReadLog::is_reader) for a client.
    pub unread: Duration,
    /// Whether the run has to end, because its owner began more runs than are permitted and this is
    /// the oldest one without a reader.
    pub has_to_end: bool,
}

/// The reason why an append was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendRefusal {
    /// The run was taken: the fence is not the newest.
    Taken,
    /// The log has ended.
    Ended,
    /// The entries do not continue the log, and they do not repeat what the log holds at this
    /// position.
    Gap,
    /// There is no such run: it was never begun, or it was removed.
    NotFound,
}

/// A request to read a log.
#[derive(Debug, Clone, Copy)]
pub struct ReadLog<'a> {
    /// The key of the run.
    pub key: &'a RunKey,
    /// The number of entries to skip.
    pub after: u64,
    /// The maximum number of bytes to return. At least one entry is returned, if there is one.
    pub max_bytes: usize,
    /// Whether a client reads the response. The run then counts as read at this moment.
    pub is_reader: bool,
}

#[cfg(feature = "approvals")]
impl<'a> ReadLog<'a> {
    /// Reads all entries at once, for the server itself.
    pub(crate) fn whole(key: &'a RunKey) -> Self {
        ReadLog { key, after: 0, max_bytes: usize::MAX, is_reader: false }
    }

    /// Reads the state of a run, and no entries.
    pub(crate) fn state(key: &'a RunKey) -> Self {
        ReadLog { key, after: u64::MAX, max_bytes: 0, is_reader: false }
    }
}

/// Entries of a log, and the state of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The entries.
    pub entries: Vec<LogEntry>,
    /// The number of entries of the whole log.
    pub length: u64,
    /// The newest fence.
    pub fence: Fence,
    /// The state of the run.
    pub state: RunState,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// The lease of the holder has not passed.
    Leased,
    /// The lease of the holder has passed.
    LeasePassed,
    /// The log has ended.
    Ended,
}

/// A request to become the holder of a run.
#[derive(Debug, Clone, Copy)]
pub struct TakeRun<'a> {
    /// The key of the run.
    pub key: &'a RunKey,
    /// The fence of the current holder.
    pub fence: Fence,
    /// The new holder. If it repeats the request, it gets the same fence again.
    pub holder: LeaseHolderId,
    /// Which runs may be taken.
    pub condition: TakeCondition,
    /// The duration of the lease from now on. With zero the lease has passed at once: the holder hands
    /// its run over to the next one.
    pub lease: Duration,
}

/// Which runs may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeCondition {
    /// Any run whose log has not ended, for example because the user stops it.
    Any,
    /// A run whose lease has passed.
    LeasePassed,
}

/// The result of a [`TakeRun`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum TakeResult {
    /// The caller is the holder. Every append with an older fence is refused from now on.
    Taken(Fence),
    /// The run was not taken.
    Refused(TakeRefusal),
}

/// The reason why a run was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeRefusal {
    /// The fence is not the newest. This is the newest.
    OtherFence(Fence),
    /// The lease was renewed.
    LeaseRenewed,
    /// The log has ended.
    Ended,
    /// There is no such run: it was never begun, or it was removed.
    NotFound,
}
