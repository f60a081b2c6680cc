//! [`ChatRejection`]: the error response to a rejected request.

use std::error::Error as StdError;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;
use tokio::time::Instant;

use crate::boxed::BoxError;
use crate::id::log_causes;
use crate::policy::PolicyError;
use crate::request::ParseRequestError;

/// The error of a request that was rejected.
///
/// Its response is plain text, because `useChat` shows the body of an error response unchanged.
/// [`kind`](Self::kind) determines the HTTP status. When it becomes a response, an error of status 400,
/// 401, 403 or 503 is logged at DEBUG with its reason, or at WARN if a store does not respond. A request
/// without a user is also logged at WARN, once a minute, with what the program lacks.
#[derive(Debug)]
pub struct ChatRejection(Cause);

/// The kind of a [`ChatRejection`], which determines the HTTP status of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChatRejectionKind {
    /// The request has no user and arrived on an address of the server that is not a loopback
    /// address: 403. See [`without_authentication`](super::without_authentication).
    AddressNotAllowed,
    /// The body is not a valid request, or it could not be read: 400.
    BadRequest,
    /// The request was received before, and there is no response to it: 409.
    Conflict,
    /// The request names a host that the [`ChatPolicy`](crate::policy::ChatPolicy) does not allow, or an
    /// invalid host: 403.
    HostNotAllowed,
    /// The request comes from a page of an origin that the [`ChatPolicy`](crate::policy::ChatPolicy) does
    /// not allow: 403.
    OriginNotAllowed,
    /// The principal of the request has no such chat: 404.
    NotFound,
    /// The request is larger than the [`Limits`](crate::request::Limits) allow, or its chat than the
    /// [`ChatLimits`](crate::limits::ChatLimits), or it begins a chat and the user has too many: 413. A
    /// body that is nested too deeply is a [`BadRequest`](Self::BadRequest).
    TooLarge,
    /// The user reads too many responses: 429, with the header `Retry-After`.
    TooManyReaders,
    /// The user has too many live runs: 429, with the header `Retry-After`.
    TooManyRuns,
    /// The request has no user: its extensions hold no
    /// [`Principal`](crate::approval::Principal): 401.
    Unauthenticated,
    /// A store does not respond, the server is shutting down, or the body of the request was cut off
    /// because incomplete bodies hold too many bytes: 503, with the header `Retry-After`.
    Unavailable,
    /// The content type is not `application/json`: 415.
    UnsupportedMediaType,
}

#[derive(Debug)]
enum Cause {
    AddressNotAllowed,
    #[cfg(feature = "approvals")]
    BlanketApproval,
    Body(BoxError),
    #[cfg(feature = "approvals")]
    ChatLimit(crate::limits::ChatLimitError),
    #[cfg(feature = "approvals")]
    Conflict(crate::chat::ChatError),
    Parse(ParseRequestError),
    Policy(PolicyError),
    #[cfg(feature = "approvals")]
    NoDecisions,
    #[cfg(feature = "approvals")]
    NotFound,
    TooLarge {
        max_bytes: usize,
    },
    TooManyBodies,
    #[cfg(feature = "approvals")]
    TooManyReaders(crate::chat::ChatError),
    #[cfg(feature = "approvals")]
    TooManyRuns(crate::chat::ChatError),
    Unauthenticated,
    #[cfg(feature = "approvals")]
    Unavailable(BoxError),
}

impl ChatRejection {
    /// Returns the kind of the rejection.
    pub fn kind(&self) -> ChatRejectionKind {
        match &self.0 {
            Cause::AddressNotAllowed => ChatRejectionKind::AddressNotAllowed,
            Cause::Parse(error) if error.is_limit() => ChatRejectionKind::TooLarge,
            Cause::Body(_) | Cause::Parse(_) => ChatRejectionKind::BadRequest,
            #[cfg(feature = "approvals")]
            Cause::BlanketApproval | Cause::NoDecisions => ChatRejectionKind::BadRequest,
            #[cfg(feature = "approvals")]
            Cause::Conflict(_) => ChatRejectionKind::Conflict,
            #[cfg(feature = "approvals")]
            Cause::NotFound => ChatRejectionKind::NotFound,
            Cause::Policy(error) => match error {
                PolicyError::HostNotAllowed(_) | PolicyError::InvalidHost => {
                    ChatRejectionKind::HostNotAllowed
                }
                PolicyError::OriginNotAllowed(_) | PolicyError::CrossSite => {
                    ChatRejectionKind::OriginNotAllowed
                }
                PolicyError::UnsupportedMediaType => ChatRejectionKind::UnsupportedMediaType,
            },
            #[cfg(feature = "approvals")]
            Cause::ChatLimit(_) => ChatRejectionKind::TooLarge,
            Cause::TooLarge { .. } => ChatRejectionKind::TooLarge,
            #[cfg(feature = "approvals")]
            Cause::TooManyReaders(_) => ChatRejectionKind::TooManyReaders,
            #[cfg(feature = "approvals")]
            Cause::TooManyRuns(_) => ChatRejectionKind::TooManyRuns,
            Cause::TooManyBodies => ChatRejectionKind::Unavailable,
            Cause::Unauthenticated => ChatRejectionKind::Unauthenticated,
            #[cfg(feature = "approvals")]
            Cause::Unavailable(_) => ChatRejectionKind::Unavailable,
        }
    }

