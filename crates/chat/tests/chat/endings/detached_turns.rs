//! A run belongs to the server: it runs to its end whether or not a client reads, waits or
//! disconnects, and it writes only into the conversation in which it began.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use axum::response::Response;
use chat_test_support::answers::{self, follow, send, server_of};
use chat_test_support::test_server::{Client, Host, Line, PRINCIPAL_HEADER, Scripted};
use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use test_support::eventually;
use test_support::requests::user_message;
use test_support::responses::text_of;
use tokio::time::sleep;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::{ApprovalDecision, Principal};
use ui_message_stream_chat::{ChatStream, Turn};

/// Posts the client's conversation and does not read the response yet.
async fn post(host: &Host, client: &Client) -> Response {
    let (user, body) = ([(PRINCIPAL_HEADER, &*client.person)], client.body().to_string());
    send(&host.routes, Method::POST, "/api/chat", &user, body).await
}

/// A host whose model emits more than the buffer between run and reader holds, and requests one
/// approval.
fn host_with_long_response() -> Host {
    let call = |tool: &str, input: Value| Scripted {
        tool: tool.to_owned(),
        input: input.to_string(),
        id: None,
    };
    let mut calls = vec![call("delete_file", json!({"path": "notes.txt"}))];
    calls.extend((0..100).map(|_| call("get_weather", json!({"city": "Lisbon"}))));
    Host::scripted(vec![Line { word: "many".to_owned(), calls }])
}

fn client_with_long_request() -> Client {
    let mut client = Client::new("alice", "chat");
    client.messages.push(user_message("m1", "many"));
    client
}

/// The text of the last part, once the last part is a text.
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
async fn a_client_that_does_not_read_its_response_delays_neither_the_run_nor_decisions() {
    let host = host_with_long_response();
    let unread_response = post(&host, &client_with_long_request()).await;
    eventually(async || !host.pending("alice").await.is_empty()).await;
    let id = &host.pending("alice").await[0]["approvalId"];
    host.decides("alice", id.as_str().unwrap(), true).await;
    assert_eq!(last_text(&host, "alice").await.as_deref(), Some("That is what came of it."));
    assert_eq!(host.tools.effects().len(), 1);
    // The response of a client that has not read for 30 seconds is cut. Nothing is lost: the client
    // continues after the last frame that it has read.
    let mut body = unread_response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    sleep(Duration::from_secs(31)).await;
    assert!(body.frame().await.is_none());
    let first = String::from_utf8(first.to_vec()).unwrap();
    let last_event_id = first.strip_prefix("id: ").unwrap().split_once('\n').unwrap().0;
    let headers = [("last-event-id", last_event_id), (PRINCIPAL_HEADER, "alice")];
    let rest = send(&host.routes, Method::GET, "/api/chat/chat/stream", &headers, "").await;
    let rest = text_of(rest.into_body()).await;
    assert_eq!(rest.matches(r#""type":"tool-output-available""#).count(), 100);
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
}

/// The test and the server share one thread.
#[tokio::test]
async fn a_client_reads_while_its_agent_always_has_an_event() {
    let has_ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&has_ended);
    let agent = move |_: Turn| {
        let end = Arc::clone(&end);
        let events = (0..50_000).map(|_| AgentEvent::text("a"));
        stream::iter(events).chain(stream::once(async move {
            end.store(true, Ordering::Relaxed);
            AgentEvent::text("b")
        }))
    };
    let chats = server_of(agent);
    let mut answer = answers::post(&chats, "m1", "hello").await;
    answer.frame().await.unwrap().unwrap();
    assert!(!has_ended.load(Ordering::Relaxed));
}

/// As when a process is paused or its machine has too much to do: then all timers are due at once.
#[tokio::test(start_paused = true)]
async fn an_answer_goes_on_after_its_process_has_stood_still_for_longer_than_its_lease() {
    let agent = |_: Turn| {
        let last = async {
            sleep(Duration::from_secs(60)).await;
            AgentEvent::text("last")
        };
        stream::iter([AgentEvent::text("first ")]).chain(stream::once(last))
    };
    let chats = server_of(agent);
    let response = answers::post(&chats, "m1", "Go on").await;
    let read = async |response: ChatStream| text_of(response).await.replace(": keep-alive\n\n", "");
    let reader = tokio::spawn(read(response));
    let mut opened_again = Vec::new();
    for _ in 0..3 {
        sleep(Duration::from_secs(2)).await;
        tokio::time::advance(Duration::from_secs(15)).await;
        opened_again.push(follow(&chats).await);
    }
    let text = reader.await.unwrap();
    assert!(text.contains("last") && !text.contains("error"), "{text}");
    for again in opened_again {
        assert_eq!(read(again).await, text);
    }
    assert_eq!(chats.run_counts().lapsed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_reads_the_whole_response() {
    let host = host_with_long_response();
    let mut body = post(&host, &client_with_long_request()).await.into_body();
    let mut read = String::new();
    while let Some(frame) = body.frame().await {
        read.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
        sleep(Duration::from_secs(29)).await;
    }
    assert_eq!(read.matches(r#""type":"tool-output-available""#).count(), 100);
    assert_eq!(read.matches(r#""type":"error""#).count(), 0, "{read}");
}

/// The store has lost a chat whose approvals are still in the ledger, and another user has created a chat
/// with its id.
#[tokio::test(start_paused = true)]
async fn a_decision_for_a_lost_chat_does_not_reach_another_users_chat_with_its_id() {
    let (host, alice) = Host::with_alice("delete notes.txt").await;
    host.lose_chats();
    Client::new("bob", "chat").say(&host, "what is mine").await;
    let (bobs, prompts) = (host.get("bob", "/api/chat/chat").await.text, host.model.prompts());

    assert!(!host.decides("alice", &alice.approval_ids()[0], true).await);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(host.get("bob", "/api/chat/chat").await.text, bobs);
    assert_eq!(host.model.prompts(), prompts, "alice's turn must not send bob's chat to the model");
    assert!(host.tools.effects().is_empty());
    assert_eq!(host.pending("alice").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_of_a_lost_chat_does_not_write_into_another_users_chat_with_its_id() {
    let (host, alice) = Host::with_alice("delete notes.txt").await;
    let answered = host.answer_and_hold(&alice).await;
    host.lose_chats();
    Client::new("bob", "chat").say(&host, "delete draft.md, what is mine").await;
    assert_eq!(host.get("alice", "/api/chat/chat").await.status, 404);
    let (bobs, prompts) = (host.get("bob", "/api/chat/chat").await.text, host.model.prompts());

    host.tools.hold(false);
    answered.await.unwrap();
    assert_eq!(host.get("bob", "/api/chat/chat").await.text, bobs);
    assert_eq!(host.model.prompts(), prompts);
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_carried_out_though_its_sender_disconnects() {
    let (host, browser) = Host::with_alice("delete notes.txt").await;
    let decision = ApprovalDecision::new(browser.approval_ids()[0].as_str().into(), true);
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
async fn an_agent_that_panics_before_its_first_event_gives_an_error_chunk() {
    let agent = |_: Turn| -> stream::Empty<AgentEvent> { panic!("a secret") };
    let chats = server_of(agent);
    let read = text_of(answers::post(&chats, "m1", "hello").await).await;
    assert!(read.contains(r#""type":"error""#) && !read.contains("secret"), "{read}");
}
