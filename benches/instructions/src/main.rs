//! Paths whose instructions `.ci/instructions.mjs` counts with callgrind:
//!   instructions PATH COUNT
//!
//! Runs the path with so many events. The difference of two counts is what an event costs, without the begin and
//! the end of the program.

use std::hint::black_box;

use axum::body::Body;
use axum::http::Request;
use futures::stream;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::event::ToolCall;
use ui_message_stream::reducer::Reducer;
use ui_message_stream::request::Limits;
use ui_message_stream::sse::Encoder;
use ui_message_stream::{AgentEvent, ChatRequest, Chunk, Json, Translator, UiMessageStream};
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::{ChatServer, Turn};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, count] = &*arguments else {
        panic!("usage: instructions texts|calls|reducer|reply|chats|parse COUNT");
    };
    let count = count.parse().expect("a number of events");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    match &**path {
        "texts" => write((0..count).map(text)),
        "calls" => write((0..count).flat_map(call)),
        "reducer" => reduce((0..count).map(text)),
        "reply" => runtime.block_on(reply(count)),
        "chats" => runtime.block_on(chats(count)),
        "parse" => parse(count),
        path => panic!("no path `{path}`"),
    }
}

fn text(number: usize) -> AgentEvent {
    const WORDS: [&str; 4] = ["The ", "agent ", "a \"quoted\" ", "briefly.\n"];
    AgentEvent::text(WORDS[number % WORDS.len()])
}

/// A call and its output: one event of the count.
fn call(number: usize) -> [AgentEvent; 2] {
    let id = format!("call_{number}");
    let input = Json::parse(r#"{"path":"notes/monday.md","lines":[1,40]}"#).expect("it is JSON");
    let output = Json::parse(r#"{"lines":["first","second"],"end":false}"#).expect("it is JSON");
    [
        AgentEvent::tool_input(ToolCall::new(id.clone(), "read"), input),
        AgentEvent::tool_output(id, output),
    ]
}

/// Writes frames into one buffer.
fn write(events: impl Iterator<Item = AgentEvent>) {
    let (mut translator, mut encoder) = (Translator::new("msg_1"), Encoder::default());
    let mut frames = Vec::new();
    for event in events {
        frames.clear();
        let write = &mut |chunk: Chunk<'_>| encoder.encode(&chunk, &mut frames);
        translator.handle_event(&event, write).expect("the events are valid");
        black_box(&frames);
    }
}

/// Builds the message. The instructions of the translator are counted, too.
fn reduce(events: impl Iterator<Item = AgentEvent>) {
    let (mut translator, mut reducer) = (Translator::new("msg_1"), Reducer::new());
    for event in events {
        let push = &mut |chunk: Chunk<'_>| reducer.push_chunk(&chunk).expect("they are valid");
        translator.handle_event(&event, push).expect("the events are valid");
    }
    drop(black_box(reducer));
}

/// Reads a response of an agent whose events are all ready.
async fn reply(count: usize) {
    let body = request();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).expect("it is valid");
    let response = UiMessageStream::reply(&request, stream::iter((0..count).map(text)));
    black_box(response.collect().await.expect("a body").to_bytes());
}

/// Reads such a response of a chat server in memory.
async fn chats(count: usize) {
    let agent = move |_: Turn| stream::iter((0..count).map(text));
    let routes = chat_routes(ChatServer::new(agent, Approvals::new(EmptyToolbox)));
    let request = Request::post("/")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .extension(Principal::new("ada"))
        .body(Body::from(request()));
    let response = routes.oneshot(request.expect("a request")).await.expect("a response");
    assert_eq!(response.status(), 200);
    black_box(response.into_body().collect().await.expect("a body").to_bytes());
}

fn request() -> String {
    let parts = json!([{"type": "text", "text": "Go on"}]);
    json!({"id": "chat", "message": {"id": "m1", "role": "user", "parts": parts}}).to_string()
}

/// Parses a request with ten parts so many times: each is one event of the count.
fn parse(count: usize) {
    let output = vec![json!({"id": 17, "name": "a name of some length", "ok": true}); 8];
    let part = |number: usize| match number % 2 {
        0 => {
            json!({"type": "text", "text": "The agent reads a \"quoted\" file. ".repeat(8), "state": "done"})
        }
        _ => {
            json!({"type": "tool-rows", "toolCallId": format!("call_{number}"), "state": "output-available",
            "input": {"path": "/srv/notes"}, "output": output})
        }
    };
    let parts: Vec<_> = (0..10).map(part).collect();
    let answer = json!({"id": "a", "role": "assistant", "parts": parts});
    let next = json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": "Go on"}]});
    let body = json!({"id": "chat", "messages": [answer, next]}).to_string();
    let limits = Limits::default();
    for _ in 0..count {
        black_box(ChatRequest::parse(black_box(body.as_bytes()), &limits).expect("it is valid"));
    }
}
