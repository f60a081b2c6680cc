//! [`ChatStore`]: the storage of conversations. [`RunStore`]: the storage of the logs of their runs.
//!
//! A server without a stored history has to take the messages of earlier turns from the client, and
//! the client can forge them.

pub mod chat_conformance;
mod chat_page;
mod chat_store;
pub(crate) mod conformance_case;
mod error;
mod memory;
mod memory_runs;
mod run_cache;
pub mod run_conformance;
mod run_store;
mod save_chat;

pub use self::chat_page::{ChatCursor, ChatCursorError, ChatPage, ChatSummary, ListChats};
pub use self::chat_store::ChatStore;
pub use self::error::ChatStoreError;
pub use self::memory::InMemoryChatStore;
pub use self::memory_runs::InMemoryRunStore;
pub(crate) use self::run_cache::RunCache;
pub use self::run_store::{RunStore, RunStoreError};
pub use self::save_chat::{ReloadedChat, SaveChat, SaveResult, VersionedChat};
