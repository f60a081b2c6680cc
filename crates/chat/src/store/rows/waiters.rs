//! [`Waiters`]: the waits of a process for changes.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use tokio::sync::watch;

use super::known_logs::lock;

/// The logs and lists for whose changes tasks of this process wait, by keys of the database's own.
///
/// The process that runs a step adds what the step has changed, and what receives the changes of other processes adds
/// those. `V` is what the database keeps of each log.
#[derive(Debug)]
pub struct Waiters<K, V = ()>(Mutex<HashMap<K, Known<V>>>);

/// What is known of a log or a list for which a task waits.
#[derive(Debug)]
pub struct Known<V> {
    /// A lower bound of the number of entries. `None` if there is no such log.
    length: Option<u64>,
    /// Whether no task waited at the last look.
    is_idle: bool,
    changed: watch::Sender<()>,
    /// What the database keeps of it.
    pub value: V,
}

/// A wait that has begun. No change is missed from here on.
#[derive(Debug)]
#[must_use]
pub struct Wait {
    changed: watch::Receiver<()>,
    /// Whether the log or the list was not known. Then changes since the last read of the caller are not known, either:
    /// it has to read again.
    pub is_first: bool,
}

impl<K: Eq + Hash, V: Default> Waiters<K, V> {
    /// Begins to wait until a log has more than `length` entries, or until a list changes (with the length zero). Returns
    /// `None` if the log is known to have more, or to be deleted: the caller has to read it.
    pub fn wait(&self, key: K, length: u64) -> Option<Wait> {
        let mut is_first = false;
        let mut waiters = lock(&self.0);
        let known = waiters.entry(key).or_insert_with(|| {
            is_first = true;
            Known::new(length)
        });
        if known.length.is_none_or(|known| known > length) {
            return None;
        }
        known.is_idle = false;
        Some(Wait { changed: known.changed.subscribe(), is_first })
    }

    /// Reads or changes what is known of a log or a list, if a task waits for it. `act` must not use these waiters: they
    /// are locked.
    pub fn with<Q>(&self, key: &Q, act: impl FnOnce(&mut Known<V>))
    where
        K: Borrow<Q>,
        Q: ?Sized + Eq + Hash,
    {
        if let Some(known) = lock(&self.0).get_mut(key) {
            act(known);
        }
    }

    /// Reads or changes what is known of each log and list. `act` must not use these waiters: they are locked.
    pub fn for_each(&self, mut act: impl FnMut(&K, &mut Known<V>)) {
        lock(&self.0).iter_mut().for_each(|(key, known)| act(key, known));
    }

    /// Whether nothing is known of any log or list. What is known stays until [`forget_idle`](Self::forget_idle) was
    /// called twice after the last wait.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Forgets all, and wakes all tasks. Each next wait is a first one.
    pub fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Forgets the logs and lists for which no task has waited since the last call, and returns their keys. A task that
    /// reads between two waits loses nothing.
    pub fn forget_idle(&self) -> Vec<K> {
        let is_idle = |_: &K, known: &mut Known<V>| {
            let was_idle = known.is_idle;
            known.is_idle = known.changed.receiver_count() == 0;
            was_idle && known.is_idle
        };
        lock(&self.0).extract_if(is_idle).map(|(key, _)| key).collect()
    }
}

impl<K, V> Default for Waiters<K, V> {
    fn default() -> Self {
        Waiters(Mutex::default())
    }
}

impl<V: Default> Known<V> {
    fn new(length: u64) -> Self {
        let (changed, value) = (watch::Sender::new(()), V::default());
        Known { length: Some(length), is_idle: false, changed, value }
    }

    /// Returns the number of entries that a log is known to have.
    pub fn length(&self) -> u64 {
        self.length.unwrap_or(0)
    }

    /// The log has so many entries, or more. Wakes the tasks if this is new.
    pub fn appended(&mut self, length: u64) {
        if self.length.is_none_or(|known| known < length) {
            self.length = Some(length);
            self.wake();
        }
    }

    /// There is no such log. Wakes the tasks, and ends each wait at once until the log has entries.
    pub fn deleted(&mut self) {
        if self.length.take().is_some() {
            self.wake();
        }
    }

    /// What was known may be of another log, or a list has changed. Wakes the tasks.
    pub fn reset(&mut self) {
        self.length = Some(0);
        self.wake();
    }

    /// Wakes the tasks.
    pub fn wake(&self) {
        self.changed.send_replace(());
    }
}

impl Wait {
    /// Waits for the change.
    pub async fn changed(mut self) {
        // An error says that all was forgotten.
        let _ = self.changed.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_task_is_woken_by_what_it_has_not_read() {
        let waiters = Waiters::<&str>::default();
        let wait = |length| waiters.wait("log", length);
        let is_woken = |waiting: Wait| waiting.changed().now_or_never().is_some();
        let first = wait(3).unwrap();
        assert!(first.is_first && !wait(3).unwrap().is_first);
        waiters.with("log", |log| log.appended(3));
        assert!(!is_woken(first));
        let second = wait(3).unwrap();
        waiters.with("log", |log| log.appended(4));
        assert!(is_woken(second) && wait(3).is_none());
        let third = wait(4).unwrap();
        waiters.with("log", Known::deleted);
        assert!(is_woken(third) && wait(4).is_none() && wait(9).is_none());
        // Another log has its key.
        waiters.with("log", |log| log.appended(1));
        assert!(wait(0).is_none() && !is_woken(wait(1).unwrap()));
        let fourth = wait(1).unwrap();
        waiters.with("log", Known::reset);
        assert!(is_woken(fourth) && !is_woken(wait(1).unwrap()));
    }

    #[test]
    fn a_log_without_a_wait_is_forgotten_at_the_second_look() {
        let waiters = Waiters::<&str>::default();
        let waiting = waiters.wait("log", 0).unwrap();
        for _ in 0..3 {
            assert!(waiters.forget_idle().is_empty());
        }
        drop(waiting);
        assert!(waiters.forget_idle().is_empty());
        drop(waiters.wait("log", 0));
        assert!(waiters.forget_idle().is_empty());
        assert_eq!(waiters.forget_idle(), ["log"]);
        let waiting = waiters.wait("log", 0).unwrap();
        waiters.clear();
        assert!(waiters.is_empty() && waiting.changed().now_or_never().is_some());
    }
}
