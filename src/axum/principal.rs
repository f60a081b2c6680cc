//! [`Principal`] as an axum extractor.

use ::axum::extract::FromRequestParts;
use http::request::Parts;

use super::rejection::ChatRejection;
use crate::approval::Principal;

/// Takes the principal from the extensions of the request, into which the host's authentication has
/// inserted it. Without one the request is rejected with status 401.
impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = ChatRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let principal = parts.extensions.get::<Principal>().cloned();
        principal.ok_or_else(ChatRejection::unauthenticated)
    }
}
