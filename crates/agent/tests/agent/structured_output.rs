//! Structured output, streamed and as JSON: tools are called and approvals are requested before it,
//! and text that does not match the schema is not accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use chat_test_support::answers::complete_response;
use chat_test_support::browser::{app, approve, over};
use chat_test_support::model_double::{ModelDouble, says, text, tool_call, tool_contents};
use futures::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::requests::user_message;
use ui_message_stream::UiMessage;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::message::ToolState;
use ui_message_stream::model::{
    Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, ToolContent, ToolResult,
    UserContent,
};
use ui_message_stream_agent::{Agent, Tool, ToolError};

/// The receipt of a refund.
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

/// Emits a text and calls `refund`, then answers with this text and finish reason. It asserts that
/// each request holds the output schema.
#[derive(Debug)]
struct Scripted {
    answer: &'static str,
    reason: FinishReason,
}

impl Scripted {
    fn answering_with(answer: &'static str) -> Self {
        Scripted { answer, reason: FinishReason::Stop }
    }
}

impl Model for Scripted {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let output = request.output.as_ref().expect("each request holds the output schema");
        assert_eq!(&*output.name, "Receipt");
        assert!(output.schema.as_str().contains("refunded"));
        let events = match tool_contents(&request).next() {
            None => vec![
                // A text next to a tool call is not the output.
                text(r#"{"refunded": 7, "percent": 7}"#),
                tool_call("call_1", "refund", r#"{"amount": 30}"#),
                ModelEvent::Finished(FinishReason::ToolCalls),
            ],
            Some(ToolContent::Result(result)) => {
                let answer = match &result.result {
                    ToolResult::Denied { .. } => r#"{"refunded": 0, "percent": 0}"#,
                    _ => self.answer,
                };
                // In two deltas.
                let (one, other) = answer.split_at(answer.len() / 2);
                vec![text(one), text(other), ModelEvent::Finished(self.reason)]
            }
            Some(other) => panic!("{other:?}"),
        };
        Box::pin(stream::iter(events.into_iter().map(Ok)))
    }
}

/// The route, and the number of runs of the refund tool.
fn refunds(model: Scripted) -> (Router, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let refund = Tool::new("refund", move |refund: Refund| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(refund.amount) }
    });
    let agent = Agent::new(model).with_output::<Receipt>().tool(refund.needs_approval());
    (app(agent), runs)
}

fn question() -> Value {
    json!({"id": "chat", "messages": [user_message("m1", "I want it back.")]})
}

/// Decides the approval that a JSON response lists.
async fn decide(routes: &Router, paused: &Value, approved: bool) -> Value {
    let id = &paused["approvals"][0]["approvalId"];
    let decision = json!({"decisions": [{"approvalId": id, "approved": approved}]});
    complete_response(routes, "/api/chat/chat/answers", &decision).await
}

const THE_ANSWER: &str = r#"{"refunded": 30, "percent": 100}"#;

#[tokio::test]
async fn a_streamed_response_has_structured_output_after_an_approval() {
    let (routes, runs) = refunds(Scripted::answering_with(THE_ANSWER));
    let mut browser = over(routes);
    browser.send("I want it back.").await;
    assert!(matches!(browser.tool_call("call_1").state, ToolState::ApprovalRequested { .. }));
    approve(&mut browser, "call_1").await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(matches!(browser.tool_call("call_1").state, ToolState::OutputAvailable { .. }));
    let message = browser.messages().last().unwrap();
    assert_eq!(message.output::<Receipt>().unwrap(), Receipt { refunded: 30, percent: 100 });
}

