//! Replays a folder of recorded streams through rig's providers to the browser's message:
//! `RECORDINGS=folder cargo test -p ui-message-stream-rig --test rig recordings -- --ignored --nocapture`.
//!
//! Each line of a file is the data of one event: of Chat Completions, of Responses, or of
//! Anthropic's Messages. The expected contents are read from the file without rig: for Responses,
//! from the complete response in the last event. A recording with an approval request is continued
//! with the recordings of the same name.

use std::collections::BTreeMap;

use rig_agent::AgentBuilder;
use rig_agent::tool::{DynamicTool, ToolOutput};
use rig_core::message::ToolName;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::browser::{Held, conversation};
use test_support::recordings_folder::replay_all;
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream::testing::Conversation;
use ui_message_stream_rig::RigAgent;
use ui_message_stream_rig::RigModel;

use super::agents::browser;
use super::provider::{Provider, as_stream, fixture};

/// Anything at all.
#[derive(PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
struct Anything(Value);

/// The expected contents of a message.
#[derive(Debug, Default, PartialEq)]
struct Expected {
    text: String,
    reasoning: String,
    calls: Vec<(String, Value)>,
    /// The outputs of the provider-executed calls.
    outputs: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Chat,
    Responses,
    Messages,
}

fn lines(recording: &str) -> impl Iterator<Item = Value> {
    recording.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn kind(recording: &str) -> Kind {
    let first = lines(recording).next().unwrap();
    match first["type"].as_str() {
        None => Kind::Chat,
        Some("message_start") => Kind::Messages,
        Some(_) => Kind::Responses,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn parse(text: &str) -> Value {
    if text.is_empty() { json!({}) } else { serde_json::from_str(text).unwrap() }
}

fn parsed(calls: Vec<(String, String)>) -> Vec<(String, Value)> {
    calls.into_iter().map(|(name, arguments)| (name, parse(&arguments))).collect()
}

fn expected_of_chat(recording: &str) -> Expected {
    let mut expected = Expected::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    for chunk in lines(recording) {
        let delta = &chunk["choices"][0]["delta"];
        expected.text.push_str(text(&delta["content"]));
        expected.reasoning.push_str(text(&delta["reasoning_content"]));
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &piece["function"];
            if let Some(name) = function["name"].as_str() {
                calls.push((name.to_owned(), String::new()));
            }
            calls.last_mut().unwrap().1.push_str(text(&function["arguments"]));
        }
    }
    Expected { calls: parsed(calls), ..expected }
}

fn expected_of_responses(recording: &str) -> Expected {
    let mut expected = Expected::default();
    let last = lines(recording).last().unwrap();
    let arguments = |item: &Value| parse(text(&item["arguments"]));
    let mcp_name =
        |item: &Value| format!("mcp.{}.{}", text(&item["server_label"]), text(&item["name"]));
    for item in last["response"]["output"].as_array().unwrap() {
        match text(&item["type"]) {
            "message" => {
                for piece in item["content"].as_array().unwrap() {
                    expected.text.push_str(text(&piece["text"]));
                }
            }
            "reasoning" => {
                for piece in item["summary"].as_array().unwrap() {
                    expected.reasoning.push_str(text(&piece["text"]));
                }
            }
            "function_call" => {
                expected.calls.push((text(&item["name"]).to_owned(), arguments(item)))
            }
            "mcp_approval_request" => expected.calls.push((mcp_name(item), arguments(item))),
            "mcp_call" => {
                expected.calls.push((mcp_name(item), arguments(item)));
                expected.outputs.push(item["output"].clone());
            }
            "web_search_call" => {
                let mut action = item["action"].clone();
                expected.outputs.push(json!({"status": item["status"], "action": action}));
                action.as_object_mut().unwrap().remove("sources");
                expected.calls.push(("web_search".to_owned(), action));
            }
            // rig ignores the first, which the client would have to execute.
            "tool_search_call" | "mcp_list_tools" => {}
            other => panic!("a recording holds {other}"),
        }
    }
    expected
}

fn expected_of_messages(recording: &str) -> Expected {
    let mut expected = Expected::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in lines(recording) {
        let (block, delta) = (&event["content_block"], &event["delta"]);
        if block["type"] == "tool_use" {
            calls.push((text(&block["name"]).to_owned(), String::new()));
        }
        match text(&delta["type"]) {
            "text_delta" => expected.text.push_str(text(&delta["text"])),
            "thinking_delta" => expected.reasoning.push_str(text(&delta["thinking"])),
            "input_json_delta" => {
                calls.last_mut().unwrap().1.push_str(text(&delta["partial_json"]))
            }
            _ => {}
        }
    }
    Expected { calls: parsed(calls), ..expected }
}

/// Returns a browser that uses a model of rig, and one that uses an agent of rig.
fn browsers(provider: &Provider, kind: Kind) -> [Conversation<'static>; 2] {
    let model = || match kind {
        Kind::Chat => provider.chat(),
        Kind::Responses => provider.responses(),
        Kind::Messages => provider.anthropic("claude-sonnet-4-5"),
    };
    let run = async |_: BTreeMap<String, Anything>| Ok::<_, ToolError>("sun");
    let agent = Agent::new(RigModel::new(model())).tool(Tool::new("weather", run));
    let schema = json!({"type": "object"});
    let weather = DynamicTool::new(ToolName::new("weather").unwrap(), "Says it.", schema, |_| {
        Box::pin(async { Ok(ToolOutput::text("sun")) })
    });
    let builder = AgentBuilder::new(model()).max_tokens(999).default_max_turns(5);
    let rig = builder.dynamic_tools(vec![weather]).build();
    [conversation(agent), browser(RigAgent::new(rig))]
}

/// Compares the contents of the message with the expected ones.
fn compare(browser: &Conversation<'_>, expected: &Expected) -> String {
    assert_eq!(browser.error(), None);
    let contents = Held::of(browser.messages().last().unwrap());
    assert!(contents.text.starts_with(&expected.text), "{} … {}", expected.text, contents.text);
    assert_eq!(contents.reasoning, expected.reasoning);
    let calls: Vec<(String, Value)> =
        contents.calls.iter().map(|(tool, input, ..)| (tool.clone(), input.clone())).collect();
    assert_eq!(calls, expected.calls);
    let (own_calls, provider_calls): (Vec<_>, Vec<_>) =
        contents.calls.iter().partition(|call| call.0 == "weather");
    assert!(own_calls.iter().all(|call| call.2 == "output-available"), "{own_calls:?}");
    let completed = provider_calls.into_iter().filter(|call| call.2 == "output-available");
    let outputs: Vec<Value> = completed.map(|call| call.3.clone()).collect();
    assert_eq!(outputs, expected.outputs);
    let (text, reasoning) = (expected.text.len(), expected.reasoning.len());
    let states: Vec<String> =
        contents.calls.iter().map(|(tool, _, state, _)| format!("{tool} ({state})")).collect();
    format!("text {text} B, reasoning {reasoning} B, calls [{}]", states.join(", "))
}

async fn replay(recording: &str) -> String {
    let kind = kind(recording);
    let (expected, closing) = match kind {
        Kind::Chat => (expected_of_chat(recording), "chat/text_is_joined"),
        Kind::Responses => (expected_of_responses(recording), "responses/text"),
        Kind::Messages => (expected_of_messages(recording), "anthropic/text"),
    };
    let has_own_calls = expected.calls.iter().any(|(name, _)| name == "weather");
    let provider = Provider::default();
    let mut summary = String::new();
    for (at, mut browser) in browsers(&provider, kind).into_iter().enumerate() {
        provider.respond_with([as_stream(recording), fixture(closing)]);
        let before = provider.requests().len();
        browser.send("Go").await;
        summary = compare(&browser, &expected);
        assert_eq!(provider.requests().len() - before, if has_own_calls { 2 } else { 1 }, "{at}");
        if has_own_calls || approval_request(recording).is_some() {
            continue;
        }
        // The provider-executed calls are sent back unchanged.
        browser.send("And now?").await;
        assert_eq!(browser.error(), None);
        assert!(sent(&provider, before + 1) == items(recording), "the items were changed");
    }
    format!("{kind:?}: {summary}")
}

fn is_provider_executed(item: &Value) -> bool {
    matches!(text(&item["type"]), "mcp_call" | "web_search_call")
}

/// Returns the items of the provider-executed calls.
fn items(recording: &str) -> Vec<Value> {
    let items = lines(recording).last().unwrap()["response"]["output"].take();
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

/// Returns the approval request in a recording, if there is one.
fn approval_request(recording: &str) -> Option<Value> {
    let is_request = |event: &Value| event["item"]["type"] == "mcp_approval_request";
    lines(recording).filter(is_request).last().map(|mut event| event["item"].take())
}

/// Returns the id of the approval request that the call in a recording was approved by.
fn approved_request(recording: &str) -> Option<String> {
    let id_of = |event: Value| Some(event["item"]["approval_request_id"].as_str()?.to_owned());
    lines(recording).find_map(id_of)
}

/// Replays a recording with an approval request, the user's decision, and the recording that
/// followed it. If that recording belongs to another approval request, its id is replaced.
async fn replay_with_decision(first: &str, second: &str) -> String {
    let approval_request = approval_request(first).unwrap();
    let tool = format!(
        "mcp.{}.{}",
        text(&approval_request["server_label"]),
        text(&approval_request["name"])
    );
    let approved = approved_request(second);
    let id = text(&approval_request["id"]);
    let second = approved.as_ref().map_or(second.to_owned(), |other| second.replace(&**other, id));
    let provider = Provider::default();
    let mut summary = String::new();
    for mut browser in browsers(&provider, Kind::Responses) {
        provider.respond_with([as_stream(first), as_stream(&second)]);
        let before = provider.requests().len();
        browser.send("Go").await;
        assert_eq!(browser.error(), None);
        match approved {
            Some(_) => browser.approve(&tool).await,
            None => browser.deny(&tool, "not now").await,
        }
        let input = provider.requests()[before + 1]["input"].as_array().unwrap().clone();
        let [.., request, response] = &input[..] else { panic!("{input:?}") };
        assert_eq!(request, &approval_request);
        assert_eq!(response["type"], "mcp_approval_response");
        assert_eq!(response["approval_request_id"], *id);
        assert_eq!(response["approve"], approved.is_some());
        let (mut expected, earlier) =
            (expected_of_responses(&second), expected_of_responses(first));
        expected.reasoning = earlier.reasoning + &expected.reasoning;
        expected.calls = earlier.calls;
        summary = format!("forwarded {response}; {}", compare(&browser, &expected));
    }
    summary
}

#[tokio::test]
#[ignore = "needs a folder of recordings, in RECORDINGS"]
async fn every_recording_arrives_complete() {
    replay_all(replay, |recording| approval_request(recording).is_some(), replay_with_decision)
        .await;
}
