//! Answers in a structure: whichever way they are asked for, tools are called and people are asked on
//! the way to them, and what is none is not taken for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::{Request, header};
use futures::stream;
use http_body_util::BodyExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;
use ui_message_stream::UiMessage;
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream::axum::chat_routes;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::message::ToolState;
use ui_message_stream::model::{
    Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, ToolContent, ToolResult,
};
use ui_message_stream::testing::Conversation;

/// What became of a refund.
#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
struct Receipt {
    refunded: u64,
    #[schemars(range(max = 100))]
    percent: u8,
}

/// Gives money back.
#[derive(Deserialize, JsonSchema)]
struct Refund {
    amount: u64,
}

/// Says something, and calls `refund`; then answers with this text, for this reason. It notes whether
/// it was told each time what the answer is to look like, and what became of its call.
#[derive(Debug)]
struct Scripted {
    answer: &'static str,
    reason: FinishReason,
}

impl Scripted {
    fn answers(answer: &'static str) -> Self {
        Scripted { answer, reason: FinishReason::Stop }
    }
}

impl Model for Scripted {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let output = request.output.expect("it is told each time what the answer is to look like");
        assert_eq!(&*output.name, "Receipt");
        assert!(output.schema.as_str().contains("refunded"));
        let results = request.messages.iter().filter_map(|message| match message {
            ModelMessage::Tool { content } => Some(content),
            _ => None,
        });
        let said = match results.flatten().next() {
            None => vec![
                // What it says beside a call is no answer.
                ModelEvent::Event(AgentEvent::text(r#"{"refunded": 7, "percent": 7}"#)),
                ModelEvent::ToolCall(
                    Box::new(ToolCall::new("call_1", "refund")),
                    r#"{"amount": 30}"#.to_owned(),
                ),
                ModelEvent::Finished(FinishReason::ToolCalls),
            ],
            Some(ToolContent::Result(result)) => {
                let answer = match &result.result {
                    ToolResult::Denied { .. } => r#"{"refunded": 0, "percent": 0}"#,
                    _ => self.answer,
                };
                // In two pieces, as it grows.
                let (one, other) = answer.split_at(answer.len() / 2);
                vec![
                    ModelEvent::Event(AgentEvent::text(one)),
                    ModelEvent::Event(AgentEvent::text(other)),
                    ModelEvent::Finished(self.reason),
                ]
            }
            Some(other) => panic!("{other:?}"),
        };
        Box::pin(stream::iter(said.into_iter().map(Ok)))
    }
}

/// The route, and how often the refund ran.
fn app(model: Scripted) -> (Router, Arc<AtomicUsize>) {
    let ran = Arc::new(AtomicUsize::new(0));
    let runs = Arc::clone(&ran);
    let refund = Tool::new("refund", move |refund: Refund| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(refund.amount) }
    });
    let agent = Agent::new(model).with_output::<Receipt>().tool(refund.needs_approval());
    (Router::new().nest("/api/chat", chat_routes(agent.into_chat_server())), ran)
}

fn streamed(routes: &Router) -> Conversation<'static> {
    let routes = routes.clone();
    Conversation::with_service("/api/chat", async move |request: Request<String>| {
        routes.clone().oneshot(request).await
    })
}

async fn in_full(routes: &Router, path: &str, body: &Value) -> Value {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(axum::body::Body::from(body.to_string()))
        .unwrap();
    let response = routes.clone().oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

fn question() -> Value {
    json!({"id": "chat", "messages": [
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "I want it back."}]},
    ]})
}

/// Answers the question that an answer in full asks.
async fn decide(routes: &Router, asked: &Value, approved: bool) -> Value {
    let id = &asked["approvals"][0]["approvalId"];
    let decision = json!({"decisions": [{"approvalId": id, "approved": approved}]});
    in_full(routes, "/api/chat/chat/answers", &decision).await
}

const THE_ANSWER: &str = r#"{"refunded": 30, "percent": 100}"#;

#[tokio::test]
async fn a_stream_comes_to_it_over_an_approval() {
    let (routes, ran) = app(Scripted::answers(THE_ANSWER));
    let mut browser = streamed(&routes);
    browser.send("I want it back.").await;
    assert!(matches!(browser.tool_call("call_1").state, ToolState::ApprovalRequested { .. }));
    browser.approve("call_1").await;
    assert_eq!(browser.error(), None);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert!(matches!(browser.tool_call("call_1").state, ToolState::OutputAvailable { .. }));
    let message = browser.messages().last().unwrap();
    assert_eq!(message.output::<Receipt>().unwrap(), Receipt { refunded: 30, percent: 100 });
}

