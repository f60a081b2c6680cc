//! A run is the server's: it comes to its end whoever reads, waits or is gone, and writes where it
//! began to and nowhere else.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use futures::stream;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use test_support::test_server::{Client, Host, Line, PERSON, Scripted};
use tokio::time::sleep;
use tower::ServiceExt;
use ui_message_stream::approval::{ApprovalDecision, Approvals, EmptyToolbox, Principal};
use ui_message_stream::chat::store::InMemoryChatStore;
use ui_message_stream::chat::{ChatServer, Turn};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};

/// Posts what a client holds, and does not read the response yet.
async fn post(host: &Host, client: &Client) -> Response {
    let request = Request::post("/api/chat")
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .header(PERSON, &client.person);
    let request = request.body(Body::from(client.body().to_string())).unwrap();
    host.routes.clone().oneshot(request).await.unwrap()
}

/// A host whose model says more than fits between a run and its reader, and asks for one approval.
fn talkative() -> Host {
    let call = |tool: &str, input: Value| Scripted {
        tool: tool.to_owned(),
        input: input.to_string(),
        id: None,
    };
    let mut calls = vec![call("delete_file", json!({"path": "notes.txt"}))];
    calls.extend((0..100).map(|_| call("get_weather", json!({"city": "Lisbon"}))));
    Host::scripted(vec![Line { word: "many".to_owned(), calls }])
}

fn asks_for_many() -> Client {
    let mut client = Client::new("alice", "chat");
    let parts = json!([{"type": "text", "text": "many"}]);
    client.messages.push(json!({"id": "m1", "role": "user", "parts": parts}));
    client
}

/// What the conversation ends with, once that is a text.
async fn last_text(host: &Host, person: &str) -> Option<String> {
    for _ in 0..200 {
        let history = host.get(person, "/api/chat/chat").await.json();
        let last = history["messages"].as_array()?.last()?["parts"].as_array()?.last()?.clone();
        if last["type"] == "text" {
            return Some(last["text"].as_str()?.to_owned());
        }
        sleep(Duration::from_secs(1)).await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_stands_still_holds_nobody_up() {
    let host = talkative();
    let stands_still = post(&host, &asks_for_many()).await;
    while host.pending("alice").await.is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    let all = json!({"chatId": "chat", "approved": true});
    host.decide("alice", &all).await;
    assert_eq!(last_text(&host, "alice").await.as_deref(), Some("That is what came of it."));
    assert_eq!(host.tools.effects().len(), 1);
    // Who reads on is told that this was not all.
    let read = stands_still.into_body().collect().await.unwrap().to_bytes();
    let read = String::from_utf8(read.to_vec()).unwrap();
    assert_eq!(read.matches(r#""type":"error""#).count(), 1, "{read}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_is_slow_reads_everything() {
    let host = talkative();
    let mut body = post(&host, &asks_for_many()).await.into_body();
    let mut read = String::new();
    while let Some(frame) = body.frame().await {
        read.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
        sleep(Duration::from_secs(29)).await;
    }
    assert_eq!(read.matches(r#""type":"tool-output-available""#).count(), 100);
    assert_eq!(read.matches(r#""type":"error""#).count(), 0, "{read}");
}

/// The store of chats has forgotten one whose approvals the ledger still has, and somebody else has
/// taken its id.
#[tokio::test(start_paused = true)]
async fn what_was_asked_in_a_forgotten_chat_is_not_answered_in_that_of_somebody_else() {
    let host = Host::new().with_store(InMemoryChatStore::with_capacity(1));
    Client::new("alice", "chat").say(&host, "delete notes.txt").await;
    Client::new("bob", "other").say(&host, "hello").await;
    Client::new("bob", "chat").say(&host, "what is mine").await;
    let (bobs, prompts) = (host.get("bob", "/api/chat/chat").await.text, host.model.prompts());

    let all = json!({"chatId": "chat", "approved": true});
    let decided = host.decide("alice", &all).await.json();
    assert_eq!(decided["decisions"][0]["counts"], false, "{decided}");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(host.get("bob", "/api/chat/chat").await.text, bobs);
    assert_eq!(host.model.prompts(), prompts, "a model reads what is bob's for alice");
    assert!(host.tools.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_chat_was_forgotten_does_not_write_into_that_of_somebody_else() {
    let host = Host::new().with_store(InMemoryChatStore::with_capacity(1));
    let mut alice = Client::new("alice", "chat");
    alice.say(&host, "delete notes.txt").await;
    host.tools.hold(true);
    let answered = {
        let host = host.clone();
        tokio::spawn(async move { alice.answer(&host, true).await })
    };
    while host.tools.effects().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    Client::new("bob", "other").say(&host, "hello").await;
    Client::new("bob", "chat").say(&host, "what is mine").await;
    let (bobs, prompts) = (host.get("bob", "/api/chat/chat").await.text, host.model.prompts());

    host.tools.hold(false);
    let answer = answered.await.unwrap();
    assert_eq!(answer.of_type("error").len(), 1, "{}", answer.text);
    assert_eq!(host.get("bob", "/api/chat/chat").await.text, bobs);
    assert_eq!(host.model.prompts(), prompts, "a model reads what is bob's for alice");
}

#[tokio::test(start_paused = true)]
async fn a_decision_whose_sender_hangs_up_goes_on_all_the_same() {
    let host = Host::new();
    let mut browser = Client::new("alice", "chat");
    browser.say(&host, "delete notes.txt").await;
    let decision = ApprovalDecision {
        approval_id: browser.approval_ids()[0].as_str().into(),
        approved: true,
        reason: None,
    };
    let alice = Principal::new("alice");
    tokio::select! {
        biased;
        decided = host.chats.decide(&alice, vec![decision]) => panic!("{decided:?}"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(last_text(&host, "alice").await.as_deref(), Some("That is what came of it."));
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn an_agent_that_panics_before_it_says_anything_is_told_as_an_error() {
    let agent = |_: Turn| -> stream::Empty<AgentEvent> { panic!("a secret") };
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let body = br#"{"id": "chat", "messages": [
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    ]}"#;
    let request = ChatRequest::parse(body, &Limits::default()).unwrap();
    let answer = chats.stream_response(&Principal::new("alice"), request).await.unwrap();
    let read = answer.collect().await.unwrap().to_bytes();
    let read = String::from_utf8(read.to_vec()).unwrap();
    assert!(read.contains(r#""type":"error""#) && !read.contains("secret"), "{read}");
}
