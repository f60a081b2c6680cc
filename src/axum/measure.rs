//! [`measure`]: counts requests, and measures the time to the first byte of a stream.

use ::axum::body::Body;
use ::axum::extract::Request;
use ::axum::middleware::Next;
use ::axum::response::Response;
use http::Method;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use tokio::time::Instant;

/// Counts each request as `ui_message_stream_requests_total`, and records the seconds from a request
/// to the first byte of its stream as `ui_message_stream_first_byte_seconds`. Both go to the recorder
/// of the `metrics` crate that the application has installed; without a recorder nothing happens.
///
/// The routes of a chat server have it already. Put it around a handler of your own:
///
/// ```
/// use axum::middleware::from_fn;
/// use axum::{Router, routing::post};
/// use futures::stream;
/// use ui_message_stream::axum::measure;
/// use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
///
/// async fn chat(chat: ChatRequest) -> UiMessageStream {
///     UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello!")]))
/// }
///
/// let app: Router = Router::new().route("/api/chat", post(chat)).route_layer(from_fn(measure));
/// ```
pub async fn measure(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = match *request.method() {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        // A client can invent any number of methods. Each label is a series that is never removed.
        _ => "other",
    };
    let response = next.run(request).await;
    let status = response.status().as_str().to_owned();
    metrics::counter!("ui_message_stream_requests_total", "method" => method, "status" => status)
        .increment(1);
    let content_type = response.headers().get(CONTENT_TYPE);
    if content_type.is_none_or(|value| !value.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    let mut start = Some(start);
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            if frame.is_data()
                && let Some(start) = start.take()
            {
                metrics::histogram!("ui_message_stream_first_byte_seconds", "method" => method)
                    .record(start.elapsed());
            }
            frame
        }))
    })
}
