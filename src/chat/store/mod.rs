//! [`LogStore`]: the storage of conversations, a log for each of them.
//!
//! A server without a stored history has to take the messages of earlier turns from the client, and
//! the client can forge them.

pub mod conformance;
mod cursor;
mod deliveries;
mod error;
mod log_store;
mod memory;

pub use self::cursor::{ChatCursor, ChatCursorError};
pub use self::error::ChatStoreError;
pub use self::log_store::{
    AppendLog, AppendResult, ChatPage, ChatSummary, EntryKind, Epoch, Expected, KEPT_AFTER_END,
    KEPT_AFTER_LOSS, ListChats, ListedChat, LiveRunChange, LoadLog, LoadedLog, LogHead, LogKey,
    LogPage, LogStore, LostRuns, MAX_ENDED_BYTES, MAX_LOST_RUNS, PutSnapshot, ReadLogEntries,
    ReadMessages, Snapshot, StoredEntry, Unchanged, Undelivered, UserLimits,
};
pub use self::memory::InMemoryLogStore;
