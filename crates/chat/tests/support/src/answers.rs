//! Requests to a chat server and to its routes, and what they return.

use std::str;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, Method, Request, StatusCode};
use axum::response::Response;
use futures::StreamExt;
use serde_json::Value;
use test_support::requests::{ada, say};
use test_support::responses::text_of;
use tower::ServiceExt;
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::{ApprovalDecision, Approvals, EmptyToolbox};
use ui_message_stream::axum::without_authentication;
use ui_message_stream::id::ApprovalId;
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::store::ListChats;
use ui_message_stream_chat::{Chat, ChatAgent, ChatError, ChatServer, ChatStream};

/// Creates a server whose agent has no tools that need an approval.
pub fn server_of(agent: impl ChatAgent) -> ChatServer {
    ChatServer::new(agent, Approvals::new(EmptyToolbox))
}

/// Sends a message of the user `ada` in the chat `chat`, and returns the response.
pub async fn post(chats: &ChatServer, id: &str, text: &str) -> ChatStream {
    chats.stream_response(&ada(), say("chat", id, text)).await.unwrap()
}

/// Returns the live run of the chat `chat`, from its beginning.
pub async fn follow(chats: &ChatServer) -> ChatStream {
    chats.resume_stream(&ada(), &"chat".into(), None).await.unwrap().unwrap()
}

/// Returns the chat `chat` of the user `ada`.
pub async fn stored(chats: &ChatServer) -> Chat {
    chats.chat(&ada(), &"chat".into()).await.unwrap()
}

/// Reads a response until this text has come.
pub async fn read_until(response: &mut ChatStream, text: &str) -> String {
    let mut read = String::new();
    while !read.contains(text) {
        let frames = response.next().await.unwrap_or_else(|| panic!("no {text}: {read}"));
        read += str::from_utf8(&frames.unwrap()).unwrap();
    }
    read
}

/// Returns whether the store holds the newest chat of the user `ada` as one with questions. This reads no
/// ledger.
pub async fn has_questions(chats: &ChatServer) -> bool {
    let list = ListChats { limit: 10, after: None, search: None };
    chats.list(&ada(), list).await.unwrap().chats[0].has_questions
}

/// Returns the open requests of approval of the user `ada`.
pub async fn questions(chats: &ChatServer) -> Vec<ApprovalId> {
    let pending = chats.approvals().pending(&ada()).await.unwrap();
    pending.into_iter().map(|pending| pending.approval_id).collect()
}

/// Decides on a request of approval as the user `ada`. Returns whether the decision counts.
pub async fn decide(chats: &ChatServer, question: &ApprovalId, approved: bool) -> bool {
    let decision = ApprovalDecision::new(question.clone(), approved);
    chats.decide(&ada(), vec![decision]).await.unwrap()[0].accepted
}

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
