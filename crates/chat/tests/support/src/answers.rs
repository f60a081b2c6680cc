//! Requests to a chat server and to its routes, and what they return.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, Method, Request, StatusCode};
use axum::response::Response;
use serde_json::Value;
use test_support::requests::ada;
use test_support::responses::text_of;
use tower::ServiceExt;
use ui_message_stream::ChatRequest;
use ui_message_stream::axum::without_authentication;
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::{ChatError, ChatServer};

/// Sends a request of the user `ada` and reads the response to its end.
///
/// # Errors
/// The error of the server.
pub async fn answer(chats: &ChatServer, request: ChatRequest) -> Result<String, ChatError> {
    Ok(text_of(chats.stream_response(&ada(), request).await?).await)
}

/// Returns the routes of a server that has one user.
pub fn routes(chats: &ChatServer) -> Router {
    Router::new()
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats.clone()))
        .layer(without_authentication())
}

/// Sends a request with JSON to routes. `headers` replace those that this function sends by itself.
pub async fn send(
    routes: &Router,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Response {
    let mut request = Request::new(body.into());
    (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
    let own = [("host", "127.0.0.1:3000"), ("content-type", "application/json")];
    for (name, value) in own.iter().chain(headers) {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    routes.clone().oneshot(request).await.unwrap()
}

/// Sends JSON to routes and reads the response to its end.
pub async fn send_json(
    routes: &Router,
    method: Method,
    path: &str,
    body: &Value,
) -> (StatusCode, String) {
    let response = send(routes, method, path, &[], body.to_string()).await;
    (response.status(), text_of(response.into_body()).await)
}

/// Posts JSON to routes as a client that reads no streams, and returns the response.
pub async fn complete_response(routes: &Router, path: &str, body: &Value) -> Value {
    let accepts = [("accept", "application/json")];
    let response = send(routes, Method::POST, path, &accepts, body.to_string()).await;
    serde_json::from_str(&text_of(response.into_body()).await).unwrap()
}
