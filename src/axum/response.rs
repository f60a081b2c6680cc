//! [`UiMessageStream`] as a response.

use ::axum::body::Body;
use ::axum::response::{IntoResponse, Response};

use crate::body::UiMessageStream;

/// Streams the message with the headers of the protocol.
impl IntoResponse for UiMessageStream {
    fn into_response(self) -> Response {
        self.into_http_response().map(Body::new)
    }
}
