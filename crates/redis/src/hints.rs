//! [`Hints`]: wakes the readers of logs that have changed, and has the newest entries that came with hints.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use ui_message_stream_chat::store::{EntryKind, Epoch, StoredEntry};

/// The logs that readers of this process wait for, by the names of their channels.
///
/// An append of this process wakes the readers at once. The [follower](crate::follow) receives the
/// appends of other processes.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<Logs>);

#[derive(Debug, Default)]
struct Logs {
    by_channel: HashMap<String, Hint>,
    /// Whether the follower has a connection.
    is_connected: bool,
}

#[derive(Debug)]
struct Hint {
    /// The number of entries that is known. A reader knows what it has read, so this is a lower bound.
    known: u64,
    /// Whether no reader waited at the last look.
    is_idle: bool,
    /// The newest entries that have come with hints.
    newest: Newest,
    /// Wakes readers. The value is not used.
    changed: watch::Sender<()>,
}

/// A reader that waits for a log.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) changed: watch::Receiver<()>,
    /// Whether the channel of the log has to be subscribed.
    pub(crate) is_first: bool,
    /// Whether the follower has a connection. Without one, only the changes of this process wake
    /// the reader.
    pub(crate) is_connected: bool,
}

impl Hints {
    /// Begins to wait until a log has more than `after` entries, or may be another one. Returns `None` if it
    /// is known to have more already.
    pub(crate) fn wait(&self, channel: &str, after: u64) -> Option<Waiting> {
        let mut logs = self.lock();
        let is_connected = logs.is_connected;
        let is_first = !logs.by_channel.contains_key(channel);
        let hint = logs.by_channel.entry(channel.to_owned()).or_insert_with(|| Hint {
            known: after,
            is_idle: false,
            newest: Newest::default(),
            changed: watch::Sender::new(()),
        });
        if hint.known > after {
            return None;
        }
        hint.is_idle = false;
        Some(Waiting { changed: hint.changed.subscribe(), is_first, is_connected })
    }

    /// Forgets what is known of a log, and wakes its readers.
    pub(crate) fn forget(&self, channel: &str) {
        if let Some(hint) = self.lock().by_channel.get_mut(channel) {
            hint.forget();
        }
    }

    /// Returns the number of entries that a log is known to have.
    pub(crate) fn known(&self, channel: &str) -> u64 {
        self.lock().by_channel.get(channel).map_or(0, |hint| hint.known)
    }

    /// Notes that a log has so many entries, and wakes its readers if this is new.
    pub(crate) fn add(&self, channel: &str, length: u64) {
        if let Some(hint) = self.lock().by_channel.get_mut(channel) {
            hint.add(length);
        }
    }

    /// Receives a message of this channel, and wakes the readers of the log.
    pub(crate) fn receive(&self, channel: &str, message: &[u8]) {
        let mut logs = self.lock();
        let Some(hint) = logs.by_channel.get_mut(channel) else { return };
        match Message::read(message) {
            Some(Message::Entries { epoch, length, entries }) => {
                hint.newest.push(epoch, length - entries.len() as u64, entries);
                hint.add(length);
            }
            Some(Message::Length(length)) => {
                // If Redis has lost entries, there may be others at their positions now.
                hint.newest = Newest::default();
                hint.add(length);
            }
            // A log was created or deleted: what was known is of another one.
            None => hint.forget(),
        }
    }

    /// Returns the entries of the log with this epoch that have come with hints, from this position on.
    pub(crate) fn entries(&self, channel: &str, epoch: Epoch, position: u64) -> Vec<StoredEntry> {
        let logs = self.lock();
        let newest = logs.by_channel.get(channel).map(|hint| &hint.newest);
        newest.map_or_else(Vec::new, |newest| newest.from(epoch, position))
    }

    /// Wakes the readers of these logs: from now on each change wakes them.
    pub(crate) fn subscribed(&self, channels: &[String]) {
        let logs = self.lock();
        for hint in channels.iter().filter_map(|channel| logs.by_channel.get(channel)) {
            hint.changed.send_replace(());
        }
    }

    /// Sets whether the follower has a connection. If it has lost it, forgets what is known and
    /// wakes all readers, so that they look for themselves: a Redis that restarts may lose entries.
    pub(crate) fn set_connected(&self, is_connected: bool) {
        self.lock().is_connected = is_connected;
        if !is_connected {
            self.forget_all();
        }
    }

    /// Forgets what is known of all logs, and wakes all readers.
    pub(crate) fn forget_all(&self) {
        self.lock().by_channel.values_mut().for_each(Hint::forget);
    }

    /// Returns the channels of all logs.
    pub(crate) fn channels(&self) -> Vec<String> {
        self.lock().by_channel.keys().cloned().collect()
    }

    /// Forgets the logs for which no reader has waited since the last call, and returns their
    /// channels. A reader that reads between two waits loses nothing.
    pub(crate) fn forget_idle(&self) -> Vec<String> {
        let mut forgotten = Vec::new();
        self.lock().by_channel.retain(|channel, hint| {
            let was_idle = hint.is_idle;
            hint.is_idle = hint.changed.receiver_count() == 0;
            let is_kept = !(was_idle && hint.is_idle);
            if !is_kept {
                forgotten.push(channel.clone());
            }
            is_kept
        });
        forgotten
    }

    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hint {
    fn add(&mut self, length: u64) {
        if self.known < length {
            self.known = length;
            self.changed.send_replace(());
        }
    }

    fn forget(&mut self) {
        self.known = 0;
        self.newest = Newest::default();
        self.changed.send_replace(());
    }
}

/// The newest entries of a log that have come with hints, without a gap.
#[derive(Debug, Default)]
struct Newest {
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
