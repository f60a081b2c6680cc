//! Whatever folder of recorded streams, through rig's providers to the browser's message:
//! `RECORDINGS=folder cargo test -p ui-message-stream-rig --test rig recordings -- --ignored --nocapture`.
//!
//! A file holds one event's data a line: of Chat Completions, of Responses, or of Anthropic's
//! Messages. What must arrive is read from it by other means: of Responses from the whole response
//! that the last event repeats. A recording that asks is answered with those of the same name.

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

use super::agents::page;
use super::provider::{Provider, as_stream, fixture};

/// Anything at all.
#[derive(PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
struct Anything(Value);

/// What a recording says.
#[derive(Debug, Default, PartialEq)]
struct Says {
    text: String,
    reasoning: String,
    calls: Vec<(String, Value)>,
    /// The outputs of what the provider ran.
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

fn for_chat(recording: &str) -> Says {
    let mut says = Says::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    for chunk in lines(recording) {
        let delta = &chunk["choices"][0]["delta"];
        says.text.push_str(text(&delta["content"]));
        says.reasoning.push_str(text(&delta["reasoning_content"]));
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &piece["function"];
            if let Some(name) = function["name"].as_str() {
                calls.push((name.to_owned(), String::new()));
            }
            calls.last_mut().unwrap().1.push_str(text(&function["arguments"]));
        }
    }
    Says { calls: parsed(calls), ..says }
}

fn of_responses(recording: &str) -> Says {
    let mut says = Says::default();
    let last = lines(recording).last().unwrap();
    let arguments = |item: &Value| parse(text(&item["arguments"]));
    let of_server =
        |item: &Value| format!("mcp.{}.{}", text(&item["server_label"]), text(&item["name"]));
    for item in last["response"]["output"].as_array().unwrap() {
        match text(&item["type"]) {
            "message" => {
                for piece in item["content"].as_array().unwrap() {
                    says.text.push_str(text(&piece["text"]));
                }
            }
            "reasoning" => {
                for piece in item["summary"].as_array().unwrap() {
                    says.reasoning.push_str(text(&piece["text"]));
                }
            }
            "function_call" => says.calls.push((text(&item["name"]).to_owned(), arguments(item))),
            "mcp_approval_request" => says.calls.push((of_server(item), arguments(item))),
            "mcp_call" => {
                says.calls.push((of_server(item), arguments(item)));
                says.outputs.push(item["output"].clone());
            }
            "web_search_call" => {
                let mut action = item["action"].clone();
                says.outputs.push(json!({"status": item["status"], "action": action}));
                action.as_object_mut().unwrap().remove("sources");
                says.calls.push(("web_search".to_owned(), action));
            }
            // To rig, nobody is to answer the first.
            "tool_search_call" | "mcp_list_tools" => {}
            other => panic!("a recording holds {other}"),
        }
    }
    says
}

fn of_messages(recording: &str) -> Says {
    let mut says = Says::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in lines(recording) {
        let (begun, delta) = (&event["content_block"], &event["delta"]);
        if begun["type"] == "tool_use" {
            calls.push((text(&begun["name"]).to_owned(), String::new()));
        }
        match text(&delta["type"]) {
            "text_delta" => says.text.push_str(text(&delta["text"])),
            "thinking_delta" => says.reasoning.push_str(text(&delta["thinking"])),
            "input_json_delta" => {
                calls.last_mut().unwrap().1.push_str(text(&delta["partial_json"]))
            }
            _ => {}
        }
    }
    Says { calls: parsed(calls), ..says }
}

/// A model and an agent of rig, as pages.
fn pages(provider: &Provider, kind: Kind) -> [Conversation<'static>; 2] {
    let model = || match kind {
        Kind::Chat => provider.chat(),
        Kind::Responses => provider.responses(),
        Kind::Messages => provider.anthropic("claude-sonnet-4-5"),
    };
    let answer = async |_: BTreeMap<String, Anything>| Ok::<_, ToolError>("sun");
    let agent = Agent::new(RigModel::new(model())).tool(Tool::new("weather", answer));
    let schema = json!({"type": "object"});
    let weather = DynamicTool::new(ToolName::new("weather").unwrap(), "Says it.", schema, |_| {
        Box::pin(async { Ok(ToolOutput::text("sun")) })
    });
    let builder = AgentBuilder::new(model()).max_tokens(999).default_max_turns(5);
    let rig = builder.dynamic_tools(vec![weather]).build();
    [conversation(agent), page(RigAgent::new(rig))]
}

