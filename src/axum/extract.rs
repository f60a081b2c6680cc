//! [`ChatRequest`] as an axum extractor, and [`JsonBody`].

use std::error::Error as StdError;
use std::time::Duration;

use ::axum::body::Body;
use ::axum::extract::{FromRequest, FromRequestParts, Request};
use futures_util::future::{Abortable, Aborted};
use http::header::EXPECT;
use http::request::Parts;
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use super::rejection::ChatRejection;
use crate::approval::Principal;
use crate::boxed::BoxError;
use crate::policy::{ChatPolicy, IncompleteBody, check_content_type};
use crate::request::{ChatRequest, Limits};

/// Parses the body of a POST request, under the [`ChatPolicy`] layer of the route or the default
/// policy.
impl<S: Send + Sync> FromRequest<S> for ChatRequest {
    type Rejection = ChatRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let body = JsonBody::from_request(request, state).await?;
        Ok(ChatRequest::parse(&body.bytes, &body.limits)?)
    }
}

/// An extractor of a JSON body, for routes that read something else than a [`ChatRequest`].
///
/// The request is checked like a `ChatRequest`: its host and origin, its content type and its length,
/// under the [`ChatPolicy`] layer of the route or the default policy. Bodies are cut off if those of
/// one user, or all together, have too many bytes.
///
/// ```
/// use ui_message_stream::axum::{ChatRejection, JsonBody};
/// use ui_message_stream::request::ParseRequestError;
///
/// async fn rename(body: JsonBody) -> Result<String, ChatRejection> {
///     let title: String =
///         serde_json::from_slice(&body.bytes).map_err(ParseRequestError::NotJson)?;
///     Ok(format!("the title is {title}"))
/// }
/// # let app: axum::Router = axum::Router::new().route("/", axum::routing::post(rename));
/// ```
#[non_exhaustive]
pub struct JsonBody {
    /// The body. It is not parsed, and may not be JSON.
    pub bytes: Vec<u8>,
    /// The limits of the policy, for what the body holds.
    pub limits: Limits,
}

debug_without_content!(JsonBody { limits; bytes });

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ChatRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let (mut parts, body) = request.into_parts();
        let policy = ChatPolicy::from_request_parts(&mut parts, state).await?;
        check_content_type(&parts)?;
        let bytes = read_within_limits(&parts, body, &policy).await?;
        Ok(JsonBody { bytes, limits: policy.limits().clone() })
    }
}

async fn read_within_limits(
    parts: &Parts,
    mut body: Body,
    policy: &ChatPolicy,
) -> Result<Vec<u8>, ChatRejection> {
    let max_bytes = policy.limits().max_bytes();
    // The length that the client declared, if it did.
    let unread = if body.size_hint().lower() <= max_bytes as u64 {
        let owner = parts.extensions.get::<Principal>().cloned();
        let (received, registration) = policy.bodies().begin(owner, max_bytes);
        match Abortable::new(read(&mut body, received), registration).await {
            Ok(Ok(Some(body))) => return Ok(body),
            Ok(Ok(None)) | Err(Aborted) => return Err(ChatRejection::too_many_bodies()),
            Ok(Err(error)) if is_too_large(&*error) => max_bytes,
            Ok(Err(error)) => return Err(ChatRejection::body(error)),
        }
    } else if parts.headers.contains_key(EXPECT) {
        // The client sends nothing before it has received status 100.
        0
    } else {
        max_bytes.saturating_mul(2)
    };
    let _ = timeout(DISCARD_TIME, discard(body, unread as u64)).await;
    Err(ChatRejection::too_large(max_bytes))
}

/// Reads a body. Returns `None` if it is cut off.
async fn read(body: &mut Body, mut received: IncompleteBody) -> Result<Option<Vec<u8>>, BoxError> {
    let mut body = Limited::new(body, received.max_len());
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref()
            && !received.extend(data)
        {
            return Ok(None);
        }
    }
    Ok(Some(received.complete()))
}

/// Reads the rest of a body that is too long, unless it has more bytes than these: then it has more than
/// twice as many as are allowed. If the server closes a connection while the client sends, the client
/// may lose the response.
async fn discard(mut body: Body, mut left: u64) {
    while left > 0
        && body.size_hint().lower() <= left
        && let Some(Ok(frame)) = body.frame().await
    {
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
    }
}

/// How long the rest of a body that is too long is read.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Whether the body exceeded this limit or the limit of an outer layer.
fn is_too_large(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