#[tokio::test]
async fn a_json_response_has_structured_output_after_an_approval() {
    let (routes, runs) = refunds(Scripted::answering_with(THE_ANSWER));
    let paused = complete_response(&routes, "/api/chat", &question()).await;
    assert_eq!(paused["stopReason"], "requires_approval");
    assert_eq!(paused.get("output"), None, "a text next to a tool call is not the output");
    let completed = decide(&routes, &paused, true).await;
    assert_eq!(completed["stopReason"], "stop");
    assert_eq!(completed["output"], json!({"refunded": 30, "percent": 100}));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    // The same decision again gives the same response, and the tool does not run again.
    assert_eq!(decide(&routes, &paused, true).await, completed);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_model_reads_a_denial_before_it_gives_its_output() {
    let (routes, runs) = refunds(Scripted::answering_with(THE_ANSWER));
    let paused = complete_response(&routes, "/api/chat", &question()).await;
    let completed = decide(&routes, &paused, false).await;
    assert_eq!(completed["output"], json!({"refunded": 0, "percent": 0}));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_output_that_does_not_match_the_schema_is_an_error_also_on_retry() {
    for invalid in [
        "Your money is on its way.",
        "",
        r#"{"refunded": 30}"#,
        r#"{"refunded": 30, "percent": 101}"#,
        r#"{"refunded": 30, "percent": 100} Done."#,
        r#"{"refunded": 30, "refunded": 31, "percent": 100}"#,
    ] {
        let (routes, _) = refunds(Scripted::answering_with(invalid));
        let mut browser = over(routes);
        browser.send("I want it back.").await;
        browser.approve("call_1").await;
        let words = "The answer is not in the form that it was to have.";
        assert_eq!(browser.error(), Some(words), "{invalid:?}");

        let (routes, _) = refunds(Scripted::answering_with(invalid));
        let paused = complete_response(&routes, "/api/chat", &question()).await;
        let failed = decide(&routes, &paused, true).await;
        assert_eq!((&failed["stopReason"], failed.get("output")), (&json!("error"), None));
        let again = decide(&routes, &paused, true).await;
        let output = (&again["stopReason"], again.get("output"));
        assert_eq!(output, (&json!("error"), None), "{invalid:?}");
    }
}

/// A model whose first answer is not what was asked for.
fn corrected() -> impl Model {
    ModelDouble::new(|request, _| {
        let Some(ModelMessage::User { content }) = request.messages.last() else { panic!() };
        let [UserContent::Text(read)] = &content[..] else { panic!("{content:?}") };
        says(match read.text.contains(r#"it does not fit the schema at "/percent""#) {
            true => "```json\n{\"refunded\": 30, \"percent\": 100}\n```",
            false => r#"{"refunded": 30, "percent": 101}"#,
        })
    })
}

#[tokio::test]
async fn after_an_output_that_does_not_match_the_model_is_asked_once_more() {
    let agent = Agent::new(corrected()).with_output::<Receipt>();
    let completed = complete_response(&app(agent.clone()), "/api/chat", &question()).await;
    assert_eq!(completed["output"], json!({"refunded": 30, "percent": 100}), "{completed}");
    let one_step = app(agent.with_max_steps(1));
    let failed = complete_response(&one_step, "/api/chat", &question()).await;
    assert_eq!(failed["stopReason"], "error", "{failed}");
}

/// The finish reason of the provider has no influence.
#[tokio::test]
async fn an_invalid_output_is_an_error_for_every_finish_reason() {
    for reason in [FinishReason::Other, FinishReason::ToolCalls] {
        let (routes, _) = refunds(Scripted { answer: "I am done.", reason });
        let paused = complete_response(&routes, "/api/chat", &question()).await;
        assert_eq!(decide(&routes, &paused, true).await["stopReason"], "error");
        let (routes, _) = refunds(Scripted { answer: THE_ANSWER, reason });
        let paused = complete_response(&routes, "/api/chat", &question()).await;
        let completed = decide(&routes, &paused, true).await;
        assert_eq!(
            (&completed["stopReason"], &completed["output"]["refunded"]),
            (&json!("stop"), &json!(30))
        );
    }
}

#[test]
fn the_output_is_the_last_text_of_the_last_step() {
    let hosted = json!({"type": "tool-web_search", "toolCallId": "w", "providerExecuted": true,
        "state": "output-available", "input": {}, "output": {}});
    let own = json!({"type": "tool-refund", "toolCallId": "c", "state": "output-available",
        "input": {}, "output": {}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let start = || json!({"type": "step-start"});
    for (parts, expected) in [
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
        assert_eq!(message.output::<u8>().ok(), expected, "{message:?}");
    }
}

#[tokio::test]
async fn an_output_cut_off_by_the_length_limit_is_missing_without_an_error() {
    let (routes, _) =
        refunds(Scripted { answer: r#"{"refunded": 3"#, reason: FinishReason::Length });
    let mut browser = over(routes);
    browser.send("I want it back.").await;
    approve(&mut browser, "call_1").await;
    assert!(browser.messages().last().unwrap().output::<Receipt>().is_err());
}

#[test]
#[should_panic(expected = "structured output must be an object; Array_of_uint8 is not")]
fn an_output_type_that_is_not_an_object_panics_when_the_agent_is_built() {
    let _ = Agent::new(Scripted::answering_with("")).with_output::<Vec<u8>>();
}

#[test]
#[should_panic(expected = "the schema of Letter is not a valid JSON Schema")]
fn an_invalid_pattern_in_the_output_schema_panics_when_the_agent_is_built() {
    #[derive(PartialEq, Deserialize, JsonSchema)]
    struct Letter {
        #[schemars(regex(pattern = "^(Dear"))]
        text: String,
    }
    let _ = Agent::new(Scripted::answering_with("")).with_output::<Letter>();
}
