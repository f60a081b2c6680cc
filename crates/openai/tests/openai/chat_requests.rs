//! What Chat Completions are asked: histories, as each kind of server takes them.

use axum::http::StatusCode;
use futures::StreamExt;
use serde_json::{Value, json};
use test_support::browser::{agent, conversation};
use ui_message_stream::Json;
use ui_message_stream::model::{
    AssistantContent, Model, ModelMessage, ModelRequest, ReasoningContent, TextContent,
    ToolCallContent, ToolContent, ToolResult, ToolResultContent,
};
use ui_message_stream_openai::{ChatCompletions, Endpoint};

use super::provider::{Provider, fixture};

/// The messages that a server is sent of these.
async fn sent(
    set_up: impl FnOnce(ChatCompletions) -> ChatCompletions,
    messages: Vec<ModelMessage>,
) -> Vec<Value> {
    let provider = Provider::streaming([fixture("chat/text_is_joined")]).await;
    let endpoint = Endpoint::new(&provider.address).unwrap();
    let model = set_up(ChatCompletions::new(endpoint, "a-model"));
    let said: Vec<_> = model.call(ModelRequest::new(messages)).collect().await;
    assert!(said.iter().all(Result::is_ok), "{said:?}");
    provider.asked()[0].body["messages"].as_array().unwrap().clone()
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
async fn thoughts_that_are_sent_back_stand_on_every_message_though_there_were_none() {
    let thought = AssistantContent::Reasoning(ReasoningContent::new("They ask."));
    let messages = || {
        vec![
            ModelMessage::user("Tides?"),
            ModelMessage::assistant(vec![thought.clone(), call("a")]),
            result("a"),
            ModelMessage::assistant(vec![call("b")]),
            result("b"),
            ModelMessage::assistant(vec![text("Low.")]),
            ModelMessage::user("Thanks"),
        ]
    };
    let sent_back = sent(ChatCompletions::with_reasoning_content, messages()).await;
    let thoughts: Vec<&Value> = sent_back
        .iter()
        .filter(|message| message["role"] == "assistant")
        .map(|message| &message["reasoning_content"])
        .collect();
    assert_eq!(thoughts, [&json!("They ask."), &json!(" "), &json!(" ")]);
    let as_usual = sent(|model| model, messages()).await;
    assert!(as_usual.iter().all(|message| message.get("reasoning_content").is_none()));
}

#[tokio::test]
async fn what_was_said_upon_a_result_of_the_provider_stands_behind_it() {
    let hosted = |id: &str| {
        let AssistantContent::ToolCall(mut call) = call(id) else { unreachable!() };
        call.provider_executed = true;
        [AssistantContent::ToolCall(call), AssistantContent::ToolResult(output(id))]
    };
    let mut content = vec![text("I look."), call("own")];
    content.extend(hosted("h1"));
    content.extend(hosted("h2"));
    content.push(text("It is low."));
    let messages = vec![
        ModelMessage::user("Tides?"),
        ModelMessage::assistant(content),
        result("own"),
        ModelMessage::user("Thanks"),
    ];
    let sent = sent(|model| model, messages).await;
    let short = |message: &Value| {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let calls: Vec<&str> = calls.filter_map(|call| call["id"].as_str()).collect();
        let id = message["tool_call_id"].as_str().unwrap_or_default();
        let said = message["content"].as_str().unwrap_or_default();
        format!("{} {said} {}{id}", message["role"].as_str().unwrap(), calls.join(","))
    };
    let sent: Vec<String> = sent.iter().map(short).collect();
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

/// A call that waits for the person, who writes on; and one of another provider.
fn left_open() -> Vec<ModelMessage> {
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

/// Why Mistral would refuse these messages, by the rules of its template.
fn refused_by_mistral(messages: &[Value]) -> Option<String> {
    let is_id = |id: &Value| {
        let id = id.as_str().unwrap();
        id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let mut open: Vec<Value> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| messages[at]["role"].as_str());
        let role = message["role"].as_str().unwrap();
        if before == Some("tool") && role == "user" {
            return Some(format!("{at}: Unexpected role 'user' after role 'tool'"));
        }
        if role == "tool" {
            let id = &message["tool_call_id"];
            let Some(place) = open.iter().position(|open| open == id) else {
                return Some(format!("{at}: Unexpected tool call id {id}"));
            };
            open.remove(place);
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
async fn mistral_is_sent_what_it_takes() {
    let as_usual = sent(|model| model, left_open()).await;
    assert!(refused_by_mistral(&as_usual).is_some());
    let fitted = sent(ChatCompletions::for_mistral, left_open()).await;
    assert_eq!(refused_by_mistral(&fitted), None);
    assert_eq!(fitted[1]["tool_calls"][1]["id"], "D681PevKs", "what it takes stays");
    let between = json!({"role": "assistant", "content": "(Nothing was said here.)"});
    assert_eq!((&fitted[4], fitted.len()), (&between, as_usual.len() + 1));
    let again = sent(ChatCompletions::for_mistral, left_open()).await;
    assert_eq!(fitted, again, "the same id every time");
}

#[tokio::test]
async fn a_server_that_takes_no_stream_options_is_asked_without() {
    let detail = json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
        "msg": "Extra inputs are not permitted"}]});
    let other = json!({"error": {"message": "Unknown model"}});
    for (status, said, times) in [
        (StatusCode::UNPROCESSABLE_ENTITY, &detail, 2),
        (StatusCode::BAD_REQUEST, &detail, 2),
        (StatusCode::UNAUTHORIZED, &detail, 1),
        (StatusCode::BAD_REQUEST, &other, 1),
    ] {
        let answers =
            [(status, said.to_string()), (StatusCode::OK, fixture("chat/text_is_joined"))];
        let provider = Provider::answering(answers).await;
        let model = ChatCompletions::new(Endpoint::new(&provider.address).unwrap(), "a-model");
        let mut browser = conversation(agent(model));
        browser.send("Hello").await;
        assert_eq!(browser.error().is_none(), times == 2);
        let asked = provider.asked();
        assert_eq!(asked.len(), times);
        if let [first, then] = &asked[..] {
            assert!(first.body.get("stream_options").is_some());
            assert_eq!(then.body.get("stream_options"), None);
            assert_eq!(first.body["messages"], then.body["messages"]);
        }
    }
}
