//! Replays a folder of recorded streams through the adapters to the browser's message:
//! `RECORDINGS=folder cargo test -p ui-message-stream-openai --test openai recordings -- --ignored --nocapture`.
//!
//! Each line of a file is the data of one event. The expected contents are read from the file
//! without the adapters: for Chat Completions the joined deltas, for Responses the complete
//! response in the last event.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::browser::{Held, conversation};
use test_support::recordings_folder::replay_all;
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};

use super::provider::{Provider, as_stream, fixture};

/// Anything at all.
#[derive(PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
struct Anything(Value);

type Call = (String, Value);

/// The expected contents of a message.
#[derive(Debug, Default, PartialEq)]
struct Expected {
    text: String,
    reasoning: String,
    calls: Vec<Call>,
    /// The outputs of the provider-executed calls.
    outputs: Vec<Value>,
    sources: Vec<String>,
}

fn lines(recording: &str) -> impl Iterator<Item = Value> {
    recording.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn is_chat(recording: &str) -> bool {
    lines(recording).next().unwrap().get("choices").is_some()
}

fn expected_of_chat(recording: &str) -> Expected {
    let mut expected = Expected::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    for chunk in lines(recording) {
        let delta = &chunk["choices"][0]["delta"];
        expected.text.push_str(delta["content"].as_str().unwrap_or_default());
        expected.reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &piece["function"];
            if let Some(name) = function["name"].as_str() {
                calls.push((name.to_owned(), String::new()));
            }
            let arguments = function["arguments"].as_str().unwrap_or_default();
            calls.last_mut().unwrap().1.push_str(arguments);
        }
    }
    let parsed = calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap()));
    expected.calls = parsed.collect();
    expected
}

fn expected_of_response(recording: &str) -> Expected {
    let mut expected = Expected::default();
    let last = lines(recording).last().unwrap();
    let arguments = |item: &Value| match &item["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        other => other.clone(),
    };
    let name = |item: &Value| {
        let (server, name) = (item["server_label"].as_str(), item["name"].as_str().unwrap());
        format!("mcp.{}.{name}", server.unwrap())
    };
    for item in last["response"]["output"].as_array().unwrap() {
        match item["type"].as_str().unwrap() {
            "message" => {
                for piece in item["content"].as_array().unwrap() {
                    expected.text.push_str(piece["text"].as_str().unwrap());
                    let sources = piece["annotations"].as_array().unwrap().iter();
                    let urls = sources.map(|source| source["url"].as_str().unwrap().to_owned());
                    expected.sources.extend(urls);
                }
            }
            "reasoning" => {
                for piece in item["summary"].as_array().unwrap() {
                    expected.reasoning.push_str(piece["text"].as_str().unwrap());
                }
            }
            "tool_search_call" => expected.calls.push(("tool_search".to_owned(), arguments(item))),
            "mcp_approval_request" => expected.calls.push((name(item), arguments(item))),
            "mcp_call" => {
                expected.calls.push((name(item), arguments(item)));
                expected.outputs.push(item["output"].clone());
            }
            "web_search_call" => {
                let mut action = item["action"].clone();
                expected.outputs.push(json!({"status": item["status"], "action": action}));
                action.as_object_mut().unwrap().remove("sources");
                expected.calls.push(("web_search".to_owned(), action));
            }
            "mcp_list_tools" => {}
            other => panic!("a recording holds {other}"),
        }
    }
    expected
}

fn agent(provider: &Provider, recording: &str) -> Agent {
    let endpoint = Endpoint::new(&provider.address).unwrap();
    let agent = match is_chat(recording) {
        true => Agent::new(ChatCompletions::new(endpoint, "recorded")),
        false => Agent::new(Responses::new(endpoint, "recorded")),
    };
    let weather =
        Tool::new("weather", async |_: BTreeMap<String, Anything>| Ok::<_, ToolError>("sun"));
    let find_tools = async |_: BTreeMap<String, Anything>| Ok::<_, ToolError>(json!({"tools": []}));
    agent.tool(weather).tool(Tool::new("tool_search", find_tools))
}

