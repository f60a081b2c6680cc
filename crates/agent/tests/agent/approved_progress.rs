//! An approved tool streams like any other: what it emits reaches the response, and its parts are stored.

use std::sync::Arc;

use async_stream::stream as events;
use axum::Router;
use axum::body::BodyDataStream;
use axum::http::{Method, StatusCode};
use chat_test_support::answers::{routes, send};
use chat_test_support::calling_model::Calls;
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::requests::user_message;
use test_support::within_patience;
use tokio::sync::Semaphore;
use ui_message_stream::approval::Approvals;
use ui_message_stream::checker::Checker;
use ui_message_stream::event::Source;
use ui_message_stream::message::{ToolState, UiMessage};
use ui_message_stream::model::{Model, ModelRequest, ModelStream};
use ui_message_stream_agent::{Agent, Tool, ToolContext, ToolError};
use ui_message_stream_chat::ChatServer;

/// Builds the project.
#[derive(Deserialize, JsonSchema)]
struct Build {}

struct Host {
    routes: Router,
    /// Lets the tool go on.
    gate: Arc<Semaphore>,
    /// Lets the model answer. It has permits.
    answer: Arc<Semaphore>,
}

/// A model that waits for a permit before each answer.
#[derive(Debug)]
struct Waits(Calls, Arc<Semaphore>);

impl Model for Waits {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let (answer, permit) = (self.0.call(request), self.1.clone());
        let waits = async move { permit.acquire().await.unwrap().forget() };
        Box::pin(stream::once(waits).flat_map(move |()| stream::empty()).chain(answer))
    }
}

impl Host {
    fn new(tool: impl FnOnce(Arc<Semaphore>) -> Tool<Build>) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let answer = Arc::new(Semaphore::new(9));
        let model = Waits(Calls::of(&[("build", json!({}))]), answer.clone());
        let agent = Agent::new(model).tool(tool(gate.clone()).needs_approval());
        let chats = ChatServer::new(agent.clone(), Approvals::new(agent));
        let routes = routes(&chats);
        Host { routes, gate, answer }
    }

    /// A tool that emits everything, and waits before it ends.
    fn emitting() -> Self {
        Self::new(|gate| {
            Tool::new("build", move |_: Build, context: ToolContext| {
                let gate = gate.clone();
                async move {
                    context.emit_preliminary("compiling").await.unwrap();
                    context.emit_data("log", "line 1").await.unwrap();
                    context.emit_data_with_id("progress", "p", &1).await.unwrap();
                    context.emit_data_with_id("progress", "p", &2).await.unwrap();
                    let (source_id, url) = ("s".into(), "https://example.com".into());
                    context.emit_source(Source::Url { source_id, url, title: None }).await.unwrap();
                    gate.acquire().await.unwrap().forget();
                    // Just before the end, it is not lost either.
                    context.emit_data("log", "line 2").await.unwrap();
                    Ok::<_, ToolError>("built")
                }
            })
        })
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> BodyDataStream {
        let response = send(&self.routes, method, path, &[], body.to_string()).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body().into_data_stream()
    }

    /// Requests the approval, and returns the message.
    async fn ask(&self) -> UiMessage {
        let body = json!({"id": "chat", "messages": [user_message("u1", "Go")]});
        read(self.send(Method::POST, "/api/chat", &body).await).await;
        self.stored().await
    }

    /// Approves the call of this message.
    async fn approve(&self, path: &str, asked: &UiMessage) -> BodyDataStream {
        let id = asked.tool_parts().next().unwrap().approval_id().unwrap();
        let decision = json!({"approvalId": id, "approved": true});
        self.send(Method::POST, path, &json!({"decisions": [decision]})).await
    }

    async fn stored(&self) -> UiMessage {
        let text = read(self.send(Method::GET, "/api/chat/chat", &Value::Null).await).await;
        let body: Value = serde_json::from_str(&text).unwrap();
        UiMessage::parse(&body["messages"][1].to_string()).unwrap()
    }
}

async fn read(mut body: BodyDataStream) -> String {
    let mut text = String::new();
    while let Some(bytes) = body.next().await {
        text.push_str(std::str::from_utf8(&bytes.unwrap()).unwrap());
    }
    text
}

/// Reads until the text has all of these.
async fn read_until(body: &mut BodyDataStream, wanted: &[&str]) -> String {
    let mut text = String::new();
    while !wanted.iter().all(|wanted| text.contains(wanted)) {
        let Some(bytes) = within_patience(body.next()).await else {
            panic!("{wanted:?} are not all in {text}")
        };
        text.push_str(std::str::from_utf8(&bytes.unwrap()).unwrap());
    }
    text
}

const PRELIMINARY: &str = r#""output":"compiling","preliminary":true"#;