#[tokio::test]
async fn json_comes_to_it_over_an_approval() {
    let (routes, ran) = app(Scripted::answers(THE_ANSWER));
    let asked = in_full(&routes, "/api/chat", &question()).await;
    assert_eq!(asked["stopReason"], "requires_approval");
    assert_eq!(asked.get("output"), None, "what is said beside a call is no answer");
    let answered = decide(&routes, &asked, true).await;
    assert_eq!(answered["stopReason"], "stop");
    assert_eq!(answered["output"], json!({"refunded": 30, "percent": 100}));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    // The same once more is answered with the same, and nothing runs again.
    assert_eq!(decide(&routes, &asked, true).await, answered);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_no_is_read_before_it_answers() {
    let (routes, ran) = app(Scripted::answers(THE_ANSWER));
    let asked = in_full(&routes, "/api/chat", &question()).await;
    let answered = decide(&routes, &asked, false).await;
    assert_eq!(answered["output"], json!({"refunded": 0, "percent": 0}));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn what_is_none_is_an_error_and_none_afterwards_either() {
    for none in [
        "Your money is on its way.",
        "",
        r#"{"refunded": 30}"#,
        r#"{"refunded": 30, "percent": 101}"#,
        r#"{"refunded": 30, "percent": 100} Done."#,
        r#"{"refunded": 30, "refunded": 31, "percent": 100}"#,
    ] {
        let (routes, _) = app(Scripted::answers(none));
        let mut browser = streamed(&routes);
        browser.send("I want it back.").await;
        browser.approve("call_1").await;
        let words = "The answer is not in the form that it was to have.";
        assert_eq!(browser.error(), Some(words), "{none:?}");

        let (routes, _) = app(Scripted::answers(none));
        let asked = in_full(&routes, "/api/chat", &question()).await;
        let failed = decide(&routes, &asked, true).await;
        assert_eq!((&failed["stopReason"], failed.get("output")), (&json!("error"), None));
        let again = decide(&routes, &asked, true).await;
        assert_eq!(
            (&again["stopReason"], again.get("output")),
            (&json!("error"), None),
            "{none:?}"
        );
    }
}

/// Whatever a server says of why it ended.
#[tokio::test]
async fn what_is_none_is_an_error_for_whatever_reason_the_model_ended() {
    for reason in [FinishReason::Other, FinishReason::ToolCalls] {
        let (routes, _) = app(Scripted { answer: "I am done.", reason });
        let asked = in_full(&routes, "/api/chat", &question()).await;
        assert_eq!(decide(&routes, &asked, true).await["stopReason"], "error");
        let (routes, _) = app(Scripted { answer: THE_ANSWER, reason });
        let asked = in_full(&routes, "/api/chat", &question()).await;
        let answered = decide(&routes, &asked, true).await;
        assert_eq!(
            (&answered["stopReason"], &answered["output"]["refunded"]),
            (&json!("stop"), &json!(30))
        );
    }
}

#[test]
fn the_answer_of_a_step_is_what_is_said_last_in_it() {
    let hosted = json!({"type": "tool-web_search", "toolCallId": "w", "providerExecuted": true,
        "state": "output-available", "input": {}, "output": {}});
    let own = json!({"type": "tool-refund", "toolCallId": "c", "state": "output-available",
        "input": {}, "output": {}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let start = || json!({"type": "step-start"});
    for (parts, says) in [
        (json!([start(), text("1")]), Some(1)),
        (json!([start(), text("Let me look."), hosted, text("1")]), Some(1)),
        (json!([start(), text("1"), hosted]), Some(1)),
        (json!([start(), text("1"), own]), None),
        (json!([start(), text("1"), own, start()]), None),
        (json!([start(), text("1"), own, start(), text("2")]), Some(2)),
        (json!([]), None),
    ] {
        let message = json!({"id": "m", "role": "assistant", "parts": parts}).to_string();
        let message = UiMessage::parse(&message).unwrap();
        assert_eq!(message.output::<u8>().ok(), says, "{message:?}");
    }
}

#[tokio::test]
async fn an_answer_that_the_model_did_not_end_is_none_and_no_error() {
    let (routes, _) = app(Scripted { answer: r#"{"refunded": 3"#, reason: FinishReason::Length });
    let mut browser = streamed(&routes);
    browser.send("I want it back.").await;
    browser.approve("call_1").await;
    assert_eq!(browser.error(), None);
    assert!(browser.messages().last().unwrap().output::<Receipt>().is_err());
}

#[test]
#[should_panic(expected = "an answer in a structure is an object, which Array_of_uint8 is not")]
fn a_list_is_refused_when_the_agent_is_made() {
    let _ = Agent::new(Scripted::answers("")).with_output::<Vec<u8>>();
}

#[test]
#[should_panic(expected = "the schema of Letter is none")]
fn a_pattern_that_is_none_is_found_out_when_the_agent_is_made() {
    #[derive(PartialEq, Deserialize, JsonSchema)]
    struct Letter {
        #[schemars(regex(pattern = "^(Dear"))]
        text: String,
    }
    let _ = Agent::new(Scripted::answers("")).with_output::<Letter>();
}
