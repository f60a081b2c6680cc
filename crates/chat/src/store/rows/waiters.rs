//! [`Waiters`]: those in this process who wait for changes.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use tokio::sync::watch;

use super::known_logs::lock;

/// The logs and lists that this process waits for, by keys of the database's own.
///
/// What a step has changed is told with [`tell`](Self::tell): by the process that ran it, and by what brings the changes of
/// others. `V` is what the database keeps of each.
#[derive(Debug)]
pub struct Waiters<K, V = ()>(Mutex<HashMap<K, Waited<V>>>);

/// What is known of a log or a list that somebody waits for.
#[derive(Debug)]
pub struct Waited<V> {
    /// A lower bound of the number of entries. `None` if there is no such log.
    length: Option<u64>,
    /// Whether nobody waited at the last look.
    is_idle: bool,
    changed: watch::Sender<()>,
    /// What the database keeps of it.
    pub value: V,
}

/// A wait that has begun. No change is missed from here on.
#[derive(Debug)]
pub struct Waiting {
    changed: watch::Receiver<()>,
    /// Whether nothing was known of it before: what has changed since it was read has to be looked up.
    pub is_first: bool,
}

impl<K: Clone + Eq + Hash, V: Default> Waiters<K, V> {
    /// Begins to wait until a log has more than `length` entries, as its reader has read, or a list changes, with the
    /// length zero. Returns `None` if the log is known to have more, or to be gone.
    pub fn wait(&self, key: K, length: u64) -> Option<Waiting> {
        let mut waited = lock(&self.0);
        let is_first = !waited.contains_key(&key);
        let waited = waited.entry(key).or_insert_with(|| Waited::new(length));
        if waited.length.is_none_or(|known| known > length) {
            return None;
        }
        waited.is_idle = false;
        Some(Waiting { changed: waited.changed.subscribe(), is_first })
    }

    /// Tells what has changed of a log or a list, if somebody waits for it.
    pub fn tell<Q>(&self, key: &Q, change: impl FnOnce(&mut Waited<V>))
    where
        K: Borrow<Q>,
        Q: ?Sized + Eq + Hash,
    {
        if let Some(waited) = lock(&self.0).get_mut(key) {
            change(waited);
        }
    }

    /// Does something with each key that is waited for.
    pub fn for_each(&self, mut act: impl FnMut(&K, &mut Waited<V>)) {
        lock(&self.0).iter_mut().for_each(|(key, waited)| act(key, waited));
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Forgets all, and wakes those who wait. Each next wait is a first one.
    pub fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Forgets those that nobody has waited for since the last call, and returns their keys. A reader that reads between
    /// two waits loses nothing.
    pub fn forget_idle(&self) -> Vec<K> {
        let is_idle = |_: &K, waited: &mut Waited<V>| {
            let was_idle = waited.is_idle;
            waited.is_idle = waited.changed.receiver_count() == 0;
            was_idle && waited.is_idle
        };
        lock(&self.0).extract_if(is_idle).map(|(key, _)| key).collect()
    }
}

impl<K, V> Default for Waiters<K, V> {
    fn default() -> Self {
        Waiters(Mutex::default())
    }
}

impl<V: Default> Waited<V> {
    fn new(length: u64) -> Self {
        let (changed, value) = (watch::Sender::new(()), V::default());
        Waited { length: Some(length), is_idle: false, changed, value }
    }

    /// Returns the number of entries that a log is known to have.
    pub fn length(&self) -> u64 {
        self.length.unwrap_or(0)
    }

    /// The log has so many entries, or more.
    pub fn appended(&mut self, length: u64) {
        if self.length.is_none_or(|known| known < length) {
            self.length = Some(length);
            self.changed.send_replace(());
        }
    }

    /// There is no such log. Who waits for it is woken, also later, until it has entries.
    pub fn deleted(&mut self) {
        if self.length.take().is_some() {
            self.changed.send_replace(());
        }
    }

    /// What was known may be of another log, or a list has changed. Who waits for it looks.
    pub fn forget(&mut self) {
        self.length = Some(0);
        self.changed.send_replace(());
    }
}

impl Waiting {
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
    fn who_waits_is_woken_by_what_it_has_not_read() {
        let waiters = Waiters::<&str>::default();
        let wait = |length| waiters.wait("log", length);
        let is_woken = |waiting: Waiting| waiting.changed().now_or_never().is_some();
        let first = wait(3).unwrap();
        assert!(first.is_first && !wait(3).unwrap().is_first);
        waiters.tell("log", |log| log.appended(3));
        assert!(!is_woken(first));
        let second = wait(3).unwrap();
        waiters.tell("log", |log| log.appended(4));
        assert!(is_woken(second) && wait(3).is_none());
        let third = wait(4).unwrap();
        waiters.tell("log", Waited::deleted);
        assert!(is_woken(third) && wait(4).is_none() && wait(9).is_none());
        // Another log has its key.
        waiters.tell("log", |log| log.appended(1));
        assert!(wait(0).is_none() && !is_woken(wait(1).unwrap()));
        let fourth = wait(1).unwrap();
        waiters.tell("log", Waited::forget);
        assert!(is_woken(fourth) && !is_woken(wait(1).unwrap()));
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten_at_the_second_look() {
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
