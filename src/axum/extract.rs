//! [`ChatRequest`] as an extractor.

use std::error::Error as StdError;

use ::axum::extract::{FromRequest, Request};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::policy::ChatPolicy;
use super::rejection::ChatRejection;
use crate::request::ChatRequest;

/// Reads the chat from a POST body, under the [`ChatPolicy`] laid around the route.
impl<S: Send + Sync> FromRequest<S> for ChatRequest {
    type Rejection = ChatRejection;

    async fn from_request(request: Request, _: &S) -> Result<Self, Self::Rejection> {
        let (parts, body) = request.into_parts();
        let Parts { headers, uri, extensions, .. } = &parts;
        let default = ChatPolicy::default();
        let policy = extensions.get::<ChatPolicy>().unwrap_or(&default);
        policy.check_origin(headers, uri.authority())?;
        if !is_json(headers) {
            return Err(ChatRejection::unsupported_media_type());
        }
        let limits = policy.limits();
        let body = match Limited::new(body, limits.max_bytes()).collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(error) if is_too_large(&*error) => {
                return Err(ChatRejection::too_large(limits.max_bytes()));
            }
            Err(error) => return Err(ChatRejection::body(error)),
        };
        ChatRequest::parse(&body, limits).map_err(ChatRejection::parse)
    }
}

/// Whether this limit or one laid around it ended the body.
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

/// A form of another site can post text, never JSON: asking for it keeps such forms out.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| {
        let essence = value.split(';').next().unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("application/json")
    })
}
