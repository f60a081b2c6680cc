//! [`Tails`]: the newest entries of the logs whose runs turns of this server write. Readers of this server get
//! them without the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::log::entry::Entry;
use crate::store::{Epoch, LogKey};

/// The tails of a server. All clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tails(Arc<Mutex<HashMap<LogKey, Weak<Tail>>>>);

/// The newest entries of one log, which the store has. Its turn adds them.
#[derive(Debug)]
pub(super) struct Tail {
    entries: Mutex<TailEntries>,
    changed: Notify,
}

/// The entries are those of whole appends, without a gap.
#[derive(Debug)]
struct TailEntries {
    epoch: Epoch,
    /// The position of the first entry.
    first: u64,
    /// The position after the last one.
    end: u64,
    bytes: usize,
    appends: VecDeque<Arc<[Entry]>>,
    /// Its turn adds no more entries.
    is_closed: bool,
}

/// The tail of the log whose run a turn writes. Nothing is added after this value is dropped.
#[derive(Debug)]
pub(super) struct TailWriter {
    tails: Tails,
    key: LogKey,
    tail: Arc<Tail>,
}

/// What a reader finds in a tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The reader has read some entries, perhaps not all of them.
    Entries,
    /// There are no entries yet after those that the reader has.
    Nothing,
    /// The tail does not hold what follows, or gets no more entries.
    Elsewhere,
}

impl Tails {
    /// Creates the tail of a log from this position on, in place of an older one.
    pub(super) fn begin(&self, key: &LogKey, epoch: Epoch, position: u64) -> TailWriter {
        let entries = Mutex::new(TailEntries::new(epoch, position));
        let tail = Arc::new(Tail { entries, changed: Notify::new() });
        self.lock().insert(key.clone(), Arc::downgrade(&tail));
        TailWriter { tails: self.clone(), key: key.clone(), tail }
    }

