//! [`ChatError`]: the error of an operation on a conversation.

use std::panic::Location;

use super::conversation::RequestConflict;
use super::log::decision::Response;
use super::store::ChatStoreError;
use crate::ChatLimitError;
use ui_message_stream::approval::InputError;
use ui_message_stream::approval::store::{LedgerStoreError, RedeemError};
use ui_message_stream::request::ParseRequestError;

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
    /// The user has changed the input of a call before approving it, and the tool does not accept the
    /// change. Nothing was stored.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The conversation has reached one of its [limits](crate::ChatLimits).
    #[error(transparent)]
    Limit(#[from] ChatLimitError),
    /// The request was received before, and there is no response to it: none was stored, or the
    /// message was removed from the conversation, or edited since.
    #[error(
        "this message was received before, and there is no response to it; to get one, regenerate \
         it or send another message"
    )]
    AlreadyReceived {
        /// The place in the source that has refused the request. A server logs it.
        site: &'static Location<'static>,
    },
    /// The request does not fit the conversation.
    #[error("{conflict}")]
    Conflict {
        /// Why the request does not fit.
        conflict: RequestConflict,
        /// The place in the source that has refused the request. A server logs it.
        site: &'static Location<'static>,
    },
    /// The user has the maximum number of [live runs](crate::ChatLimits::with_max_user_runs),
    /// and all of them have readers.
    #[error("too many responses are being written for this user; try again later")]
    TooManyRuns,
    /// The user reads the maximum number of
    /// [responses](crate::ChatLimits::with_max_user_readers), or holds more than 64 MiB of large
    /// stored responses that it does not read.
    #[error("too many responses are being read by this user; close one, or try again later")]
    TooManyReaders,
    /// The server is [shutting down](super::ChatServer::shut_down) and begins no more runs.
    #[error("the server is shutting down; send the request again")]
    ShuttingDown,
    /// The log of the conversation cannot be read or written.
    #[error(transparent)]
    Store(#[from] ChatStoreError),
    /// The ledger of approvals cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
}

impl From<RedeemError> for ChatError {
    fn from(error: RedeemError) -> Self {
        match error {
            RedeemError::Input(error) => error.into(),
            RedeemError::Ledger(error) => error.into(),
            other => LedgerStoreError::new(other).into(),
        }
    }
}

impl ChatError {
    /// Returns the error of a request that has no response.
    #[track_caller]
    pub(super) fn of_response(response: Response) -> Self {
        match response {
            Response::Limit(limit) => limit.into(),
            Response::Refused(conflict, site) => ChatError::Conflict { conflict, site },
            Response::TooManyRuns => ChatError::TooManyRuns,
            Response::AlreadyReceived(site) => ChatError::AlreadyReceived { site },
            Response::Nothing => ChatError::AlreadyReceived { site: Location::caller() },
            Response::UnknownCalls(site) => {
                ChatError::Conflict { conflict: RequestConflict::UnknownCalls, site }
            }
            Response::ShuttingDown => ChatError::ShuttingDown,
            // The driver knows why, and a turn with one of the others is not refused.
            Response::Failed | Response::Join { .. } | Response::Stored(_) => {
                ChatStoreError::new("the request was not answered").into()
            }
        }
    }
}
