//! [`ChatStore`]: where conversations are kept.
//!
//! Without the server's own history every word of an earlier turn is the client's word.

mod memory;

use std::error::Error as StdError;
use std::fmt;

pub use futures_core::future::BoxFuture;

pub use self::memory::MemoryChats;

use crate::history::Chat;
use crate::id::ChatId;

/// Keeps conversations, each under the customer it belongs to and its id.
///
/// # What a store promises
/// [`save`](Self::save) is one atomic step, and what it answered, it keeps.
pub trait ChatStore: Send + Sync + fmt::Debug + 'static {
    /// Reads a conversation.
    fn load<'a>(
        &'a self,
        tenant: Option<&'a str>,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<KeptChat>, ChatStoreError>>;

    /// Keeps a conversation in the place of the one with this revision, or if there is none, as a
    /// new one. `false` if there is another.
    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>>;
}

/// A conversation as it is kept.
#[derive(Debug, Clone)]
pub struct KeptChat {
    /// The conversation.
    pub chat: Chat,
    /// Changes each time that it is saved, and does not come back: not even where a conversation was
    /// forgotten and another one was begun under its id.
    pub revision: u64,
}

/// A store that does not answer, or not in time.
#[derive(Debug)]
pub struct ChatStoreError(Box<dyn StdError + Send + Sync>);

impl ChatStoreError {
    /// Why, in whatever words the store has.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        ChatStoreError(source.into())
    }
}

impl fmt::Display for ChatStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store of chats did not answer")
    }
}

impl StdError for ChatStoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
