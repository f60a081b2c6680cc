//! [`ChatRejection`]: the error response to a rejected request.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use tokio::time::Instant;

#[cfg(feature = "approvals")]
use crate::approval::store::{LedgerStoreError, RedeemError};
use crate::boxed::BoxError;
use crate::id::log_causes;
use crate::json::FieldError;
use crate::policy::PolicyError;
use crate::request::ParseRequestError;

/// The error of a request that was rejected.
///
/// Its response is plain text, because `useChat` shows the body of an error response unchanged.
/// [`kind`](Self::kind) determines the HTTP status. When it becomes a response, it is logged at DEBUG, or
/// at WARN if a store does not respond, with the fields `status`, `reason` and `site`: the place in the source
/// where the rejection was [created](Self::new). A request
/// without a user, and one that the policy does not allow, is also logged at WARN, once a minute, with what the
/// program lacks.
///
/// A host rejects the requests to its own routes in the same way:
///
/// ```
/// use ui_message_stream::axum::{ChatRejection, ChatRejectionKind};
///
/// let rejection = ChatRejection::new(ChatRejectionKind::NotFound, "there is no such report");
/// assert_eq!(rejection.to_string(), "there is no such report");
/// ```
#[derive(Debug)]
pub struct ChatRejection {
    kind: ChatRejectionKind,
    /// The body of the response.
    text: Cow<'static, str>,
    /// The cause, which is logged.
    source: Option<BoxError>,
    /// The place in the source that has rejected the request, which is logged.
    site: &'static Location<'static>,
}

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
    /// server stores, or it begins a chat and the user has too many: 413. A body that is nested too
    /// deeply is a [`BadRequest`](Self::BadRequest).
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

impl ChatRejection {
    /// Creates a rejection whose response has this text. The client reads it, so it must not name what
    /// only the server knows.
    ///
    /// The log names the place in the source that calls this function, or that converts another error with `?`.
    #[track_caller]
    pub fn new(kind: ChatRejectionKind, text: impl Into<Cow<'static, str>>) -> Self {
        ChatRejection { kind, text: text.into(), source: None, site: Location::caller() }
    }

    /// Sets the cause. It is logged, and the client does not read it.
    #[must_use]
    pub fn with_source(self, source: impl Into<BoxError>) -> Self {
        ChatRejection { source: Some(source.into()), ..self }
    }

    /// Sets the place in the source that the log names, if the request was rejected before the rejection was
    /// created.
    #[must_use]
    pub fn with_site(self, site: &'static Location<'static>) -> Self {
        ChatRejection { site, ..self }
    }

    /// Returns the kind of the rejection.
    pub fn kind(&self) -> ChatRejectionKind {
        self.kind
    }

    /// Returns after how many seconds the client may send the request again.
    fn retry_after(&self) -> Option<&'static str> {
        let may_retry = matches!(
            self.kind,
            ChatRejectionKind::TooManyReaders
                | ChatRejectionKind::TooManyRuns
                | ChatRejectionKind::Unavailable
        );
        may_retry.then_some("1")
    }

    fn log(&self, status: StatusCode) {
        let is_unauthenticated = self.kind == ChatRejectionKind::Unauthenticated;
        if is_unauthenticated && is_minute_over(&WARNED_AT, Instant::now()) {
            tracing::warn!(
                "a request has no user: insert a `Principal` into its extensions where you authenticate, \
                 or add `.layer(without_authentication())`"
            );
        }
        let is_not_allowed = matches!(
            self.kind,
            ChatRejectionKind::HostNotAllowed | ChatRejectionKind::OriginNotAllowed
        );
        if is_not_allowed && is_minute_over(&POLICY_WARNED_AT, Instant::now()) {
            tracing::warn!(reason = log_causes(self), "a host or an origin is not allowed");
        }
        let status = status.as_u16();
        let site = self.site;
        // The macros read the causes only if a subscriber wants the event.
        if self.kind == ChatRejectionKind::Unavailable && self.source.is_some() {
            tracing::warn!(status, reason = log_causes(self), %site, "a request is rejected");
        } else {
            tracing::debug!(status, reason = log_causes(self), %site, "a request is rejected");
        }
    }

    pub(super) fn address_not_allowed() -> Self {
        let text = "this server has no authentication, so it answers only requests to its own \
                    machine, such as to 127.0.0.1";
        ChatRejection::new(ChatRejectionKind::AddressNotAllowed, text)
    }

    pub(super) fn body(error: BoxError) -> Self {
        let text = "the request body could not be read";
        ChatRejection::new(ChatRejectionKind::BadRequest, text).with_source(error)
    }

    pub(super) fn too_large(max_bytes: usize) -> Self {
        let text = format!(
            "the request body is larger than {max_bytes} bytes; the server can raise this with \
             `Limits::with_max_bytes`"
        );
        ChatRejection::new(ChatRejectionKind::TooLarge, text)
    }

    pub(super) fn too_many_bodies() -> Self {
        let text = "too many requests are being sent at once; send this one again";
        ChatRejection::new(ChatRejectionKind::Unavailable, text)
    }

    pub(super) fn unauthenticated() -> Self {
        ChatRejection::new(ChatRejectionKind::Unauthenticated, "Not signed in.")
    }
}

