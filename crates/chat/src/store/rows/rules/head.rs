//! What the rows of chats hold, as JSON.

use std::error::Error;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::{ChatStoreError, Epoch, LogHead};
use ui_message_stream::id::RunId;

/// The row of a log, without its entries. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Head {
    #[serde(rename = "f")]
    pub(crate) format: u8,
    #[serde(rename = "e")]
    pub(crate) epoch: u64,
    #[serde(rename = "c")]
    pub(crate) control: u64,
    /// The position of the first entry that is stored.
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    pub(crate) first: u64,
    /// The position of the snapshot.
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(crate) folded: Option<u64>,
    /// The number of messages of the snapshot.
    #[serde(rename = "m", default, skip_serializing_if = "is_default")]
    pub(crate) messages: u64,
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub(crate) live: Option<Live>,
    /// Where the runs begin that have ended and are kept for readers, and when they have ended.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) ended: Vec<(u64, u64)>,
    #[serde(rename = "u")]
    pub(crate) updated_at: u64,
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) expires_at: Option<u64>,
    /// Until when the frames of the run wait, because another turn appends at a position.
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub(crate) fenced_until: Option<u64>,
    /// Its place in the list of what is to sweep.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) due: Option<u64>,
    #[serde(rename = "t", default, skip_serializing_if = "is_default")]
    pub(crate) title: String,
    #[serde(rename = "n", default, skip_serializing_if = "is_default")]
    pub(crate) is_renamed: bool,
    #[serde(rename = "q", default, skip_serializing_if = "is_default")]
    pub(crate) has_questions: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Live {
    #[serde(rename = "r")]
    pub(crate) run: RunId,
    #[serde(rename = "p")]
    pub(crate) begin: u64,
    #[serde(rename = "l")]
    pub(crate) lease: u64,
    #[serde(rename = "a")]
    pub(crate) leased_at: u64,
    #[serde(rename = "b")]
    pub(crate) began_at: u64,
    #[serde(rename = "e", default, skip_serializing_if = "is_default")]
    pub(crate) has_to_end: bool,
}

/// The row of a user.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct User {
    /// The number of chats, those included whose time has passed.
    #[serde(rename = "c")]
    pub(crate) chats: u64,
    /// The chats with a live run.
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub(crate) live: Vec<String>,
}

/// The row of what a sink has to get of a chat, or has got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Delivery {
    #[serde(rename = "e")]
    pub(crate) epoch: u64,
    /// The number of entries, or the position of a deletion.
    #[serde(rename = "p")]
    pub(crate) position: u64,
    /// Its place in the list of what a sink has to get. `None` if the sink has got it.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) due: Option<u64>,
}

/// A log as it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loaded {
    pub(crate) version: u64,
    /// The row, also if the time of the log has passed.
    pub(crate) head: Option<Head>,
    /// The number of entries, those included that are not stored any more.
    pub(crate) length: u64,
    /// When a client has read the live run, or an earlier one.
    pub(crate) read_at: Option<u64>,
}

impl Head {
    pub(crate) fn new(epoch: Epoch, now: u64) -> Self {
        Head { format: FORMAT, epoch: epoch.0, updated_at: now, ..Head::default() }
    }

    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether the frames of the run wait. A time far in the future is from before the clock was set back.
    pub(crate) fn is_fenced(&self, now: u64) -> bool {
        self.fenced_until.is_some_and(|until| (now + 1..=now + FENCE).contains(&until))
    }

    /// Reads a row. Fails if a newer version has written it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ChatStoreError> {
        let head: Head = read(bytes)?;
        if head.format == FORMAT { Ok(head) } else { Err(UnreadableRow.into()) }
    }
}

impl Live {
    /// Whether the lease has passed. One that was set far in the future was set before the clock was set back.
    pub(crate) fn is_lost(&self, now: u64) -> bool {
        now >= self.leased_at.saturating_add(self.lease) || self.leased_at > now + MAX_SET_BACK
    }

