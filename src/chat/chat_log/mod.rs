//! The log of a chat: one append-only list of entries, of which the state of the chat is the fold.
//!
//! ```text
//! request ──▶ decide(state, goal) ──▶ append, if nothing has changed since ──▶ readers
//!                 ▲                        │ conflict
//!                 └──── load the tail ◀────┘
//! ```
//!
//! The chapter "One log for each chat" of `DESIGN.md` gives the rules. Nothing but tests uses this module
//! yet: it replaces the record of a chat and the logs of its runs.

pub mod conformance;
mod decide;
mod driver;
mod effects;
mod entry;
mod memory;
mod queue;
mod reader;
mod run_frames;
mod server;
#[cfg(test)]
mod simulator;
mod state;
mod store;
mod turn;
mod turn_io;
mod writer;

use std::sync::{Arc, Mutex, PoisonError};

use super::store::ChatStore;

pub(super) use self::driver::LogServer;

pub use self::memory::InMemoryLogStore;
pub use self::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, KEPT_AFTER_END, ListLogs, ListedChat,
    LiveRunChange, LoadLog, LoadedLog, LogHead, LogKey, LogList, LogPage, LogStore, LogSummary,
    PutSnapshot, ReadLogEntries, ReadMessages, Snapshot, StoredEntry, Unchanged, UserLimits,
};

/// Returns a store in memory if the tests of a chat server are to try it: with `CHAT_LOG=1`.
pub(super) fn tried_store() -> Option<Arc<dyn LogStore>> {
    let is_tried = std::env::var_os("CHAT_LOG").is_some();
    is_tried.then(|| Arc::new(InMemoryLogStore::new()) as Arc<dyn LogStore>)
}

/// Returns the store in memory that stands for this one.
pub(super) fn tried_store_of(store: &Arc<dyn ChatStore>) -> Option<Arc<dyn LogStore>> {
    // The keys keep the stores, so that no other one gets the address.
    type Tried = Vec<(Arc<dyn ChatStore>, Arc<dyn LogStore>)>;
    static TRIED: Mutex<Tried> = Mutex::new(Vec::new());
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, logs)) = tried.iter().find(|(other, _)| Arc::ptr_eq(other, store)) {
        return Some(Arc::clone(logs));
    }
    let logs: Arc<dyn LogStore> = Arc::new(InMemoryLogStore::new());
    tried.push((Arc::clone(store), Arc::clone(&logs)));
    Some(logs)
}
