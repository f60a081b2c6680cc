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
    /// The conversation cannot be loaded or saved.
    #[error(transparent)]
    Store(#[from] ChatStoreError),
    /// The ledger of approvals cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
}
