//! Responses that a client does not read share one copy of a large stored message, of its JSON, and of the
//! messages of a chat.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::requests::request;
use tower::ServiceExt;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::store::InMemoryLogStore;
use ui_message_stream_chat::{ChatServer, Turn};

use super::{ALONE, HEAP};

/// The length of the stored answer.
const LENGTH: usize = 4 << 20;

/// The number of answers of a chat that have this length together.
const ANSWERS: usize = 16;

/// How many responses are not read.
const UNREAD: usize = 50;

/// How many bytes one of them may hold of its own.
const OWN: usize = 128 << 10;

#[tokio::test]
async fn unread_responses_share_one_copy_of_a_stored_message() {
    let _alone = ALONE.lock().await;
    let agent = |_: Turn| stream::iter([AgentEvent::text("x".repeat(LENGTH))]);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
    let routes = chat_routes(chats).layer(Extension(Principal::new("ada")));
    let message = json!({"id": "u1", "role": "user", "parts": [{"type": "text", "text": "hello"}]});
    let body = json!({"id": "chat", "messages": [message]}).to_string();
    let repeat = async |accept: &str| -> BodyDataStream {
        let request = Request::post("/")
            .header("content-type", "application/json")
            .header("accept", accept)
            .body(Body::from(body.clone()));
        let response = routes.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body().into_data_stream()
    };
    let mut answer = repeat("text/event-stream").await;
    while answer.next().await.is_some() {}
    for accept in ["text/event-stream", "application/json"] {
        drop(repeat(accept).await);
        let before = HEAP.current_usage();
        let mut unread = Vec::new();
        for _ in 0..UNREAD {
            let mut response = repeat(accept).await;
            // The first frame of a stream is alone.
            for _ in 0..2 {
                drop(response.next().await.unwrap().unwrap());
            }
            unread.push(response);
        }
        let held = HEAP.current_usage() - before;
        println!("{UNREAD} unread responses, {accept}: {held} bytes");
        assert!(held <= LENGTH + LENGTH / 2, "{accept}: {held} bytes");
        let mut rest = unread.pop().unwrap();
        let mut read = 0;
        while let Some(piece) = rest.next().await {
            read += piece.unwrap().len();
        }
        assert!(read > LENGTH - OWN, "{accept}: {read} bytes");
    }
}

#[tokio::test]
async fn unread_histories_share_one_copy_of_the_messages() {
    let _alone = ALONE.lock().await;
    let server = stored_chat(LENGTH / ANSWERS).await;
    let before = HEAP.current_usage();
    let routes = chat_routes(server()).layer(Extension(Principal::new("ada")));
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        let request = Request::get("/chat").body(Body::empty()).unwrap();
        let response = routes.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body().into_data_stream();
        assert!(body.next().await.unwrap().unwrap().len() <= OWN);
        unread.push(body);
    }
    let held = HEAP.current_usage() - before;
    println!("{UNREAD} unread histories: {held} bytes");
    assert!(held <= 2 * LENGTH + UNREAD * OWN, "{held} bytes");
    let pieces = unread.pop().unwrap().map(|piece| piece.unwrap().len());
    let read = pieces.fold(0, async |sum, length| sum + length).await;
    assert!(read > LENGTH - OWN, "{read} bytes");
}

/// How many pages open a large chat, and read slowly.
const SLOW: usize = 12;

/// The bytes of a large chat.
const LARGE: usize = 16 << 20;

#[tokio::test]
async fn slow_readers_of_a_large_chat_never_take_more_than_twice_its_bytes() {
    let _alone = ALONE.lock().await;
    let server = stored_chat(LARGE / ANSWERS - OWN).await;
    let routes = chat_routes(server()).layer(Extension(Principal::new("ada")));
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let request = Request::get("/chat").body(Body::empty()).unwrap();
        let response = routes.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body().into_data_stream();
        drop(body.next().await.unwrap().unwrap());
        slow.push(body);
    }
    let peak = HEAP.peak_usage() - before;
    println!("{SLOW} slow readers of a chat of {LARGE} bytes: {peak} bytes at most");
    assert!(peak <= 2 * LARGE + SLOW * OWN, "{peak} bytes");
}

#[tokio::test]
async fn a_repeated_answer_never_takes_more_than_three_times_its_bytes() {
    let _alone = ALONE.lock().await;
    let store = Arc::new(InMemoryLogStore::new());
    let server = || {
        let agent = |_: Turn| {
            let answer = (0..ANSWERS).map(|part| {
                let delta = "x".repeat(LARGE / ANSWERS - OWN);
                AgentEvent::TextDelta { id: Some(part.to_string().into()), delta: delta.into() }
            });
            stream::iter(answer.collect::<Vec<_>>())
        };
        ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(store.clone())
    };
    let message = json!({"id": "u1", "role": "user", "parts": []});
    let body = json!({"id": "chat", "messages": [message]}).to_string();
    let request = || ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    let (ada, second) = (Principal::new("ada"), server());
    server().complete_response(&ada, request()).await.unwrap();
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let mut response = second.stream_response(&ada, request()).await.unwrap();
    let mut read = 0;
    while let Some(piece) = response.next().await {
        read += piece.unwrap().len();
    }
    let peak = HEAP.peak_usage() - before;
    println!("a repeated answer of {read} bytes: {peak} bytes at most");
    assert!(read > LARGE - ANSWERS * 2 * OWN, "{read} bytes");
    assert!(peak <= 3 * LARGE, "{peak} bytes");
}

/// Stores a chat with answers of this length. Returns what makes a server that has not read it.
async fn stored_chat(length: usize) -> impl Fn() -> ChatServer {
    let store = Arc::new(InMemoryLogStore::new());
    let server = move || {
        let agent = move |_: Turn| stream::iter([AgentEvent::text("x".repeat(length))]);
        ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(store.clone())
    };
    let (ada, first) = (Principal::new("ada"), server());
    for number in 0..ANSWERS {
        let message = json!({"id": format!("u{number}"), "role": "user", "parts": []});
        let body = json!({"id": "chat", "messages": [message]});
        let request = request(&body);
        first.complete_response(&ada, request).await.unwrap();
    }
    server
}
