//! What the routes have in common: the id in a path, and JSON responses.

use std::convert::Infallible;

use ::axum::body::Body;
use ::axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;

use crate::readers::{JsonPiecesError, Reader};
use ui_message_stream::axum::ChatRejection;
use ui_message_stream::id::ChatId;
use ui_message_stream::request::Limits;

/// Returns the chat id of a path.
pub(super) fn chat_id(id: String, limits: &Limits) -> Result<ChatId, ChatRejection> {
    limits.check_chat_id("id", &id)?;
    Ok(id.into())
}

/// Returns a response with a large body, which counts among those that the user reads.
pub(super) fn large_json(
    reader: Reader,
    value: &impl Serialize,
) -> Result<Response, ChatRejection> {
    let pieces = match reader.json_pieces(value) {
        Ok(pieces) => pieces,
        Err(JsonPiecesError::Json(error)) => return Ok(unserializable(&error)),
        Err(JsonPiecesError::Chat(error)) => return Err(error.into()),
    };
    let length = [(CONTENT_LENGTH, pieces.total())];
    let body = Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)));
    Ok((JSON_HEADERS, length, body).into_response())
}

pub(super) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => (JSON_HEADERS, body).into_response(),
        Err(error) => unserializable(&error),
    }
}

pub(super) fn unserializable(error: &serde_json::Error) -> Response {
    tracing::error!(%error, "an answer does not serialize");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

/// The headers of a JSON response. The body is for one user only, and the id of an approval is a
/// secret like a key.
pub(super) const JSON_HEADERS: [(HeaderName, HeaderValue); 2] = [
    (CONTENT_TYPE, HeaderValue::from_static("application/json")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// For a stream that is read with `GET`. A browser that may store it sends the next `GET` of the same address twice,
/// because it first waits for the entry in its cache.
pub(super) const NOT_CACHED: [(HeaderName, &str); 1] = [(CACHE_CONTROL, "no-store, no-transform")];
