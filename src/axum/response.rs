//! [`UiMessageStream`] and `ChatStream` as axum responses.

use ::axum::body::Body;
use ::axum::response::{IntoResponse, Response};

use crate::response::UiMessageStream;

/// Streams the message, with the HTTP headers of the protocol.
impl IntoResponse for UiMessageStream {
    fn into_response(self) -> Response {
        self.into_http_response().map(Body::new)
    }
}

/// Streams the run, with the HTTP headers of the protocol.
#[cfg(feature = "approvals")]
impl IntoResponse for crate::chat::ChatStream {
    fn into_response(self) -> Response {
        self.into_http_response().map(Body::new)
    }
}
