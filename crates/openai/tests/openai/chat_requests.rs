//! The requests of `ChatCompletions`: histories in the form that each kind of server accepts.

use axum::http::StatusCode;
use chat_test_support::browser::{asked, say};
use futures::StreamExt;
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::model::{
    AssistantContent, Model, ModelMessage, ModelRequest, ReasoningContent, TextContent,
    ToolCallContent, ToolContent, ToolResult, ToolResultContent,
};
use ui_message_stream_openai::{ChatCompletions, Endpoint};

use super::provider::{Provider, fixture};

/// Returns the messages of the request that the server receives.
async fn sent_messages(
    configure: impl FnOnce(ChatCompletions) -> ChatCompletions,
    messages: Vec<ModelMessage>,
) -> Vec<Value> {
    let provider = Provider::with_streams([fixture("chat/text_is_joined")]).await;
    let endpoint = Endpoint::new(&provider.address).unwrap();
    let model = configure(ChatCompletions::new(endpoint, "a-model"));
    let events: Vec<_> = model.call(ModelRequest::new(messages)).collect().await;
    assert!(events.iter().all(Result::is_ok), "{events:?}");
    provider.requests()[0].body["messages"].as_array().unwrap().clone()
}

fn text(text: &str) -> AssistantContent {
    AssistantContent::Text(TextContent::new(text))
}

fn call(id: &str) -> AssistantContent {
    let input = Json::parse("{}").unwrap();
    AssistantContent::ToolCall(ToolCallContent::new(id, "tides", input))
}

fn output(id: &str) -> ToolResultContent {
    ToolResultContent::new(id, "tides", ToolResult::Output(Json::string("low")))
}

fn result(id: &str) -> ModelMessage {
    ModelMessage::tool(vec![ToolContent::Result(output(id))])
}

#[tokio::test]
async fn reasoning_content_is_sent_on_every_assistant_message_even_if_it_is_blank() {
    let reasoning_part = AssistantContent::Reasoning(ReasoningContent::new("They ask."));
    let messages = || {
        vec![
            ModelMessage::user("Tides?"),
            ModelMessage::assistant(vec![reasoning_part.clone(), call("a")]),
            result("a"),
            ModelMessage::assistant(vec![call("b")]),
            result("b"),
            ModelMessage::assistant(vec![text("Low.")]),
            ModelMessage::user("Thanks"),
        ]
    };
    let sent_with_reasoning =
        sent_messages(ChatCompletions::with_reasoning_content, messages()).await;
    let reasoning: Vec<&Value> = sent_with_reasoning
        .iter()
        .filter(|message| message["role"] == "assistant")
        .map(|message| &message["reasoning_content"])
        .collect();
    assert_eq!(reasoning, [&json!("They ask."), &json!(" "), &json!(" ")]);
    let sent_by_default = sent_messages(|model| model, messages()).await;
    assert!(sent_by_default.iter().all(|message| message.get("reasoning_content").is_none()));
}

#[tokio::test]
async fn text_that_follows_a_result_of_the_provider_is_sent_after_that_result() {
    let provider_executed = |id: &str| {
        let AssistantContent::ToolCall(mut call) = call(id) else { unreachable!() };
        call.provider_executed = true;
        [AssistantContent::ToolCall(call), AssistantContent::ToolResult(output(id))]
    };
    let mut content = vec![text("I look."), call("own")];
    content.extend(provider_executed("h1"));
    content.extend(provider_executed("h2"));
    content.push(text("It is low."));
    let messages = vec![
        ModelMessage::user("Tides?"),
        ModelMessage::assistant(content),
        result("own"),
        ModelMessage::user("Thanks"),
    ];
    let sent = sent_messages(|model| model, messages).await;
    let summary = |message: &Value| {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let calls: Vec<&str> = calls.filter_map(|call| call["id"].as_str()).collect();
        let id = message["tool_call_id"].as_str().unwrap_or_default();
        let content = message["content"].as_str().unwrap_or_default();
        format!("{} {content} {}{id}", message["role"].as_str().unwrap(), calls.join(","))
    };
    let sent: Vec<String> = sent.iter().map(summary).collect();
    assert_eq!(
        sent,
        [
            "user Tides? ",
            "assistant I look. h1",
            "tool low h1",
            "assistant  h2",
            "tool low h2",
            "assistant It is low. own",
            "tool low own",
            "user Thanks ",
        ]
    );
}

