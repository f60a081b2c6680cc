//! [`ParseRequestError`]: why a body is not a chat request.

use crate::json::FieldError;

/// Why a body is not a chat request. Messages name the place and the rule, never a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRequestError {
    /// It is longer than [`Limits::with_max_bytes`](super::Limits::with_max_bytes) allows.
    #[error("the body is longer than {limit} bytes; `Limits::with_max_bytes` allows more")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// It is not UTF-8.
    #[error("the body is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// How many bytes at its beginning are UTF-8.
        at: usize,
    },
    /// It nests deeper than [`Limits::with_max_depth`](super::Limits::with_max_depth) allows.
    #[error("the body nests deeper than {limit} levels; `Limits::with_max_depth` allows more")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// It is not JSON.
    #[error("the body is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// There are more messages than
    /// [`Limits::with_max_messages`](super::Limits::with_max_messages) allows.
    #[error("messages: more than {limit}; `Limits::with_max_messages` allows more")]
    TooManyMessages {
        /// The limit.
        limit: usize,
    },
    /// There are more parts than [`Limits::with_max_parts`](super::Limits::with_max_parts) allows.
    #[error("messages: more than {limit} parts; `Limits::with_max_parts` allows more")]
    TooManyParts {
        /// The limit.
        limit: usize,
    },
    /// There are more messages, parts and unknown fields than
    /// [`Limits::with_max_nodes`](super::Limits::with_max_nodes) allows.
    #[error(
        "more than {limit} messages, parts and unknown fields together; `Limits::with_max_nodes` allows \
         more"
    )]
    TooManyNodes {
        /// The limit.
        limit: usize,
    },
    /// There are more answers than [`Limits::with_max_parts`](super::Limits::with_max_parts) allows
    /// parts. A message could not hold so many.
    #[error("more than {limit} answers; `Limits::with_max_parts` allows more")]
    TooManyAnswers {
        /// The limit.
        limit: usize,
    },
    /// A file's `data:` URL is longer than
    /// [`Limits::with_max_data_url_bytes`](super::Limits::with_max_data_url_bytes) allows.
    #[error(
        "messages: a file of more than {limit} bytes; `Limits::with_max_data_url_bytes` allows more"
    )]
    DataUrlTooLong {
        /// The limit.
        limit: usize,
    },
    /// A field is missing, of a wrong type, given twice, or holds what no client accepts.
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl ParseRequestError {
    /// Returns whether the error is a limit of size: of bytes, messages, parts, nodes or answers.
    ///
    /// [`TooDeep`](Self::TooDeep) is not one.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            ParseRequestError::TooLong { .. }
                | ParseRequestError::TooManyMessages { .. }
                | ParseRequestError::TooManyParts { .. }
                | ParseRequestError::TooManyNodes { .. }
                | ParseRequestError::TooManyAnswers { .. }
                | ParseRequestError::DataUrlTooLong { .. }
        )
    }
}
