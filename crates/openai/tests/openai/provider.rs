//! A provider in this process. Sends prepared responses, records the requests, and refuses what a
//! real provider refuses.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use futures::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) use test_support::recorded_streams::{as_stream, fixture, lines_of};

/// A provider that listens on a port of its own.
pub(crate) struct Provider {
    pub(crate) address: String,
    exchanges: Arc<Mutex<Exchanges>>,
}

#[derive(Default)]
struct Exchanges {
    responses: VecDeque<(StatusCode, String)>,
    requests: Vec<ReceivedRequest>,
}

/// A request that the provider received.
#[derive(Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Provider {
    /// Creates a provider that answers each request with the next of these streams.
    pub(crate) async fn with_streams(streams: impl IntoIterator<Item = String>) -> Self {
        Self::with_responses(streams.into_iter().map(|stream| (StatusCode::OK, stream))).await
    }

    /// Creates a provider that answers each request with the next status and body.
    pub(crate) async fn with_responses(
        responses: impl IntoIterator<Item = (StatusCode, String)>,
    ) -> Self {
        let responses = responses.into_iter().collect();
        let exchanges = Arc::new(Mutex::new(Exchanges { responses, requests: Vec::new() }));
        let app = Router::new().fallback(respond).with_state(Arc::clone(&exchanges));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Provider { address, exchanges }
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.exchanges.lock().unwrap().requests.clone()
    }
}

async fn respond(
    State(exchanges): State<Arc<Mutex<Exchanges>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut exchanges = exchanges.lock().unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let refusal = refusal(&body).map(|error| (StatusCode::BAD_REQUEST, error.to_string()));
    exchanges.requests.push(ReceivedRequest { uri, headers, body });
    let no_response = (StatusCode::IM_A_TEAPOT, "nothing is left to say".to_owned());
    let response_body = refusal.or_else(|| exchanges.responses.pop_front());
    let (status, response_body) = response_body.unwrap_or(no_response);
    // The boundaries of the pieces are inside events, and some are inside characters.
    let pieces: Vec<_> = response_body
        .as_bytes()
        .chunks(37)
        .map(|piece| Ok::<_, Infallible>(piece.to_vec()))
        .collect();
    let mut response = Response::new(Body::from_stream(stream::iter(pieces)));
    *response.status_mut() = status;
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert("retry-after", HeaderValue::from_static("0"));
    }
    response
}

/// Returns the error with which a real provider refuses this body, or `None` if it accepts it.
fn refusal(body: &Value) -> Option<Value> {
    let schema_error = |tool: &Value| {
        let function = tool.get("function").unwrap_or(tool);
        let schema = function.get("parameters")?;
        let is_bare = schema["type"] == "object" && schema.get("properties").is_none();
        let why = match schema.get("$schema") {
            _ if is_bare => "object schema missing properties",
            Some(_) => "Unknown name \"$schema\"",
            None => return None,
        };
        Some((function["name"].clone(), why))
    };
    let (name, why) = body["tools"].as_array().into_iter().flatten().find_map(schema_error)?;
    let message = format!("Invalid schema for function {name}: In context=(), {why}.");
    Some(json!({"error": {
        "message": message, "type": "invalid_request_error", "param": "tools[0].parameters",
        "code": "invalid_function_parameters",
    }}))
}