#[tokio::test]
async fn what_an_approved_tool_emits_reaches_every_reader_while_it_runs_and_its_parts_are_stored() {
    let host = Host::emitting();
    let asked = host.ask().await;
    let mut response = host.approve("/api/chat/chat/answers", &asked).await;
    let wanted = [PRELIMINARY, "data-log", "source-url", r#""data":2"#];
    let begun = read_until(&mut response, &wanted).await;
    // A page that is opened now sees the parts, and no output: the tool has none yet.
    let stored = host.stored().await;
    let call = stored.tool_parts().next().unwrap();
    assert!(!matches!(call.state, ToolState::OutputAvailable { .. }), "{call:?}");
    let parts = serde_json::to_value(&stored.parts).unwrap();
    let kinds: Vec<_> = parts.as_array().unwrap().iter().map(|part| part["type"].clone()).collect();
    assert!(kinds.contains(&json!("data-log")) && kinds.contains(&json!("source-url")), "{parts}");
    // Its stream begins with the same.
    let mut other = host.send(Method::GET, "/api/chat/chat/stream", &Value::Null).await;
    read_until(&mut other, &wanted).await;

    host.gate.add_permits(1);
    let text = format!("{begun}{}", read(response).await);
    assert!(!text.contains("error"), "{text}");
    let mut checker = Checker::continuing(&asked);
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut found: Vec<_> = data.flat_map(|data| checker.handle_data(data)).collect();
    found.extend(checker.finish());
    assert!(found.is_empty(), "{found:?}");

    let message = host.stored().await;
    let state = &message.tool_parts().next().unwrap().state;
    let ToolState::OutputAvailable { output: Some(output), preliminary: None, .. } = state else {
        panic!("{state:?}")
    };
    assert_eq!(output.as_str(), r#""built""#);
    let parts = serde_json::to_value(&message.parts).unwrap();
    let of = |kind: &str| {
        let parts = parts.as_array().unwrap().iter().filter(|part| part["type"] == kind);
        parts.map(|part| part["data"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("data-log"), [json!("line 1"), json!("line 2")]);
    assert_eq!((of("data-progress"), of("source-url").len()), (vec![json!(2)], 1));
}

#[tokio::test]
async fn a_streaming_tool_streams_although_it_was_approved() {
    let host = Host::new(|gate| {
        Tool::streaming("build", move |_: Build, _| {
            let gate = gate.clone();
            events! {
                for step in 1..=3 {
                    yield Ok::<_, ToolError>(step);
                    gate.acquire().await.unwrap().forget();
                }
            }
        })
    });
    let asked = host.ask().await;
    let mut response = host.approve("/api/chat/chat/answers", &asked).await;
    for step in 1..=3 {
        read_until(&mut response, &[&format!(r#""output":{step},"preliminary":true"#)]).await;
        host.gate.add_permits(1);
    }
    let end = read(response).await;
    assert!(end.contains(r#""output":3"#) && end.contains("[DONE]"), "{end}");
}

#[tokio::test]
async fn a_call_that_is_approved_by_another_route_streams_to_the_page_that_follows_it() {
    let host = Host::emitting();
    let asked = host.ask().await;
    read(host.approve("/api/approvals", &asked).await).await;
    let mut stream = host.send(Method::GET, "/api/chat/chat/stream", &Value::Null).await;
    read_until(&mut stream, &[PRELIMINARY, "data-log"]).await;
    host.gate.add_permits(1);
    assert!(read(stream).await.contains(r#""output":"built""#));
}

/// The outcome is the last thing that any page reads of the call, whenever it joins, and no step begins before the
/// model is called.
#[tokio::test]
async fn a_page_that_joins_after_the_result_reads_no_older_output() {
    let host = Host::emitting();
    let asked = host.ask().await;
    // The answer of the model waits, so that the run lives after the result.
    host.answer.forget_permits(9);
    let mut response = host.approve("/api/chat/chat/answers", &asked).await;
    let shown = read_until(&mut response, &[PRELIMINARY, "source-url"]).await;
    assert!(!shown.contains("start-step"), "{shown}");
    host.gate.add_permits(1);
    let shown = format!("{shown}{}", read_until(&mut response, &[r#""output":"built""#]).await);
    let (preliminary, output) = (shown.rfind(PRELIMINARY), shown.find(r#""output":"built""#));
    assert!(preliminary < output, "{shown}");

    let mut late = host.send(Method::GET, "/api/chat/chat/stream", &Value::Null).await;
    let begun = read_until(&mut late, &[r#""output":"built""#]).await;
    host.answer.add_permits(1);
    let text = format!("{begun}{}", read(late).await);
    assert!(text.rfind(PRELIMINARY) < text.find(r#""output":"built""#), "{text}");
    assert!(read(response).await.contains("[DONE]"));
}