    /// Returns after how many seconds the client may send the request again.
    fn retry_after(&self) -> Option<&'static str> {
        match &self.0 {
            Cause::TooManyBodies => Some("1"),
            #[cfg(feature = "approvals")]
            Cause::TooManyReaders(_) | Cause::TooManyRuns(_) | Cause::Unavailable(_) => Some("1"),
            _ => None,
        }
    }

    fn log(&self, status: StatusCode) {
        if matches!(self.0, Cause::Unauthenticated) && is_minute_over(&WARNED_AT, Instant::now()) {
            tracing::warn!(
                "a request has no user: insert a `Principal` into its extensions where you authenticate, \
                 or add `.layer(without_authentication())`"
            );
        }
        if matches!(status.as_u16(), 400 | 401 | 403 | 503) {
            let (status, reason) = (status.as_u16(), log_causes(self));
            #[cfg(feature = "approvals")]
            if let Cause::Unavailable(_) = &self.0 {
                return tracing::warn!(status, reason, "a request is rejected");
            }
            tracing::debug!(status, reason, "a request is rejected");
        }
    }

    pub(super) fn address_not_allowed() -> Self {
        ChatRejection(Cause::AddressNotAllowed)
    }

    #[cfg(feature = "approvals")]
    pub(super) fn blanket_approval() -> Self {
        ChatRejection(Cause::BlanketApproval)
    }

    pub(super) fn body(error: BoxError) -> Self {
        ChatRejection(Cause::Body(error))
    }

    pub(super) fn parse(error: ParseRequestError) -> Self {
        ChatRejection(Cause::Parse(error))
    }

    pub(super) fn policy(error: PolicyError) -> Self {
        ChatRejection(Cause::Policy(error))
    }

    #[cfg(feature = "approvals")]
    pub(super) fn chat(error: crate::chat::ChatError) -> Self {
        ChatRejection(match error {
            crate::chat::ChatError::NotFound => Cause::NotFound,
            crate::chat::ChatError::AlreadyReceived | crate::chat::ChatError::Conflict(_) => {
                Cause::Conflict(error)
            }
            crate::chat::ChatError::TooManyReaders => Cause::TooManyReaders(error),
            crate::chat::ChatError::TooManyRuns => Cause::TooManyRuns(error),
            crate::chat::ChatError::Request(error) => Cause::Parse(error),
            crate::chat::ChatError::Limit(error) => Cause::ChatLimit(error),
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

    pub(super) fn too_many_bodies() -> Self {
        ChatRejection(Cause::TooManyBodies)
    }

    pub(super) fn unauthenticated() -> Self {
        ChatRejection(Cause::Unauthenticated)
    }
}

/// The approvals cannot be read or stored: 503.
#[cfg(feature = "approvals")]
impl From<crate::approval::store::LedgerStoreError> for ChatRejection {
    fn from(error: crate::approval::store::LedgerStoreError) -> Self {
        ChatRejection(Cause::Unavailable(error.into()))
    }
}

impl fmt::Display for ChatRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::AddressNotAllowed => f.write_str(
                "this server has no authentication, so it answers only requests to its own \
                 machine, such as to 127.0.0.1",
            ),
            #[cfg(feature = "approvals")]
            Cause::Conflict(error) | Cause::TooManyReaders(error) | Cause::TooManyRuns(error) => {
                error.fmt(f)
            }
            #[cfg(feature = "approvals")]
            Cause::BlanketApproval => f.write_str(
                "an approval names ids: post `decisions`, each with its `approvalId`; a `chatId` \
                 can only deny what waits there",
            ),
            Cause::Body(_) => f.write_str("the request body could not be read"),
            #[cfg(feature = "approvals")]
            Cause::ChatLimit(error) => error.fmt(f),
            Cause::Parse(error) => error.fmt(f),
            Cause::Policy(error) => error.fmt(f),
            #[cfg(feature = "approvals")]
            Cause::NoDecisions => f.write_str(
                "expected either `decisions`, or `chatId` and `approved: false` to deny all that \
                 waits there",
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
            Cause::TooManyBodies => {
                f.write_str("too many requests are being sent at once; send this one again")
            }
            Cause::Unauthenticated => f.write_str("Not signed in."),
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
            Cause::Policy(error) => Some(error),
            _ => None,
        }
    }
}

impl IntoResponse for ChatRejection {
    fn into_response(self) -> Response {
        let status = match self.kind() {
            ChatRejectionKind::BadRequest => StatusCode::BAD_REQUEST,
            ChatRejectionKind::AddressNotAllowed
            | ChatRejectionKind::HostNotAllowed
            | ChatRejectionKind::OriginNotAllowed => StatusCode::FORBIDDEN,
            ChatRejectionKind::Conflict => StatusCode::CONFLICT,
            ChatRejectionKind::NotFound => StatusCode::NOT_FOUND,
            ChatRejectionKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ChatRejectionKind::TooManyReaders | ChatRejectionKind::TooManyRuns => {
                StatusCode::TOO_MANY_REQUESTS
            }
            ChatRejectionKind::Unauthenticated => StatusCode::UNAUTHORIZED,
            ChatRejectionKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ChatRejectionKind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        };
        self.log(status);
        let response = (status, self.to_string());
        match self.retry_after() {
            Some(seconds) => ([(RETRY_AFTER, seconds)], response).into_response(),
            None => response.into_response(),
        }
    }
}

/// When the last request without a user was logged at WARN.
static WARNED_AT: Mutex<Option<Instant>> = Mutex::new(None);

/// Returns whether a minute has passed since this function last returned `true`.
fn is_minute_over(last: &Mutex<Option<Instant>>, now: Instant) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let is_over = last.is_none_or(|last| now.duration_since(last) >= Duration::from_secs(60));
    if is_over {
        *last = Some(now);
    }
    is_over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_a_user_are_logged_at_warn_once_a_minute() {
        let (last, begin) = (Mutex::new(None), Instant::now());
        let seconds = [0, 1, 59, 60, 61, 119, 120];
        let due = seconds.map(|at| is_minute_over(&last, begin + Duration::from_secs(at)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
