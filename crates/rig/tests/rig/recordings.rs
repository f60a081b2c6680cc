//! Replays a folder of recorded streams through rig's providers to the browser's message:
//! `RECORDINGS=folder cargo test -p ui-message-stream-rig --test rig recordings -- --ignored --nocapture`.
//!
//! Each line of a file is the data of one event: of Chat Completions, of Responses, or of
//! Anthropic's Messages. A recording with an approval request is continued with the recordings of
//! the same name.

use chat_test_support::browser::{conversation, say};
use rig_agent::AgentBuilder;
use rig_agent::tool::{DynamicTool, ToolOutput};
use rig_core::message::ToolName;
use serde_json::{Map, Value, json};
use test_support::message_contents::MessageContents;
use test_support::recorded_streams::{
    RecordedMessage, TOOL_SEARCH, approval_request, approved_request, as_stream, events, fixture,
    mcp_tool_name,
};
use test_support::recordings_folder::replay_all;
use ui_message_stream::testing::Conversation;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_rig::RigAgent;
use ui_message_stream_rig::RigModel;

use super::agents::browser;
use super::provider::Provider;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Chat,
    Responses,
    Messages,
}

fn kind(recording: &str) -> Kind {
    let first = events(recording).next().unwrap();
    match first["type"].as_str() {
        None => Kind::Chat,
        Some("message_start") => Kind::Messages,
        Some(_) => Kind::Responses,
    }
}

fn recorded(recording: &str, kind: Kind) -> RecordedMessage {
    let mut recorded = match kind {
        Kind::Chat => RecordedMessage::of_chat(recording),
        Kind::Responses => RecordedMessage::of_response(recording),
        Kind::Messages => RecordedMessage::of_messages(recording),
    };
    // rig ignores this call, which the client would have to execute.
    recorded.calls.retain(|(tool, _)| tool != TOOL_SEARCH);
    recorded
}

/// Returns a browser that uses a model of rig, and one that uses an agent of rig. Both have the tools of a recording.
fn browsers(
    provider: &Provider,
    kind: Kind,
    recorded: &RecordedMessage,
) -> [Conversation<'static>; 2] {
    let model = || match kind {
        Kind::Chat => provider.chat(),
        Kind::Responses => provider.responses(),
        Kind::Messages => provider.anthropic("claude-sonnet-4-5"),
    };
    let run = async |_: Map<String, Value>| Ok::<_, ToolError>("sun");
    let agent = Agent::new(RigModel::new(model()));
    let names = recorded.own_tools();
    let agent = names.iter().fold(agent, |agent, name| agent.tool(Tool::new(*name, run)));
    let tools = names.into_iter().map(|name| {
        let (name, schema) = (ToolName::new(name).unwrap(), json!({"type": "object"}));
        DynamicTool::new(name, "Says it.", schema, |_| {
            Box::pin(async { Ok(ToolOutput::text("sun")) })
        })
    });
    let builder = AgentBuilder::new(model()).max_tokens(999).default_max_turns(5);
    let rig = builder.dynamic_tools(tools.collect()).build();
    [conversation(agent), browser(RigAgent::new(rig))]
}

/// Compares the message of a browser with the recorded one.
fn compare(browser: &Conversation<'_>, recorded: &RecordedMessage) -> String {
    assert_eq!(browser.error().is_some(), recorded.is_failure(), "{:?}", browser.error());
    let message = MessageContents::of(browser.messages().last().unwrap());
    assert!(message.text.starts_with(&recorded.text), "{} … {}", recorded.text, message.text);
    recorded.compare(&message)
}

async fn replay(recording: &str) -> String {
    let kind = kind(recording);
    let recorded = recorded(recording, kind);
    let closing = match kind {
        Kind::Chat => "chat/text_is_joined",
        Kind::Responses => "responses/text",
        Kind::Messages => "anthropic/text",
    };
    let has_own_calls = !recorded.own_tools().is_empty();
    let provider = Provider::default();
    let mut summary = String::new();
    for (at, mut browser) in browsers(&provider, kind, &recorded).into_iter().enumerate() {
        provider.respond_with([as_stream(recording), fixture(closing)]);
        let before = provider.requests().len();
        browser.send("Go").await;
        summary = compare(&browser, &recorded);
        // A model reads that its call was cut off. An agent of rig ends there.
        if !recorded.is_cut_off {
            let requests = if has_own_calls { 2 } else { 1 };
            assert_eq!(provider.requests().len() - before, requests, "{at}");
        }
        if has_own_calls || approval_request(recording).is_some() || recorded.is_failure() {
            continue;
        }
        // The provider-executed calls are sent back unchanged.
        say(&mut browser, "And now?").await;
        assert!(sent(&provider, before + 1) == items(recording), "the items were changed");
    }
    format!("{kind:?}: {summary}")
}

fn is_provider_executed(item: &Value) -> bool {
    matches!(item["type"].as_str(), Some("mcp_call" | "web_search_call"))
}

/// Returns the items of the provider-executed calls.
fn items(recording: &str) -> Vec<Value> {
    let items = events(recording).last().unwrap()["response"]["output"].take();
    items
        .as_array()
        .into_iter()
        .flatten()
        .filter(|item| is_provider_executed(item))
        .cloned()
        .collect()
}

fn sent(provider: &Provider, request: usize) -> Vec<Value> {
    let input = provider.requests()[request]["input"].take();
    input
        .as_array()
        .into_iter()
        .flatten()
        .filter(|item| is_provider_executed(item))
        .cloned()
        .collect()
}

/// Replays a recording with an approval request, the user's decision, and the recording that
/// followed it. If that recording belongs to another approval request, its id is replaced.
async fn replay_with_decision(first: &str, second: &str) -> String {
    let approval_request = approval_request(first).unwrap();
    let (id, tool) = (approval_request["id"].as_str().unwrap(), mcp_tool_name(&approval_request));
    let approved = approved_request(second);
    let second = approved.as_ref().map_or(second.to_owned(), |other| second.replace(&**other, id));
    let provider = Provider::default();
    let mut summary = String::new();
    let asked = recorded(first, Kind::Responses);
    for mut browser in browsers(&provider, Kind::Responses, &asked) {
        provider.respond_with([as_stream(first), as_stream(&second)]);
        let before = provider.requests().len();
        say(&mut browser, "Go").await;
        match approved {
            Some(_) => browser.approve(&tool).await,
            None => browser.deny(&tool, "not now").await,
        }
        let input = provider.requests()[before + 1]["input"].as_array().unwrap().clone();
        let [.., request, response] = &input[..] else { panic!("{input:?}") };
        assert_eq!(request, &approval_request);
        assert_eq!(response["type"], "mcp_approval_response");
        assert_eq!(response["approval_request_id"], id);
        assert_eq!(response["approve"], approved.is_some());
        let recorded =
            recorded(&second, Kind::Responses).after_request(recorded(first, Kind::Responses));
        summary = format!("forwarded {response}; {}", compare(&browser, &recorded));
    }
    summary
}

#[tokio::test]
#[ignore = "needs a folder of recordings, in RECORDINGS"]
async fn every_recording_arrives_complete() {
    replay_all(replay, |recording| approval_request(recording).is_some(), replay_with_decision)
        .await;
}
