//! [`ChatRejection`]: why a request was not taken, as a status and a text.

use std::error::Error as StdError;
use std::fmt;

use ::axum::response::{IntoResponse, Response};
use http::StatusCode;

use crate::request::ParseRequestError;
use crate::stream::BoxError;

/// Why a request was not taken.
///
/// As a response it is plain text: `useChat` shows the body of a failed response as it is.
#[derive(Debug)]
pub struct ChatRejection(Cause);

/// What kind of reason it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChatRejectionKind {
    /// The body is not a chat request, or could not be read: 400.
    BadRequest,
    /// It names a host that this server does not answer for, or none that can be read: 403.
    ForeignHost,
    /// The page that sent it is of another origin: 403.
    ForeignOrigin,
    /// There is no such chat for whoever asks: 404.
    NotFound,
    /// It is larger than the limits allow: 413.
    TooLarge,
    /// A store does not answer: 503.
    Unavailable,
    /// It is not `application/json`: 415.
    UnsupportedMediaType,
}

#[derive(Debug)]
enum Cause {
    Body(BoxError),
    Parse(ParseRequestError),
    ForeignHost(Option<String>),
    ForeignOrigin(Option<String>),
    #[cfg(feature = "approvals")]
    NoDecisions,
    #[cfg(feature = "approvals")]
    NotFound,
    TooLarge {
        max_bytes: usize,
    },
    #[cfg(feature = "approvals")]
    Unavailable(BoxError),
    UnsupportedMediaType,
}

impl ChatRejection {
    /// What kind of reason it was.
    pub fn kind(&self) -> ChatRejectionKind {
        match &self.0 {
            Cause::Parse(error) if error.is_limit() => ChatRejectionKind::TooLarge,
            Cause::Body(_) | Cause::Parse(_) => ChatRejectionKind::BadRequest,
            Cause::ForeignHost(_) => ChatRejectionKind::ForeignHost,
            Cause::ForeignOrigin(_) => ChatRejectionKind::ForeignOrigin,
            #[cfg(feature = "approvals")]
            Cause::NoDecisions => ChatRejectionKind::BadRequest,
            #[cfg(feature = "approvals")]
            Cause::NotFound => ChatRejectionKind::NotFound,
            Cause::TooLarge { .. } => ChatRejectionKind::TooLarge,
            #[cfg(feature = "approvals")]
            Cause::Unavailable(_) => ChatRejectionKind::Unavailable,
            Cause::UnsupportedMediaType => ChatRejectionKind::UnsupportedMediaType,
        }
    }

    pub(super) fn body(error: BoxError) -> Self {
        ChatRejection(Cause::Body(error))
    }

    pub(super) fn parse(error: ParseRequestError) -> Self {
        ChatRejection(Cause::Parse(error))
    }

    pub(super) fn foreign_host(host: Option<String>) -> Self {
        ChatRejection(Cause::ForeignHost(host))
    }

    pub(super) fn foreign_origin(origin: Option<String>) -> Self {
        ChatRejection(Cause::ForeignOrigin(origin))
    }

    #[cfg(feature = "approvals")]
    pub(super) fn chat(error: crate::chat::ChatError) -> Self {
        ChatRejection(match error {
            crate::chat::ChatError::NotYours => Cause::NotFound,
            crate::chat::ChatError::Request(error) => Cause::Parse(error),
            other => Cause::Unavailable(other.into()),
        })
    }

    #[cfg(feature = "approvals")]
    pub(super) fn no_decisions() -> Self {
        ChatRejection(Cause::NoDecisions)
    }

    pub(super) fn too_large(max_bytes: usize) -> Self {
        ChatRejection(Cause::TooLarge { max_bytes })
    }

    pub(super) fn unsupported_media_type() -> Self {
        ChatRejection(Cause::UnsupportedMediaType)
    }
}

impl fmt::Display for ChatRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Body(_) => f.write_str("the request body could not be read"),
            Cause::Parse(error) => error.fmt(f),
            Cause::ForeignHost(Some(host)) => write!(
                f,
                "this server does not know that it is {host:?}; if it is, name it with \
                 `ChatPolicy::allow_host({host:?})`"
            ),
            Cause::ForeignHost(None) => f.write_str(
                "the request must name one host as browsers do, `chat.example` or \
                 `127.0.0.1:3000`",
            ),
            Cause::ForeignOrigin(Some(origin)) => write!(
                f,
                "pages of origin {origin:?} may not post here; the server can allow them with \
                 `ChatPolicy::allow_origin`"
            ),
            Cause::ForeignOrigin(None) => f.write_str(
                "pages of another site may not post here; the server can allow their origin with \
                 `ChatPolicy::allow_origin`",
            ),
            #[cfg(feature = "approvals")]
            Cause::NoDecisions => f.write_str(
                "expected either `decisions`, or `chatId` and `approved` for all that waits there",
            ),
            #[cfg(feature = "approvals")]
            Cause::NotFound => f.write_str("there is no such chat"),
            #[cfg(feature = "approvals")]
            Cause::Unavailable(_) => f.write_str("the chat cannot be reached; try again later"),
            Cause::TooLarge { max_bytes } => write!(
                f,
                "the request body is larger than {max_bytes} bytes; the server can raise this with \
                 `Limits::with_max_bytes`"
            ),
            Cause::UnsupportedMediaType => {
                f.write_str("the request must have `content-type: application/json`")
            }
        }
    }
}

impl StdError for ChatRejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            Cause::Body(error) => Some(&**error),
            #[cfg(feature = "approvals")]
            Cause::Unavailable(error) => Some(&**error),
            Cause::Parse(error) => Some(error),
            _ => None,
        }
    }
}

impl IntoResponse for ChatRejection {
    fn into_response(self) -> Response {
        let status = match self.kind() {
            ChatRejectionKind::BadRequest => StatusCode::BAD_REQUEST,
            ChatRejectionKind::ForeignHost | ChatRejectionKind::ForeignOrigin => {
                StatusCode::FORBIDDEN
            }
            ChatRejectionKind::NotFound => StatusCode::NOT_FOUND,
            ChatRejectionKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ChatRejectionKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ChatRejectionKind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        };
        (status, self.to_string()).into_response()
    }
}
