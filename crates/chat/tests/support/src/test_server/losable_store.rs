//! A store of chats that can lose them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{AppendLog, AppendResult, InMemoryLogStore, LogStore};

use crate::log_double::{Answer, Intercepts};

/// A store in memory that can lose all its chats.
#[derive(Debug, Default)]
pub(super) struct LosableStore {
    store: InMemoryLogStore,
    owners: Mutex<BTreeSet<Principal>>,
}

impl LosableStore {
    /// Loses all chats.
    pub(super) fn lose_chats(&self) {
        for owner in &*self.owners.lock().unwrap_or_else(PoisonError::into_inner) {
            let deleted = self.store.delete_user(owner).now_or_never();
            assert!(matches!(deleted, Some(Ok(_))), "a store in memory answers at once");
        }
    }
}

impl Intercepts for LosableStore {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        let owner = append.key.owner.clone();
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).insert(owner);
        self.store.append(append)
    }
}