    /// Sets the lease, unless it was set to the same a moment ago.
    pub(crate) fn renew(&mut self, lease: u64, now: u64) {
        let is_recent = |since| since < (lease / 10).min(LEASE_PRECISION);
        if lease != self.lease || !now.checked_sub(self.leased_at).is_some_and(is_recent) {
            (self.lease, self.leased_at) = (lease, now);
        }
    }
}

impl Loaded {
    /// Returns the row of the log, unless its time has passed.
    pub(crate) fn log(&self, now: u64) -> Option<&Head> {
        self.head.as_ref().filter(|head| !head.is_expired(now))
    }

    /// Returns for how long no client has read the live run. A time far in the future was before the clock was set
    /// back, and does not count.
    pub(crate) fn unread(&self, live: &Live, now: u64) -> u64 {
        let times = [Some(live.began_at), self.read_at].into_iter().flatten();
        let counted = times.filter(|at| *at <= now + MAX_SET_BACK);
        counted.map(|at| now.saturating_sub(at)).min().unwrap_or(MAX_UNREAD)
    }

    pub(crate) fn log_head(&self, head: &Head, now: u64) -> LogHead {
        let live = head.live.as_ref();
        LogHead {
            epoch: Epoch(head.epoch),
            length: self.length,
            control: head.control,
            live_run: live.map(|live| live.run.clone()),
            is_lost: live.is_some_and(|live| live.is_lost(now)),
            unread: Duration::from_millis(live.map_or(0, |live| self.unread(live, now))),
            has_to_end: live.is_some_and(|live| live.has_to_end),
        }
    }
}

/// Reads the JSON of a row.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ChatStoreError> {
    serde_json::from_slice(bytes).map_err(|_| UnreadableRow.into())
}

/// The error of a row that this version has not written.
#[derive(Debug, thiserror::Error)]
#[error("a stored row cannot be read: a newer version has written it, or it is damaged")]
pub(crate) struct UnreadableRow;

/// Whether a row cannot be read. All other errors are those of the database.
pub(crate) fn is_unreadable(error: &ChatStoreError) -> bool {
    error.source().is_some_and(|source| source.is::<UnreadableRow>())
}

impl From<UnreadableRow> for ChatStoreError {
    fn from(error: UnreadableRow) -> Self {
        ChatStoreError::new(error)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The number of the format of [`Head`].
const FORMAT: u8 = 1;

/// How long the frames of a run wait for another turn, in milliseconds.
pub(crate) const FENCE: u64 = 1_000;

/// A clock that is set back by more than this, in milliseconds, was wrong before. Otherwise no lease would pass
/// until it is as late again.
pub(crate) const MAX_SET_BACK: u64 = 60_000;

/// A lease is not set again within this time, in milliseconds, or a tenth of it.
const LEASE_PRECISION: u64 = 1_000;

/// For how long a run was not read if each time of it was before the clock was set back.
const MAX_UNREAD: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_or_a_begin_before_the_clock_was_set_back_does_not_count() {
        let now = 1_000_000;
        let [latest, before] = [now + MAX_SET_BACK, now + MAX_SET_BACK + 1];
        for (began_at, read_at, unread) in [
            (now - 50, None, 50),
            (now - 50, Some(now - 20), 20),
            // It was of an earlier run.
            (now - 20, Some(now - 50), 20),
            (now - 50, Some(latest), 0),
            (now - 50, Some(before), 50),
            (latest, None, 0),
            (before, Some(now - 20), 20),
            (before, None, MAX_UNREAD),
            (before, Some(before), MAX_UNREAD),
        ] {
            let (run, begin, lease, leased_at) = ("run".into(), 0, 10_000, now);
            let live = Live { run, begin, lease, leased_at, began_at, has_to_end: false };
            let log = Loaded { read_at, ..Loaded::default() };
            assert_eq!(log.unread(&live, now), unread, "{began_at} {read_at:?}");
        }
    }
}
