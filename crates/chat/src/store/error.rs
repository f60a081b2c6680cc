//! [`ChatStoreError`]: a failure of a store of conversations.

use std::error::Error as StdError;
use std::fmt;

use ui_message_stream::BoxError;

/// A failure of the store: it is unreachable, too slow, or returns what this version cannot read.
#[derive(Debug)]
pub struct ChatStoreError(BoxError);

impl ChatStoreError {
    /// Wraps the error of the store, which becomes the [source](StdError::source).
    pub fn new(source: impl Into<BoxError>) -> Self {
        ChatStoreError(source.into())
    }
}

impl fmt::Display for ChatStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the chat store failed")
    }
}

impl StdError for ChatStoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