/// Compares the contents of the message with the expected ones. `closing` is the text of the step
/// that follows the results of the tools.
fn compare(contents: &Held, expected: &Expected, closing: &str) -> String {
    assert_eq!(contents.text, format!("{}{closing}", expected.text));
    assert_eq!(contents.reasoning, expected.reasoning);
    let calls: Vec<Call> =
        contents.calls.iter().map(|(tool, input, ..)| (tool.clone(), input.clone())).collect();
    assert_eq!(calls, expected.calls);
    let (own_calls, provider_calls): (Vec<_>, Vec<_>) =
        contents.calls.iter().partition(|call| matches!(&*call.0, "weather" | "tool_search"));
    assert!(own_calls.iter().all(|call| call.2 == "output-available"), "{own_calls:?}");
    let outputs: Vec<Value> = provider_calls
        .into_iter()
        .filter(|call| call.2 == "output-available")
        .map(|call| call.3.clone())
        .collect();
    assert_eq!(outputs, expected.outputs);
    assert_eq!(contents.sources, expected.sources);
    let states: Vec<String> =
        contents.calls.iter().map(|(tool, _, state, _)| format!("{tool} ({state})")).collect();
    format!(
        "text {} B, reasoning {} B, sources {}, calls [{}]",
        expected.text.len(),
        expected.reasoning.len(),
        expected.sources.len(),
        states.join(", "),
    )
}

async fn replay(recording: &str) -> String {
    let expected = if is_chat(recording) {
        expected_of_chat(recording)
    } else {
        expected_of_response(recording)
    };
    let closing = if is_chat(recording) { "chat/text_is_joined" } else { "responses/text" };
    let provider = Provider::with_streams([as_stream(recording), fixture(closing)]).await;
    let mut browser = conversation(agent(&provider, recording));
    browser.send("Go").await;
    assert_eq!(browser.error(), None);
    let closing = match provider.requests().len() {
        1 => "",
        _ if is_chat(recording) => "The harbour is “calm” — 🚢\ntoday.",
        _ => "All is “calm” 🚢.",
    };
    compare(&Held::of(browser.messages().last().unwrap()), &expected, closing)
}

/// Returns the id and the tool name of the approval request in a recording, if there is one.
fn approval_request(recording: &str) -> Option<(String, String)> {
    let request_of = |event: Value| {
        let item = event.get("item")?;
        let is_request = item["type"] == "mcp_approval_request";
        let name = format!("mcp.{}.{}", item["server_label"].as_str()?, item["name"].as_str()?);
        is_request.then(|| (item["id"].as_str().unwrap().to_owned(), name))
    };
    lines(recording).find_map(request_of)
}

/// Returns the id of the approval request that the call in a recording was approved by.
fn approved_request(recording: &str) -> Option<String> {
    let id_of = |event: Value| Some(event["item"]["approval_request_id"].as_str()?.to_owned());
    lines(recording).find_map(id_of)
}

/// Replays a recording with an approval request, the user's decision, and the recording that
/// followed it. If that recording belongs to another approval request, its id is replaced.
async fn replay_with_decision(first: &str, second: &str) -> String {
    let (id, tool) = approval_request(first).unwrap();
    let approved = approved_request(second);
    let second =
        approved.as_ref().map_or(second.to_owned(), |recorded| second.replace(&**recorded, &id));
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
    assert_eq!(response["approval_request_id"], *id);
    assert_eq!(response["approve"], approved.is_some());
    let (mut expected, before) = (expected_of_response(&second), expected_of_response(first));
    expected.reasoning = before.reasoning + &expected.reasoning;
    expected.calls = before.calls;
    let summary = compare(&Held::of(browser.messages().last().unwrap()), &expected, "");
    format!("forwarded {response}; {summary}")
}

#[tokio::test]
#[ignore = "needs a folder of recordings, in RECORDINGS"]
async fn every_recording_arrives_complete() {
    replay_all(replay, |recording| approval_request(recording).is_some(), replay_with_decision)
        .await;
}
