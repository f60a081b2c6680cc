//! [`Tails`]: the newest entries of the logs whose runs turns of this server write, and the text that follows them.
//! Readers of this server get them without the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::{Buf, Bytes};
use tokio::sync::Notify;

use super::log::entry::Entry;
use crate::store::{Epoch, LogKey};

/// The tails of a server. All clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tails(Arc<Mutex<HashMap<LogKey, Weak<Tail>>>>);

/// The newest entries of one log, which the store has, and text that it does not have yet. Its turn adds them.
#[derive(Debug)]
pub(super) struct Tail {
    entries: Mutex<TailEntries>,
    changed: Notify,
    /// The turn has to append the text at once.
    hurry: Notify,
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
    /// The frames that follow. The store does not have them yet.
    ahead: Bytes,
    /// Nothing more is ahead of the store: another turn is about to end the run.
    is_hurried: bool,
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
        let tail = Arc::new(Tail { entries, changed: Notify::new(), hurry: Notify::new() });
        let mut tails = self.lock();
        // A turn may learn late that it holds a run, after another one has ended it and has begun the next one.
        let is_newer = |other: Arc<Tail>| {
            let other = other.lock();
            other.epoch == epoch && other.first > position
        };
        if !tails.get(key).and_then(Weak::upgrade).is_some_and(is_newer) {
            tails.insert(key.clone(), Arc::downgrade(&tail));
        }
        drop(tails);
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
        TailEntries {
            epoch,
            first,
            end: first,
            bytes: 0,
            appends: VecDeque::new(),
            ahead: Bytes::new(),
            is_hurried: false,
            is_closed: false,
        }
    }
}

impl TailWriter {
    /// Adds the entries of an append, which begin at this position.
    pub(super) fn push(&self, epoch: Epoch, first: u64, appended: Arc<[Entry]>) {
        let mut tail = self.tail.lock();
        if tail.epoch != epoch || tail.end != first {
            // Entries between are only in the store.
            let is_hurried = tail.is_hurried;
            *tail = TailEntries { is_hurried, ..TailEntries::new(epoch, first) };
        }
        for entry in appended.iter().filter(|entry| entry.other().is_none()) {
            // The frames of a run are appended in their order.
            let stored = entry.stored_len().min(tail.ahead.len());
            tail.ahead.advance(stored);
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

    /// Sets the frames that the store will have from this position on. They begin with those of before that it does not
    /// have yet.
    pub(super) fn set_ahead(&self, epoch: Epoch, position: u64, frames: Bytes) {
        let mut tail = self.tail.lock();
        if tail.epoch == epoch && tail.end == position && !tail.is_hurried {
            tail.ahead = frames;
            drop(tail);
            self.tail.changed.notify_waiters();
        }
    }

    /// Waits until the turn has to append the text at once.
    pub(super) fn hurried(&self) -> impl Future<Output = ()> + Send + use<> {
        let tail = Arc::clone(&self.tail);
        async move { tail.hurry.notified().await }
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
        let mut tail = self.tail.lock();
        tail.is_closed = true;
        // The store may never get it.
        tail.ahead = Bytes::new();
        drop(tail);
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

    /// Returns the frames that the store will have from this position on.
    pub(super) fn ahead(&self, epoch: Epoch, position: u64) -> Bytes {
        let tail = self.lock();
        let is_next = tail.epoch == epoch && tail.end == position;
        if is_next { tail.ahead.clone() } else { Bytes::new() }
    }

    /// Has the turn append its text, and waits until the store has all that was ahead of it. From now on, nothing is.
    pub(super) async fn flush(&self) {
        self.lock().is_hurried = true;
        self.hurry.notify_one();
        self.wait_while(|tail| !tail.ahead.is_empty()).await;
    }

    /// Whether the tail holds the entry at this position, or gets it next.
    pub(super) fn reaches(&self, epoch: Epoch, position: u64) -> bool {
        let tail = self.lock();
        tail.epoch == epoch && tail.end >= position && !tail.is_closed
    }

    /// Waits while the next entry that is added is the one at this position, and no more than so many bytes are ahead of
    /// the store.
    pub(super) async fn changed(&self, epoch: Epoch, position: u64, known: usize) {
        let is_same = |tail: &TailEntries| {
            tail.epoch == epoch && tail.end == position && tail.ahead.len() <= known
        };
        self.wait_while(|tail| is_same(tail) && !tail.is_closed).await;
    }

    async fn wait_while(&self, is_so: impl Fn(&TailEntries) -> bool) {
        let mut changed = std::pin::pin!(self.changed.notified());
        loop {
            changed.as_mut().enable();
            if !is_so(&self.lock()) {
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
    use crate::log::entry::OtherEntry;
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
        tail.changed(EPOCH, 0, 0).await;
        let (other, waiting) = (Arc::clone(&tail), async |tail: Arc<Tail>, position| {
            tail.changed(EPOCH, position, 0).await;
        });
        tokio::join!(waiting(other, 1), async { writer.push(EPOCH, 1, frames(1, 10)) });
        let other = Arc::clone(&tail);
        tokio::join!(waiting(other, 2), async { writer.set_ahead(EPOCH, 2, Bytes::from("a")) });
        tokio::join!(tail.changed(EPOCH, 2, 1), async { drop(writer) });
    }

    #[tokio::test(start_paused = true)]
    async fn text_is_ahead_of_the_store_until_its_entry_is_added_and_no_longer_than_its_turn() {
        let tails = Tails::default();
        let writer = tails.begin(&key(), EPOCH, 3);
        let tail = tails.of(&key()).unwrap();
        let entry = |text: &'static str| [Entry::Frame(Bytes::from(text))].into();
        writer.set_ahead(EPOCH, 2, Bytes::from("old"));
        assert_eq!(tail.ahead(EPOCH, 3), "");
        writer.set_ahead(EPOCH, 3, Bytes::from("one "));
        writer.set_ahead(EPOCH, 3, Bytes::from("one two "));
        // Another turn appends a result, and then the first text is stored.
        writer.push(EPOCH, 3, [OtherEntry::Step.into()].into());
        assert_eq!((tail.ahead(EPOCH, 4), tail.ahead(EPOCH, 3)), ("one two ".into(), "".into()));
        writer.push(EPOCH, 4, entry("one "));
        assert_eq!(tail.ahead(EPOCH, 5), "two ");
        // Another turn is about to end the run: no more text is ahead, and the rest is waited for.
        let flushed = async {
            tail.flush().await;
            assert_eq!(tail.ahead(EPOCH, 6), "");
        };
        let stored = async {
            writer.hurried().await;
            writer.set_ahead(EPOCH, 5, Bytes::from("two three "));
            assert_eq!(tail.ahead(EPOCH, 5), "two ");
            writer.push(EPOCH, 5, entry("two three "));
        };
        tokio::join!(flushed, stored);
        let writer = tails.begin(&key(), EPOCH, 7);
        let tail = tails.of(&key()).unwrap();
        writer.set_ahead(EPOCH, 7, Bytes::from("four"));
        drop(writer);
        assert_eq!(tail.ahead(EPOCH, 7), "");
    }
}
