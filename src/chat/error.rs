//! [`ChatError`]: the error of an operation on a conversation.

use super::store::ChatStoreError;
use crate::approval::store::LedgerStoreError;
use crate::limits::ChatLimitError;
use crate::request::ParseRequestError;

/// The error of an operation on a conversation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// This principal has no conversation with this id.
    #[error("there is no such chat")]
    NotFound,
    /// The request is invalid for this conversation or for the agent.
    #[error(transparent)]
    Request(#[from] ParseRequestError),
    /// The conversation has reached one of its [limits](crate::limits::ChatLimits).
    #[error(transparent)]
    Limit(#[from] ChatLimitError),
    /// The request was received before, and its response is being written.
    #[error("the response to this message is being written; try again later")]
    ResponsePending,
    /// The request was received before, and there is no response to it: none was stored, or the
    /// message was removed from the conversation, or edited since.
    #[error(
        "this message was received before, and there is no response to it; to get one, regenerate \
         it or send another message"
    )]
    AlreadyReceived,
    /// The conversation cannot be loaded or saved.
    #[error(transparent)]
    Store(#[from] ChatStoreError),
    /// The ledger of approvals cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
}
