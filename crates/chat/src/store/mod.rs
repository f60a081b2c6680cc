//! [`LogStore`]: the storage of conversations, a log for each of them.
//!
//! A server without a stored history has to take the messages of earlier turns from the client, and
//! the client can forge them.

mod append_log;
mod clock;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod cursor;
mod error;
mod log_head;
mod log_store;
pub mod rows;

pub use self::append_log::{
    AppendLog, AppendResult, Expected, ListedChat, LiveRunChange, Undelivered, UserLimits,
};
pub use self::cursor::{ChatCursor, ChatCursorError};
pub use self::error::ChatStoreError;
pub use self::log_head::{EntryKind, Epoch, LogHead, LogKey, StoredEntry};
pub use self::log_store::{
    ChatPage, ChatSummary, KEPT_AFTER_END, KEPT_AFTER_LOSS, KEPT_UNDELIVERED, LeftToServer,
    ListChats, LoadLog, LoadedLog, LogPage, LogStore, MAX_ENDED_BYTES, MAX_SWEPT, PutSnapshot,
    ReadLogEntries, ReadMessages, Snapshot, Unchanged,
};
pub use self::rows::memory::InMemoryLogStore;

pub(crate) use self::clock::system_time;