/// The body is not a valid request: 400, or 413 if it exceeds a limit.
impl From<ParseRequestError> for ChatRejection {
    #[track_caller]
    fn from(error: ParseRequestError) -> Self {
        let kind = if error.is_limit() {
            ChatRejectionKind::TooLarge
        } else {
            ChatRejectionKind::BadRequest
        };
        ChatRejection::new(kind, error.to_string()).with_source(error)
    }
}

/// A field of the request is not valid: 400.
impl From<FieldError> for ChatRejection {
    #[track_caller]
    fn from(error: FieldError) -> Self {
        ChatRejection::from(ParseRequestError::Field(error))
    }
}

/// The policy does not allow the request: 403, or 415 for its content type.
impl From<PolicyError> for ChatRejection {
    #[track_caller]
    fn from(error: PolicyError) -> Self {
        let kind = match &error {
            PolicyError::HostNotAllowed(_) | PolicyError::InvalidHost => {
                ChatRejectionKind::HostNotAllowed
            }
            PolicyError::OriginNotAllowed(_) | PolicyError::CrossSite => {
                ChatRejectionKind::OriginNotAllowed
            }
            PolicyError::UnsupportedMediaType => ChatRejectionKind::UnsupportedMediaType,
        };
        ChatRejection::new(kind, error.to_string()).with_source(error)
    }
}

/// 400 for a changed input that is not accepted, otherwise 503.
#[cfg(feature = "approvals")]
impl From<RedeemError> for ChatRejection {
    #[track_caller]
    fn from(error: RedeemError) -> Self {
        match error {
            RedeemError::Ledger(error) => ChatRejection::from(error),
            RedeemError::Input(error) => {
                ChatRejection::new(ChatRejectionKind::BadRequest, error.to_string())
            }
        }
    }
}

/// The approvals cannot be read or stored: 503.
#[cfg(feature = "approvals")]
impl From<LedgerStoreError> for ChatRejection {
    #[track_caller]
    fn from(error: LedgerStoreError) -> Self {
        let text = "the chat cannot be reached; try again later";
        ChatRejection::new(ChatRejectionKind::Unavailable, text).with_source(error)
    }
}

impl fmt::Display for ChatRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for ChatRejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl IntoResponse for ChatRejection {
    fn into_response(self) -> Response {
        let status = match self.kind {
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
        let retry_after = self.retry_after();
        // A browser that goes back in its history shows what it has cached, and it may cache a 404.
        let no_store = [(CACHE_CONTROL, HeaderValue::from_static("no-store"))];
        let response = (status, no_store, self.text);
        match retry_after {
            Some(seconds) => ([(RETRY_AFTER, seconds)], response).into_response(),
            None => response.into_response(),
        }
    }
}

/// When the last request without a user was logged at WARN.
static WARNED_AT: Mutex<Option<Instant>> = Mutex::new(None);

/// When the last request that the policy does not allow was logged at WARN.
static POLICY_WARNED_AT: Mutex<Option<Instant>> = Mutex::new(None);

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
        let last = Mutex::new(None);
        let begin = Instant::now();
        let seconds = [0, 1, 59, 60, 61, 119, 120];
        let due = seconds.map(|at| is_minute_over(&last, begin + Duration::from_secs(at)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
