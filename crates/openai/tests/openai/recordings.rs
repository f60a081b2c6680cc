//! Replays a folder of recorded streams through the adapters to the browser's message:
//! `RECORDINGS=folder cargo test -p ui-message-stream-openai --test openai recordings -- --ignored --nocapture`.
//!
//! Each line of a file is the data of one event.

use chat_test_support::browser::conversation;
use serde_json::{Map, Value, json};
use test_support::message_contents::MessageContents;
use test_support::recorded_streams::{
    RecordedMessage, approval_request, approved_request, as_stream, fixture, is_chat, mcp_tool_name,
};
use test_support::recordings_folder::replay_all;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};

use super::provider::Provider;

type AnyObject = Map<String, Value>;

fn recorded(recording: &str) -> RecordedMessage {
    match is_chat(recording) {
        true => RecordedMessage::of_chat(recording),
        false => RecordedMessage::of_response(recording),
    }
}

fn agent(provider: &Provider, recording: &str) -> Agent {
    let endpoint = Endpoint::new(&provider.address).unwrap();
    let agent = match is_chat(recording) {
        true => Agent::new(ChatCompletions::new(endpoint, "recorded")),
        false => Agent::new(Responses::new(endpoint, "recorded")),
    };
    let recorded = recorded(recording);
    recorded.own_tools().into_iter().fold(agent, |agent, name| {
        let tool = async |_: AnyObject| Ok::<_, ToolError>(json!({"tools": []}));
        agent.tool(Tool::new(name, tool))
    })
}

/// Compares a message with the recorded one. `closing` is the text of the step that follows the
/// results of the tools.
fn compare(message: &MessageContents, recorded: &RecordedMessage, closing: &str) -> String {
    assert_eq!(message.text, format!("{}{closing}", recorded.text));
    assert_eq!(message.sources, recorded.sources);
    recorded.compare(message)
}

async fn replay(recording: &str) -> String {
    let closing = if is_chat(recording) { "chat/text_is_joined" } else { "responses/text" };
    let provider = Provider::with_streams([as_stream(recording), fixture(closing)]).await;
    let mut browser = conversation(agent(&provider, recording));
    browser.send("Go").await;
    let recorded = recorded(recording);
    assert_eq!(browser.error().is_some(), recorded.is_failure(), "{:?}", browser.error());
    let closing = match provider.requests().len() {
        1 => "",
        _ if is_chat(recording) => "The harbour is “calm” — 🚢\ntoday.",
        _ => "All is “calm” 🚢.",
    };
    let message = browser.messages().last().map(MessageContents::of).unwrap_or_default();
    compare(&message, &recorded, closing)
}

/// Replays a recording with an approval request, the user's decision, and the recording that
/// followed it. If that recording belongs to another approval request, its id is replaced.
async fn replay_with_decision(first: &str, second: &str) -> String {
    let request = approval_request(first).unwrap();
    let (id, tool) = (request["id"].as_str().unwrap(), mcp_tool_name(&request));
    let approved = approved_request(second);
    let second = approved.as_ref().map_or(second.to_owned(), |other| second.replace(&**other, id));
    let provider = Provider::with_streams([as_stream(first), as_stream(&second)]).await;
    let mut browser = conversation(agent(&provider, first));
    browser.send("Go").await;
    match approved {
        Some(_) => browser.approve(&tool).await,
        None => browser.deny(&tool, "not now").await,
    }
    assert_eq!(browser.error(), None);
    let body = &provider.requests()[1].body;
    let response = body["input"].as_array().unwrap().last().unwrap();
    assert_eq!(response["type"], "mcp_approval_response");
    assert_eq!(response["approval_request_id"], id);
    assert_eq!(response["approve"], approved.is_some());
    let recorded = recorded(&second).after_request(recorded(first));
    let summary = compare(&MessageContents::of(browser.messages().last().unwrap()), &recorded, "");
    format!("forwarded {response}; {summary}")
}

#[tokio::test]
#[ignore = "needs a folder of recordings, in RECORDINGS"]
async fn every_recording_arrives_complete() {
    replay_all(replay, |recording| approval_request(recording).is_some(), replay_with_decision)
        .await;
}
