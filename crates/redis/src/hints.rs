//! [`Hints`]: wakes the readers of logs that have changed, and has the newest entries that came with hints.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use ui_message_stream_chat::store::rows::{Known, Waiters};
use ui_message_stream_chat::store::{EntryKind, Epoch, StoredEntry};

/// The logs that readers of this process wait for, by the names of their channels.
///
/// An append of this process wakes the readers at once. The [follower](crate::follow) receives the
/// appends of other processes.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    pub(crate) waiters: Waiters<String, Newest>,
    /// Whether the follower has a connection. Without one, only the changes of this process wake the readers.
    is_connected: AtomicBool,
}

impl Hints {
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Acquire)
    }

    /// Forgets what is known of a log, and wakes its readers.
    pub(crate) fn forget(&self, channel: &str) {
        self.waiters.with(channel, forget);
    }

    /// Returns the number of entries that a log is known to have.
    pub(crate) fn known(&self, channel: &str) -> u64 {
        let mut known = 0;
        self.waiters.with(channel, |log| known = log.length());
        known
    }

    /// Notes that a log has so many entries, and wakes its readers if this is new.
    pub(crate) fn add(&self, channel: &str, length: u64) {
        self.waiters.with(channel, |log| log.appended(length));
    }

    /// Receives a message of this channel, and wakes the readers of the log.
    pub(crate) fn receive(&self, channel: &str, message: &[u8]) {
        self.waiters.with(channel, |log| match Message::read(message) {
            Some(Message::Entries { epoch, length, entries }) => {
                log.value.push(epoch, length - entries.len() as u64, entries);
                log.appended(length);
            }
            Some(Message::Length(length)) => {
                // If Redis has lost entries, there may be others at their positions now.
                log.value = Newest::default();
                log.appended(length);
            }
            // A log was created or deleted: what was known is of another one.
            None => forget(log),
        });
    }

    /// Returns the entries of the log with this epoch that have come with hints, from this position on.
    pub(crate) fn entries(&self, channel: &str, epoch: Epoch, position: u64) -> Vec<StoredEntry> {
        let mut entries = Vec::new();
        self.waiters.with(channel, |log| entries = log.value.from(epoch, position));
        entries
    }

    /// Sets whether the follower has a connection. If it has lost it, forgets what is known and
    /// wakes all readers, so that they look for themselves: a Redis that restarts may lose entries.
    pub(crate) fn set_connected(&self, is_connected: bool) {
        self.is_connected.store(is_connected, Ordering::Release);
        if !is_connected {
            self.forget_all();
        }
    }

    /// Forgets what is known of all logs, and wakes all readers.
    pub(crate) fn forget_all(&self) {
        self.waiters.for_each(|_, log| forget(log));
    }

    /// Returns the channels of all logs.
    pub(crate) fn channels(&self) -> Vec<String> {
        let mut channels = Vec::new();
        self.waiters.for_each(|channel, _| channels.push(channel.clone()));
        channels
    }
}

fn forget(log: &mut Known<Newest>) {
    log.value = Newest::default();
    log.reset();
}

/// The newest entries of a log that have come with hints, without a gap.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    /// `None` if there are no entries.
    epoch: Option<Epoch>,
    /// The position of the first one.
    first: u64,
    bytes: usize,
    entries: VecDeque<StoredEntry>,
}

impl Newest {
    /// Adds the entries of an append, which begin at this position. If they do not follow the others, these go.
    fn push(&mut self, epoch: Epoch, first: u64, entries: Vec<StoredEntry>) {
        if self.epoch != Some(epoch) || self.first + self.entries.len() as u64 != first {
            *self = Newest { epoch: Some(epoch), first, ..Newest::default() };
        }
        self.bytes += entries.iter().map(|entry| entry.bytes.len()).sum::<usize>();
        self.entries.extend(entries);
        while self.bytes > MAX_NEWEST_BYTES
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= oldest.bytes.len();
            self.first += 1;
        }
    }

    fn from(&self, epoch: Epoch, position: u64) -> Vec<StoredEntry> {
        let read = position.checked_sub(self.first).and_then(|read| usize::try_from(read).ok());
        match read.filter(|_| self.epoch == Some(epoch)) {
            Some(read) => self.entries.iter().skip(read).cloned().collect(),
            None => Vec::new(),
        }
    }
}

/// The message of an append.
enum Message {
    /// The number of entries after the append.
    Length(u64),
    /// The same with the entries that were appended, which are short. Behind the length stand the epoch, the length
    /// of each entry and a line feed, and then the entries as they are stored.
    Entries { epoch: Epoch, length: u64, entries: Vec<StoredEntry> },
}

impl Message {
    /// Returns `None` if the message is another one.
    fn read(message: &[u8]) -> Option<Self> {
        let end = message.iter().position(|byte| *byte == b'\n').unwrap_or(message.len());
        let (numbers, stored) = message.split_at(end);
        let mut numbers = std::str::from_utf8(numbers).ok()?.split(' ').map(str::parse);
        let length = numbers.next()?.ok()?;
        let Some(stored) = stored.get(1..) else {
            return numbers.next().is_none().then_some(Message::Length(length));
        };
        let epoch = Epoch(numbers.next()?.ok()?);
        let mut stored = Bytes::copy_from_slice(stored);
        let mut entries = Vec::new();
        for len in numbers {
            let len = usize::try_from(len.ok()?).ok().filter(|len| *len <= stored.len())?;
            entries.push(entry_of(stored.split_to(len))?);
        }
        let is_whole = stored.is_empty() && entries.len() as u64 <= length;
        is_whole.then_some(Message::Entries { epoch, length, entries })
    }
}

/// Returns the entry that is stored as these bytes, or `None` if it cannot be read.
fn entry_of(mut stored: Bytes) -> Option<StoredEntry> {
    let kind = match stored.first()? {
        b'0' => EntryKind::Frame,
        b'1' => EntryKind::Note,
        b'2' => EntryKind::Control,
        _ => return None,
    };
    Some(StoredEntry { kind, bytes: stored.split_off(1) })
}

/// Returns what the message of an append has between the length of the log and these entries, as they are stored.
/// Returns an empty text if there are too many bytes for a message.
pub(crate) fn entries_in_hint(epoch: Epoch, entries: &[Vec<u8>]) -> String {
    let mut numbers = format!(" {}", epoch.0);
    for entry in entries {
        let _ = write!(numbers, " {}", entry.len());
    }
    numbers.push('\n');
    let bytes = numbers.len() + entries.iter().map(Vec::len).sum::<usize>();
    if bytes <= MAX_HINT_BYTES { numbers } else { String::new() }
}

/// The maximum number of bytes of entries in a message. Each server that reads the log receives them.
const MAX_HINT_BYTES: usize = 4 << 10;

/// How many bytes are kept of a log. A reader that is further behind reads the log.
const MAX_NEWEST_BYTES: usize = 2 * MAX_HINT_BYTES;
