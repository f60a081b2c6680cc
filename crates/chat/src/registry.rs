//! [`Registry`]: values of this process by key, for as long as they are used.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Values by key. All clones share them.
#[derive(Debug)]
pub(super) struct Registry<K: Eq + Hash, V>(Arc<Mutex<Values<K, V>>>);

type Values<K, V> = HashMap<K, Weak<Shared<K, V>>>;

/// The value of a key. It is in its registry until its last [`Arc`] is dropped.
#[derive(Debug)]
pub(super) struct Shared<K: Eq + Hash, V> {
    registry: Registry<K, V>,
    key: K,
    value: V,
}

impl<K: Eq + Hash + Clone, V: Default> Registry<K, V> {
    /// Returns the value of a key: the default if nothing uses one.
    pub(super) fn get(&self, key: &K) -> Arc<Shared<K, V>> {
        let mut values = self.lock();
        if let Some(value) = values.get(key).and_then(Weak::upgrade) {
            return value;
        }
        let (registry, value) = (self.clone(), V::default());
        let value = Arc::new(Shared { registry, key: key.clone(), value });
        values.insert(key.clone(), Arc::downgrade(&value));
        value
    }
}

impl<K: Eq + Hash, V> Registry<K, V> {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Values<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, V> Clone for Registry<K, V> {
    fn clone(&self) -> Self {
        Registry(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash, V> Default for Registry<K, V> {
    fn default() -> Self {
        Registry(Arc::default())
    }
}

impl<K: Eq + Hash, V> Deref for Shared<K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<K: Eq + Hash, V> Drop for Shared<K, V> {
    fn drop(&mut self) {
        let mut values = self.registry.lock();
        // A new value may have taken its place since its last use.
        if values.get(&self.key).is_some_and(|value| value.strong_count() == 0) {
            values.remove(&self.key);
        }
    }
}
