//! The routes in a host application: with the application's state, which the tools share, with any
//! chat id, and with a graceful shutdown while an approval is pending.

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::get;
use axum::{Json as AxumJson, Router};
use chat_test_support::answers::send;
use chat_test_support::model_double::{ModelDouble, calls, results_in, says};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::requests::user_message;
use test_support::responses::text_of;
use test_support::sockets::{post_head, read_to_end};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use ui_message_stream::approval::{Approvals, EmptyToolbox, KeyRing};
use ui_message_stream::axum::without_authentication;
use ui_message_stream::model::Model;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::ChatServer;
use ui_message_stream_chat::axum::{approval_routes, chat_routes};

/// The state of the application.
#[derive(Clone, Default)]
struct App {
    notes: Arc<Mutex<Vec<String>>>,
}

/// The input of the tool `note`.
#[derive(Deserialize, JsonSchema)]
struct Note {
    text: String,
}

/// A model that calls the tool once.
fn calls_note() -> impl Model {
    ModelDouble::new(|request, _| match results_in(&request) {
        0 => calls("call_1", "note", r#"{"text":"milk"}"#),
        _ => says("Noted"),
    })
}

fn app(needs_approval: bool) -> (Router, App) {
    let app = App::default();
    let notes = Arc::clone(&app.notes);
    let note = Tool::new("note", move |note: Note| {
        notes.lock().unwrap().push(note.text);
        async { Ok::<_, ToolError>("written down") }
    });
    let note = if needs_approval { note.needs_approval() } else { note };
    let chats = Agent::new(calls_note()).tool(note).into_chat_server();
    let list = async |State(app): State<App>| AxumJson(app.notes.lock().unwrap().clone());
    let routes: Router<App> = Router::new()
        .route("/notes", get(list))
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats))
        .layer(without_authentication());
    (routes.with_state(app.clone()), app)
}

async fn send_request(
    routes: &Router,
    method: Method,
    path: &str,
    body: &str,
) -> (StatusCode, String) {
    let response = send(routes, method, path, &[], body.to_owned()).await;
    (response.status(), text_of(response.into_body()).await)
}

fn request_body(id: &str) -> String {
    json!({"id": id, "messages": [user_message("m1", "Go")]}).to_string()
}

#[tokio::test]
async fn tools_and_routes_of_the_application_share_its_state() {
    let (routes, app) = app(false);
    let (status, response_text) =
        send_request(&routes, Method::POST, "/api/chat", &request_body("c")).await;
    assert_eq!(status, StatusCode::OK);
    assert!(response_text.contains("Noted"), "{response_text}");
    assert_eq!(*app.notes.lock().unwrap(), ["milk"]);
    assert_eq!(send_request(&routes, Method::GET, "/notes", "").await.1, r#"["milk"]"#);
}

#[tokio::test]
async fn a_chat_id_may_contain_any_character() {
    let (routes, _) = app(false);
    let id = "chat 1/ü?&%2F";
    send_request(&routes, Method::POST, "/api/chat", &request_body(id)).await;
    let path = "/api/chat/chat%201%2F%C3%BC%3F%26%252F";
    let (status, history) = send_request(&routes, Method::GET, path, "").await;
    assert_eq!(status, StatusCode::OK);
    let history: Value = serde_json::from_str(&history).unwrap();
    assert_eq!(history["messages"].as_array().unwrap().len(), 2);
    let stopped = send_request(&routes, Method::DELETE, &format!("{path}/stream"), "").await;
    assert_eq!(stopped.0, StatusCode::NO_CONTENT);
    let none = send_request(&routes, Method::GET, "/api/chat/chat%201%2F%C3%BC", "").await;
    assert_eq!(none.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_graceful_shutdown_does_not_wait_for_a_pending_approval() {
    let (routes, app) = app(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async {
        drop(stopped.await);
    });
    let server = tokio::spawn(server.into_future());
    let mut client = TcpStream::connect(address).await.unwrap();
    let body = request_body("c");
    let head = post_head("/api/chat", body.len()).replace("\r\n\r\n", "\r\nConnection: close");
    client.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
    let text = read_to_end(&mut client).await;
    assert!(text.contains("tool-approval-request") && text.contains("[DONE]"), "{text}");
    stop.send(()).unwrap();
    // The server stops although an approval is pending.
    test_support::within_patience(server).await.unwrap().unwrap();
    assert_eq!(app.notes.lock().unwrap().len(), 0);
}

#[test]
#[should_panic(expected = "a `ChatServer` needs approvals with a ledger")]
fn a_chat_server_rejects_stateless_approvals() {
    let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
    let approvals = Approvals::stateless_replayable(EmptyToolbox, keys).unwrap();
    let _ = ChatServer::new(Agent::new(calls_note()), approvals);
}