    pub(super) fn of(&self, key: &LogKey) -> Option<Arc<Tail>> {
        self.lock().get(key)?.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LogKey, Weak<Tail>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TailEntries {
    fn new(epoch: Epoch, first: u64) -> Self {
        let appends = VecDeque::new();
        TailEntries { epoch, first, end: first, bytes: 0, appends, is_closed: false }
    }
}

impl TailWriter {
    /// Adds the entries of an append, which begin at this position.
    pub(super) fn push(&self, epoch: Epoch, first: u64, appended: Arc<[Entry]>) {
        let mut tail = self.tail.lock();
        if tail.epoch != epoch || tail.end != first {
            // Entries between are only in the store.
            *tail = TailEntries::new(epoch, first);
        }
        tail.end += appended.len() as u64;
        tail.bytes += bytes_of(&appended);
        tail.appends.push_back(appended);
        while tail.bytes > MAX_BYTES
            && tail.appends.len() > 1
            && let Some(oldest) = tail.appends.pop_front()
        {
            tail.bytes -= bytes_of(&oldest);
            tail.first += oldest.len() as u64;
        }
        drop(tail);
        self.tail.changed.notify_waiters();
    }
}

impl Drop for TailWriter {
    fn drop(&mut self) {
        let mut tails = self.tails.lock();
        // The run of another turn may have begun.
        if tails.get(&self.key).is_some_and(|tail| Weak::ptr_eq(tail, &Arc::downgrade(&self.tail)))
        {
            tails.remove(&self.key);
        }
        drop(tails);
        self.tail.lock().is_closed = true;
        self.tail.changed.notify_waiters();
    }
}

impl Tail {
    /// Passes the entries from this position on to `read`, with their positions, until it returns `false`.
    pub(super) fn read(
        &self,
        epoch: Epoch,
        position: u64,
        mut read: impl FnMut(u64, &Entry) -> bool,
    ) -> Found {
        let tail = self.lock();
        if tail.epoch != epoch || position < tail.first || position > tail.end {
            return Found::Elsewhere;
        }
        if position == tail.end {
            return if tail.is_closed { Found::Elsewhere } else { Found::Nothing };
        }
        let mut next = tail.end;
        // A reader has read most of them.
        let unread = tail.appends.iter().rposition(|append| {
            next -= append.len() as u64;
            next <= position
        });
        for append in tail.appends.iter().skip(unread.unwrap_or(0)) {
            for entry in &**append {
                if next >= position && !read(next, entry) {
                    return Found::Entries;
                }
                next += 1;
            }
        }
        Found::Entries
    }

    /// Whether the tail holds the entry at this position, or gets it next.
    pub(super) fn reaches(&self, epoch: Epoch, position: u64) -> bool {
        let tail = self.lock();
        tail.epoch == epoch && tail.end >= position && !tail.is_closed
    }

    /// Whether the next entry that is added is the one at this position.
    fn ends_at(&self, epoch: Epoch, position: u64) -> bool {
        let tail = self.lock();
        tail.epoch == epoch && tail.end == position && !tail.is_closed
    }

    /// Waits while the next entry that is added is the one at this position.
    pub(super) async fn changed(&self, epoch: Epoch, position: u64) {
        let mut changed = std::pin::pin!(self.changed.notified());
        loop {
            changed.as_mut().enable();
            if !self.ends_at(epoch, position) {
                return;
            }
            changed.as_mut().await;
            changed.set(self.changed.notified());
        }
    }

    fn lock(&self) -> MutexGuard<'_, TailEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(append: &[Entry]) -> usize {
    append.iter().map(|entry| entry.stored_len() + ENTRY_BYTES).sum()
}

/// How much a tail holds. A reader that is further behind reads the store.
const MAX_BYTES: usize = 64 << 10;

/// What an entry counts beside its bytes.
const ENTRY_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use ui_message_stream::approval::Principal;

    const EPOCH: Epoch = Epoch(1);

    fn key() -> LogKey {
        LogKey { owner: Principal::new("ada"), chat: "chat".into() }
    }

    fn frames(count: usize, bytes: usize) -> Arc<[Entry]> {
        vec![Entry::Frame(Bytes::from(vec![b'x'; bytes])); count].into()
    }

    fn read(tail: &Tail, from: u64) -> (Found, Vec<u64>) {
        let mut read = Vec::new();
        let found = tail.read(EPOCH, from, |position, _| {
            read.push(position);
            read.len() < 3
        });
        (found, read)
    }

    #[test]
    fn a_reader_gets_the_entries_from_its_position_on() {
        let tails = Tails::default();
        let writer = tails.begin(&key(), EPOCH, 7);
        let tail = tails.of(&key()).unwrap();
        assert_eq!(read(&tail, 7).0, Found::Nothing);
        writer.push(EPOCH, 7, frames(2, 10));
        writer.push(EPOCH, 9, frames(1, 10));
        assert_eq!(read(&tail, 7), (Found::Entries, vec![7, 8, 9]));
        assert_eq!(read(&tail, 8), (Found::Entries, vec![8, 9]));
        assert_eq!(read(&tail, 9), (Found::Entries, vec![9]));
        assert_eq!(read(&tail, 10), (Found::Nothing, vec![]));
        assert_eq!(read(&tail, 6).0, Found::Elsewhere);
        assert_eq!(read(&tail, 11).0, Found::Elsewhere);
        assert_eq!(tail.read(Epoch(2), 8, |_, _| true), Found::Elsewhere);
        drop(writer);
        assert_eq!(read(&tail, 10).0, Found::Elsewhere);
        assert!(tails.of(&key()).is_none() && tails.lock().is_empty());
    }

    #[test]
    fn a_tail_holds_no_entries_before_a_gap_and_only_the_newest_bytes() {
        let tails = Tails::default();
        let writer = tails.begin(&key(), EPOCH, 0);
        let tail = tails.of(&key()).unwrap();
        writer.push(EPOCH, 0, frames(2, 10));
        writer.push(EPOCH, 5, frames(1, 10));
        assert_eq!(read(&tail, 1).0, Found::Elsewhere);
        assert_eq!(read(&tail, 5), (Found::Entries, vec![5]));
        for position in 6..20 {
            writer.push(EPOCH, position, frames(1, 8 << 10));
        }
        assert_eq!(read(&tail, 12).0, Found::Elsewhere);
        assert_eq!(read(&tail, 13), (Found::Entries, vec![13, 14, 15]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_is_woken_by_an_append_and_by_the_end_of_the_turn() {
        let tails = Tails::default();
        let writer = tails.begin(&key(), EPOCH, 0);
        let tail = tails.of(&key()).unwrap();
        writer.push(EPOCH, 0, frames(1, 10));
        tail.changed(EPOCH, 0).await;
        let (other, waiting) = (Arc::clone(&tail), async |tail: Arc<Tail>, position| {
            tail.changed(EPOCH, position).await;
        });
        tokio::join!(waiting(other, 1), async { writer.push(EPOCH, 1, frames(1, 10)) });
        tokio::join!(waiting(tail, 2), async { drop(writer) });
    }
}