/// Holds what arrived against what the recording says.
fn compare(browser: &Conversation<'_>, says: &Says) -> String {
    assert_eq!(browser.error(), None);
    let held = Held::of(browser.messages().last().unwrap());
    assert!(held.text.starts_with(&says.text), "{} … {}", says.text, held.text);
    assert_eq!(held.reasoning, says.reasoning);
    let calls: Vec<(String, Value)> =
        held.calls.iter().map(|(tool, input, ..)| (tool.clone(), input.clone())).collect();
    assert_eq!(calls, says.calls);
    let (own, providers): (Vec<_>, Vec<_>) =
        held.calls.iter().partition(|call| call.0 == "weather");
    assert!(own.iter().all(|call| call.2 == "output-available"), "{own:?}");
    let settled = providers.into_iter().filter(|call| call.2 == "output-available");
    let outputs: Vec<Value> = settled.map(|call| call.3.clone()).collect();
    assert_eq!(outputs, says.outputs);
    let (text, reasoning) = (says.text.len(), says.reasoning.len());
    let states: Vec<String> =
        held.calls.iter().map(|(tool, _, state, _)| format!("{tool} ({state})")).collect();
    format!("text {text} B, reasoning {reasoning} B, calls [{}]", states.join(", "))
}

async fn replay(recording: &str) -> String {
    let kind = kind(recording);
    let (says, closing) = match kind {
        Kind::Chat => (for_chat(recording), "chat/text_is_joined"),
        Kind::Responses => (of_responses(recording), "responses/text"),
        Kind::Messages => (of_messages(recording), "anthropic/text"),
    };
    let own = says.calls.iter().any(|(name, _)| name == "weather");
    let provider = Provider::default();
    let mut said = String::new();
    for (at, mut browser) in pages(&provider, kind).into_iter().enumerate() {
        provider.then([as_stream(recording), fixture(closing)]);
        let before = provider.asked().len();
        browser.send("Go").await;
        said = compare(&browser, &says);
        assert_eq!(provider.asked().len() - before, if own { 2 } else { 1 }, "{at}");
        if own || question(recording).is_some() {
            continue;
        }
        // What the provider ran goes back as it was.
        browser.send("And now?").await;
        assert_eq!(browser.error(), None);
        assert!(sent(&provider, before + 1) == items(recording), "it went back otherwise");
    }
    format!("{kind:?}: {said}")
}

fn is_ran(item: &Value) -> bool {
    matches!(text(&item["type"]), "mcp_call" | "web_search_call")
}

/// The items of what the provider ran.
fn items(recording: &str) -> Vec<Value> {
    let items = lines(recording).last().unwrap()["response"]["output"].take();
    items.as_array().into_iter().flatten().filter(|item| is_ran(item)).cloned().collect()
}

fn sent(provider: &Provider, request: usize) -> Vec<Value> {
    let input = provider.asked()[request]["input"].take();
    input.as_array().into_iter().flatten().filter(|item| is_ran(item)).cloned().collect()
}

/// The question of a recording, if the provider asks one.
fn question(recording: &str) -> Option<Value> {
    let is_question = |event: &Value| event["item"]["type"] == "mcp_approval_request";
    lines(recording).filter(is_question).last().map(|mut event| event["item"].take())
}

/// The question that the call of a recording was approved by.
fn approved(recording: &str) -> Option<String> {
    let asked = |event: Value| Some(event["item"]["approval_request_id"].as_str()?.to_owned());
    lines(recording).find_map(asked)
}

/// A question, the person's answer, and the recording that follows upon it. Where that one answers
/// another question than was recorded, it is made to answer this one.
async fn both_ways(asks: &str, then: &str) -> String {
    let question = question(asks).unwrap();
    let tool = format!("mcp.{}.{}", text(&question["server_label"]), text(&question["name"]));
    let approved = approved(then);
    let id = text(&question["id"]);
    let then = approved.as_ref().map_or(then.to_owned(), |other| then.replace(&**other, id));
    let provider = Provider::default();
    let mut said = String::new();
    for mut browser in pages(&provider, Kind::Responses) {
        provider.then([as_stream(asks), as_stream(&then)]);
        let before = provider.asked().len();
        browser.send("Go").await;
        assert_eq!(browser.error(), None);
        match approved {
            Some(_) => browser.approve(&tool).await,
            None => browser.deny(&tool, "not now").await,
        }
        let input = provider.asked()[before + 1]["input"].as_array().unwrap().clone();
        let [.., asked, answer] = &input[..] else { panic!("{input:?}") };
        assert_eq!(asked, &question);
        assert_eq!(answer["type"], "mcp_approval_response");
        assert_eq!(answer["approval_request_id"], *id);
        assert_eq!(answer["approve"], approved.is_some());
        let (mut says, asked) = (of_responses(&then), of_responses(asks));
        says.reasoning = asked.reasoning + &says.reasoning;
        says.calls = asked.calls;
        said = format!("forwarded {answer}; {}", compare(&browser, &says));
    }
    said
}

#[tokio::test]
#[ignore = "needs a folder of recordings, in RECORDINGS"]
async fn every_recording_arrives_complete() {
    replay_all(replay, |recording| question(recording).is_some(), both_ways).await;
}
