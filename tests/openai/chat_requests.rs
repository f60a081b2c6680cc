//! What Chat Completions are asked: histories, as each kind of server takes them.

use futures::StreamExt;
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::agent::{Model, ModelRequest};
use ui_message_stream::model::openai::{ChatCompletions, Endpoint};
use ui_message_stream::model_message::{
    AssistantContent, ModelMessage, ReasoningContent, TextContent, ToolCallContent, ToolContent,
    ToolResult, ToolResultContent,
};

use super::provider::{Provider, fixture};

/// The messages that a server is sent of these.
async fn sent(
    set_up: impl FnOnce(ChatCompletions) -> ChatCompletions,
    messages: Vec<ModelMessage>,
) -> Vec<Value> {
    let provider = Provider::streaming([fixture("chat/text_is_joined")]).await;
    let endpoint = Endpoint::at(&provider.address).unwrap();
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
    let sent_back = sent(ChatCompletions::with_reasoning_sent_back, messages()).await;
    let thoughts: Vec<&Value> = sent_back
        .iter()
        .filter(|message| message["role"] == "assistant")
        .map(|message| &message["reasoning_content"])
        .collect();
    assert_eq!(thoughts, [&json!("They ask."), &json!(" "), &json!(" ")]);
    let as_usual = sent(|model| model, messages()).await;
    assert!(as_usual.iter().all(|message| message.get("reasoning_content").is_none()));
}
