//! What names a log, what it holds, and what is known of it without its entries.

use std::time::Duration;

use bytes::Bytes;

use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::{ChatId, RunId};

/// A chat of a user. Two users may have chats with the same id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogKey {
    /// The owner of the chat.
    pub owner: Principal,
    /// The id of the chat.
    pub chat: ChatId,
}

/// Identifies one of the logs that a chat had: a chat that was deleted and begun again has a higher epoch.
///
/// The caller makes it of the time and some random bits, below 2<sup>53</sup>, so that every database and JSON can
/// hold it. The order is that of the clocks of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the epoch of a log that is created now, with some of these random bits.
    pub(crate) fn of_time(now: UnixMillis, random: u64) -> Self {
        // The milliseconds have 42 bits until the year 2109.
        Epoch(((now.0 << 11) | (random & 0x7ff)) & Self::MAX)
    }

    /// Returns the epoch of a further attempt to create a log.
    pub(crate) fn after(self, attempts: u32) -> Self {
        Epoch((self.0 + u64::from(attempts)) & Self::MAX)
    }

    pub(super) const MAX: u64 = (1 << 53) - 1;
}

/// What a store has to know about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// What clients read. A load can leave these entries out, because most decisions need none of them.
    Frame,
    /// An entry of the server that writes the live run.
    Note,
    /// An entry on which decisions of other servers depend. The head of the log counts these entries.
    Control,
}

/// An entry of a log. A store does not read its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// What the store has to know about it.
    pub kind: EntryKind,
    /// The entry.
    pub bytes: Bytes,
}

debug_without_content!(StoredEntry { kind; bytes });

/// The head of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHead {
    /// Which of the logs that the chat had.
    pub epoch: Epoch,
    /// The number of entries, those included that are not stored any more. It is the position of the next
    /// entry.
    pub length: u64,
    /// The number of control entries, counted in the same way.
    pub control: u64,
    /// The run that is live. A log has at most one.
    pub live_run: Option<RunId>,
    /// Whether the lease of the live run has passed.
    pub is_lost: bool,
    /// The time since a client read the live run last, or since the run began. Zero without a live run.
    pub unread: Duration,
    /// Another run of the user needs the place of the live run.
    pub has_to_end: bool,
}
