//! [`UiMessageStream`] as an axum response.

use ::axum::body::Body;
use ::axum::response::{IntoResponse, Response};

use crate::response::UiMessageStream;

/// Streams the message, with the HTTP headers of the protocol.
impl IntoResponse for UiMessageStream {
    fn into_response(self) -> Response {
        self.into_http_response().map(Body::new)
    }
}