/// Returns a history with the call ids of another provider, and with a user message directly after
/// tool results.
fn history_that_mistral_refuses() -> Vec<ModelMessage> {
    vec![
        ModelMessage::user("Tides?"),
        ModelMessage::assistant(vec![call("call_a/of:another"), call("D681PevKs")]),
        ModelMessage::tool(vec![
            ToolContent::Result(output("call_a/of:another")),
            ToolContent::Result(output("D681PevKs")),
        ]),
        ModelMessage::user("Never mind"),
        ModelMessage::assistant(vec![call("call_b")]),
        result("call_b"),
        ModelMessage::assistant(vec![text("Low.")]),
        ModelMessage::user("Thanks"),
    ]
}

/// Returns why Mistral would refuse these messages, according to the rules of its template.
fn refused_by_mistral(messages: &[Value]) -> Option<String> {
    let is_id = |id: &Value| {
        let id = id.as_str().unwrap();
        id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let mut open: Vec<Value> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let previous_role = at.checked_sub(1).and_then(|at| messages[at]["role"].as_str());
        let role = message["role"].as_str().unwrap();
        if previous_role == Some("tool") && role == "user" {
            return Some(format!("{at}: Unexpected role 'user' after role 'tool'"));
        }
        if role == "tool" {
            let id = &message["tool_call_id"];
            let Some(position) = open.iter().position(|open| open == id) else {
                return Some(format!("{at}: Unexpected tool call id {id}"));
            };
            open.remove(position);
        }
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        open.extend(calls.map(|call| call["id"].clone()));
        if let Some(id) = open.iter().find(|id| !is_id(id)) {
            return Some(format!("{at}: Tool call id was {id}"));
        }
    }
    None
}

#[tokio::test]
async fn a_history_that_mistral_refuses_is_changed_for_mistral() {
    let by_default = sent_messages(|model| model, history_that_mistral_refuses()).await;
    assert!(refused_by_mistral(&by_default).is_some());
    let adapted = sent_messages(ChatCompletions::for_mistral, history_that_mistral_refuses()).await;
    assert_eq!(refused_by_mistral(&adapted), None);
    assert_eq!(adapted[1]["tool_calls"][1]["id"], "D681PevKs", "a valid id is unchanged");
    let inserted = json!({"role": "assistant", "content": "(Nothing was said here.)"});
    assert_eq!((&adapted[4], adapted.len()), (&inserted, by_default.len() + 1));
    let again = sent_messages(ChatCompletions::for_mistral, history_that_mistral_refuses()).await;
    assert_eq!(adapted, again, "the ids are the same in every request");
}

#[tokio::test]
async fn a_request_is_repeated_without_stream_options_if_the_server_refuses_them() {
    let refusal = json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
        "msg": "Extra inputs are not permitted"}]});
    let other_error = json!({"error": {"message": "Unknown model"}});
    for (status, body, calls) in [
        (StatusCode::UNPROCESSABLE_ENTITY, &refusal, 2),
        (StatusCode::BAD_REQUEST, &refusal, 2),
        (StatusCode::UNAUTHORIZED, &refusal, 1),
        (StatusCode::BAD_REQUEST, &other_error, 1),
    ] {
        let text = || (StatusCode::OK, fixture("chat/text_is_joined"));
        let responses = [(status, body.to_string()), text(), text()];
        let provider = Provider::with_responses(responses).await;
        let model = ChatCompletions::new(Endpoint::new(&provider.address).unwrap(), "a-model");
        let mut browser = asked(model, "Hello").await;
        assert_eq!(browser.error().is_none(), calls == 2);
        let requests = provider.requests();
        assert_eq!(requests.len(), calls);
        if let [first, second] = &requests[..] {
            assert!(first.body.get("stream_options").is_some());
            assert_eq!(second.body.get("stream_options"), None);
            assert_eq!(first.body["messages"], second.body["messages"]);
            say(&mut browser, "And now?").await;
            let requests = provider.requests();
            assert_eq!(requests.len(), 3, "the server is not asked again");
            assert_eq!(requests[2].body.get("stream_options"), None);
        }
    }
}
