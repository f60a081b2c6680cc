//! A provider, in this process: it answers with what it is given, and keeps what it was asked. What
//! one of the real ones refuses, it refuses.

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
use test_support::repository;
use tokio::net::TcpListener;

/// A provider that listens on a port of its own.
pub(crate) struct Provider {
    pub(crate) address: String,
    desk: Arc<Mutex<Desk>>,
}

#[derive(Default)]
struct Desk {
    answers: VecDeque<(StatusCode, String)>,
    asked: Vec<Asked>,
}

/// A request.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Provider {
    /// Answers the first request with the first of these streams, and so on.
    pub(crate) async fn streaming(answers: impl IntoIterator<Item = String>) -> Self {
        Self::answering(answers.into_iter().map(|answer| (StatusCode::OK, answer))).await
    }

    pub(crate) async fn answering(answers: impl IntoIterator<Item = (StatusCode, String)>) -> Self {
        let answers = answers.into_iter().collect();
        let desk = Arc::new(Mutex::new(Desk { answers, asked: Vec::new() }));
        let app = Router::new().fallback(answer).with_state(Arc::clone(&desk));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Provider { address, desk }
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.desk.lock().unwrap().asked.clone()
    }
}

async fn answer(
    State(desk): State<Arc<Mutex<Desk>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut desk = desk.lock().unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let refused = refused(&body).map(|why| (StatusCode::BAD_REQUEST, why.to_string()));
    desk.asked.push(Asked { uri, headers, body });
    let nothing = (StatusCode::IM_A_TEAPOT, "nothing is left to say".to_owned());
    let answer = refused.or_else(|| desk.answers.pop_front());
    let (status, answer) = answer.unwrap_or(nothing);
    // Cut where no event ends and some characters do not.
    let pieces: Vec<_> =
        answer.as_bytes().chunks(37).map(|piece| Ok::<_, Infallible>(piece.to_vec())).collect();
    let mut response = Response::new(Body::from_stream(stream::iter(pieces)));
    *response.status_mut() = status;
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert("retry-after", HeaderValue::from_static("0"));
    }
    response
}

/// Why one of the real ones would not answer this.
fn refused(body: &Value) -> Option<Value> {
    let wrong = |tool: &Value| {
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
    let (name, why) = body["tools"].as_array().into_iter().flatten().find_map(wrong)?;
    let message = format!("Invalid schema for function {name}: In context=(), {why}.");
    Some(json!({"error": {
        "message": message, "type": "invalid_request_error", "param": "tools[0].parameters",
        "code": "invalid_function_parameters",
    }}))
}

/// A recorded stream, one event's data a line, as it goes over the wire.
pub(crate) fn as_stream(lines: &str) -> String {
    let events: String = lines.lines().map(|line| format!("data: {line}\n\n")).collect();
    format!(": hello\n\n{events}data: [DONE]\n\n")
}

/// One of the fixtures, as a stream.
pub(crate) fn fixture(name: &str) -> String {
    as_stream(&lines_of(name))
}

/// One of the fixtures, one event's data a line.
pub(crate) fn lines_of(name: &str) -> String {
    let path = repository().join(format!("fixtures/providers/{name}.jsonl"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
