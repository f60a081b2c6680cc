//! [`Folds`]: the newest states of conversations that this server has read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::log::decision::View;
use super::store::LogKey;

/// The states of a server, within a number and a number of bytes. All clones share them.
///
/// Who finds the state of a conversation reads only the entries after it, and shares its messages. Entries never change, so a state is never wrong: the store refuses to continue it if the log has another epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct Folds(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    views: HashMap<LogKey, KeptView>,
    bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct KeptView {
    view: View,
    bytes: usize,
    last_use: u64,
}

impl Folds {
    /// Returns the state of a conversation.
    pub(super) fn of(&self, key: &LogKey) -> Option<View> {
        let mut kept = self.lock();
        kept.uses += 1;
        let uses = kept.uses;
        let found = kept.views.get_mut(key)?;
        found.last_use = uses;
        Some(found.view.clone())
    }

    /// Keeps this state of a conversation, or removes it.
    pub(super) fn set(&self, key: &LogKey, view: Option<View>) {
        let view = view.map(|view| (view.bytes(), view));
        let mut kept = self.lock();
        kept.remove(key);
        let Some((bytes, view)) = view else { return };
        if bytes > MAX_BYTES {
            return;
        }
        kept.uses += 1;
        kept.bytes += bytes;
        let last_use = kept.uses;
        kept.views.insert(key.clone(), KeptView { view, bytes, last_use });
        while kept.bytes > MAX_BYTES || kept.views.len() > MAX_VIEWS {
            let oldest = kept.views.iter().min_by_key(|(_, view)| view.last_use);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { return };
            kept.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn remove(&mut self, key: &LogKey) {
        if let Some(removed) = self.views.remove(key) {
            self.bytes -= removed.bytes;
        }
    }
}

const MAX_VIEWS: usize = 64;

const MAX_BYTES: usize = 16 << 20;
