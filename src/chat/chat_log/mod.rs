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

#[cfg(all(test, feature = "approvals"))]
mod decide;
#[cfg(all(test, feature = "approvals"))]
mod entry;
#[cfg(feature = "approvals")]
mod memory;
#[cfg(all(test, feature = "approvals"))]
mod simulator;
#[cfg(all(test, feature = "approvals"))]
mod state;
#[cfg(feature = "approvals")]
mod store;
#[cfg(all(test, feature = "approvals"))]
#[expect(dead_code, reason = "only the simulator uses it yet")]
mod turn;
#[cfg(all(test, feature = "approvals"))]
mod writer;

#[cfg(feature = "approvals")]
pub use self::memory::InMemoryLogStore;
#[cfg(feature = "approvals")]
pub use self::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, KEPT_AFTER_END, ListLogs, ListedChat,
    LiveRunChange, LoadLog, LoadedLog, LogHead, LogKey, LogList, LogPage, LogStore, LogSummary,
    PutSnapshot, ReadLogEntries, ReadMessages, Snapshot, StoredEntry, Unchanged, UserLimits,
};
