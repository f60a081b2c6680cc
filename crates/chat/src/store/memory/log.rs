//! [`Log`]: one log in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::store::{
    AppendLog, ChatSummary, Epoch, LiveRunChange, LogHead, PutSnapshot, StoredEntry, Unchanged,
};
use ui_message_stream::approval::UnixMillis;
use ui_message_stream::id::{ChatId, RunId};

pub(super) struct Log {
    pub(super) epoch: Epoch,
    pub(super) control: u64,
    pub(super) live: Option<LiveRun>,
    /// The runs that have ended and whose entries are kept for readers, in the order of their ends: where
    /// they begin, and the bytes of their entries.
    pub(super) ended: VecDeque<(u64, usize)>,
    pub(super) snapshot: Option<KeptSnapshot>,
    /// The position of the first entry that is stored.
    pub(super) first: u64,
    entries: VecDeque<StoredEntry>,
    pub(super) bytes: usize,
    pub(super) title: String,
    pub(super) is_renamed: bool,
    pub(super) has_questions: bool,
    pub(super) updated_at: UnixMillis,
    pub(super) expires_at: Option<UnixMillis>,
    pub(super) changed: Arc<Notify>,
}

/// A snapshot, whose messages are changed in place.
#[derive(Default)]
pub(super) struct KeptSnapshot {
    pub(super) position: u64,
    pub(super) head: String,
    pub(super) messages: BTreeMap<usize, String>,
    bytes: usize,
}

pub(super) struct LiveRun {
    pub(super) run: RunId,
    pub(super) begin: u64,
    pub(super) lease_end: UnixMillis,
    pub(super) read_at: UnixMillis,
    pub(super) has_to_end: bool,
}

impl Log {
    pub(super) fn new(epoch: Epoch, now: UnixMillis) -> Self {
        Log {
            epoch,
            control: 0,
            live: None,
            ended: VecDeque::new(),
            snapshot: None,
            first: 0,
            entries: VecDeque::new(),
            bytes: LOG_BYTES,
            title: String::new(),
            is_renamed: false,
            has_questions: false,
            updated_at: now,
            expires_at: None,
            changed: Arc::default(),
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(super) fn head(&self, now: UnixMillis) -> LogHead {
        let live = self.live.as_ref();
        LogHead {
            epoch: self.epoch,
            length: self.length(),
            control: self.control,
            live_run: live.map(|live| live.run.clone()),
            is_lost: live.is_some_and(|live| now >= live.lease_end),
            unread: live.map_or(Duration::ZERO, |live| since(live.read_at, now)),
            has_to_end: live.is_some_and(|live| live.has_to_end),
        }
    }

    pub(super) fn append(&mut self, append: &AppendLog<'_>, now: UnixMillis) -> u64 {
        let first = self.length();
        let controls = append.controls();
        self.control += controls;
        self.bytes += bytes_of(append.entries);
        self.entries.extend(append.entries.iter().cloned());
        if append.live_run != LiveRunChange::None {
            let live = self.live.take().map(|live| live.begin);
            if let Some(begin) = append.live_run.ended_begin(live, first) {
                let bytes = self.from(begin).map(|(_, entry)| entry.bytes.len()).sum();
                self.ended.push_back((begin, bytes));
            }
            let begin = append.live_run.new_begin(live, first);
            let lease_end = now;
            self.live = append.live_run.new_run().map(|run| LiveRun {
                run: run.clone(),
                begin,
                lease_end,
                read_at: now,
                has_to_end: false,
            });
        }
        if let (Some(lease), Some(live)) = (append.lease, &mut self.live) {
            live.lease_end = now.after(lease);
        }
        if let Some(listed) = append.listed {
            self.has_questions = listed.has_questions;
            if !self.is_renamed && self.title != listed.title {
                self.title = listed.title.to_owned();
            }
        }
        if controls > 0 {
            self.updated_at = now;
            self.expires_at = append.keep_for.map(|time| now.after(time));
        }
        self.changed.notify_waiters();
        first
    }

    /// The stored entries from this position on, with their positions.
    pub(super) fn from(&self, position: u64) -> impl Iterator<Item = (u64, &StoredEntry)> {
        let skipped = usize::try_from(position.saturating_sub(self.first)).unwrap_or(usize::MAX);
        (self.first..).zip(&self.entries).skip(skipped)
    }

    /// Removes the entries that neither the fold nor a reader needs.
    pub(super) fn trim(&mut self) {
        let live = self.live.as_ref().map(|live| live.begin);
        let kept = self.ended.front().map(|(begin, _)| *begin).or(live).unwrap_or(self.length());
        let folded = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
        let trimmed = kept.min(folded).saturating_sub(self.first);
        let count = usize::try_from(trimmed).unwrap_or(0).min(self.entries.len());
        self.bytes -= self.entries.drain(..count).map(|entry| entry.bytes.len()).sum::<usize>();
        self.first += trimmed;
        if self.entries.capacity() > 4 * self.entries.len() + 16 {
            self.entries.shrink_to_fit();
        }
    }

    /// Whether the snapshot of a log without a live run is not of the whole log.
    pub(super) fn has_old_snapshot(&self) -> bool {
        let folded = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
        self.live.is_none() && folded < self.length()
    }

    pub(super) fn put_snapshot(&mut self, put: &PutSnapshot<'_>) -> bool {
        let stored = self.snapshot.as_ref();
        let is_newer = stored.is_none_or(|stored| stored.position < put.position);
        let is_base = |base: Unchanged| {
            stored.is_some_and(|stored| {
                stored.position == base.position && base.messages <= stored.messages.len()
            })
        };
        if put.position > self.length() || !is_newer || !put.unchanged.is_none_or(is_base) {
            return false;
        }
        let mut snapshot = self.snapshot.take().unwrap_or_default();
        self.bytes -= snapshot.bytes;
        let unchanged = put.unchanged.map_or(0, |base| base.messages);
        snapshot.bytes -= snapshot.head.len();
        for (_, removed) in snapshot.messages.split_off(&unchanged) {
            snapshot.bytes -= removed.len();
        }
        (snapshot.position, snapshot.head) = (put.position, put.head.to_owned());
        snapshot.bytes += put.head.len() + put.changed.iter().map(String::len).sum::<usize>();
        snapshot.messages.extend((unchanged..).zip(put.changed.iter().cloned()));
        self.bytes += snapshot.bytes;
        self.snapshot = Some(snapshot);
        true
    }

    pub(super) fn summary(&self, id: &ChatId) -> ChatSummary {
        ChatSummary {
            id: id.clone(),
            title: self.title.clone(),
            updated_at: self.updated_at,
            is_live: self.live.is_some(),
            has_questions: self.has_questions,
            control: self.control,
        }
    }
}

pub(super) fn bytes_of(entries: &[StoredEntry]) -> usize {
    entries.iter().map(|entry| entry.bytes.len()).sum()
}

pub(super) fn since(time: UnixMillis, now: UnixMillis) -> Duration {
    Duration::from_millis(now.0.saturating_sub(time.0))
}

/// What a chat counts beside its entries and its snapshot.
pub(super) const LOG_BYTES: usize = 1 << 10;
