//! Whatever folder of recorded streams, through the adapters to the browser's message:
//! `RECORDINGS=folder cargo test -p ui-message-stream-openai --test openai recordings -- --ignored --nocapture`.
//!
//! A file holds one event's data a line. What must arrive is read from it by other means: of Chat
//! Completions the pieces joined, of Responses the whole response that the last event repeats.

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

/// What a recording says.
#[derive(Debug, Default, PartialEq)]
struct Says {
    text: String,
    reasoning: String,
    calls: Vec<Call>,
    /// The outputs of what the provider ran.
    outputs: Vec<Value>,
    sources: Vec<String>,
}

fn lines(recording: &str) -> impl Iterator<Item = Value> {
    recording.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn is_chat(recording: &str) -> bool {
    lines(recording).next().unwrap().get("choices").is_some()
}

fn for_chat(recording: &str) -> Says {
    let mut says = Says::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    for chunk in lines(recording) {
        let delta = &chunk["choices"][0]["delta"];
        says.text.push_str(delta["content"].as_str().unwrap_or_default());
        says.reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
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
    says.calls = parsed.collect();
    says
}

fn of_response(recording: &str) -> Says {
    let mut says = Says::default();
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
                    says.text.push_str(piece["text"].as_str().unwrap());
                    let sources = piece["annotations"].as_array().unwrap().iter();
                    let urls = sources.map(|source| source["url"].as_str().unwrap().to_owned());
                    says.sources.extend(urls);
                }
            }
            "reasoning" => {
                for piece in item["summary"].as_array().unwrap() {
                    says.reasoning.push_str(piece["text"].as_str().unwrap());
                }
            }
            "tool_search_call" => says.calls.push(("tool_search".to_owned(), arguments(item))),
            "mcp_approval_request" => says.calls.push((name(item), arguments(item))),
            "mcp_call" => {
                says.calls.push((name(item), arguments(item)));
                says.outputs.push(item["output"].clone());
            }
            "web_search_call" => {
                let mut action = item["action"].clone();
                says.outputs.push(json!({"status": item["status"], "action": action}));
                action.as_object_mut().unwrap().remove("sources");
                says.calls.push(("web_search".to_owned(), action));
            }
            "mcp_list_tools" => {}
            other => panic!("a recording holds {other}"),
        }
    }
    says
}

fn agent(provider: &Provider, recording: &str) -> Agent {
    let endpoint = Endpoint::new(&provider.address).unwrap();
    let agent = match is_chat(recording) {
        true => Agent::new(ChatCompletions::new(endpoint, "recorded")),
        false => Agent::new(Responses::new(endpoint, "recorded")),
    };
    let weather =
        Tool::new("weather", async |_: BTreeMap<String, Anything>| Ok::<_, ToolError>("sun"));
    let found = async |_: BTreeMap<String, Anything>| Ok::<_, ToolError>(json!({"tools": []}));
    agent.tool(weather).tool(Tool::new("tool_search", found))
}

/// Holds what arrived against what the recording says. Tools here answer the rest.
fn compare(held: &Held, says: &Says, closing: &str) -> String {
    assert_eq!(held.text, format!("{}{closing}", says.text));
    assert_eq!(held.reasoning, says.reasoning);
    let calls: Vec<Call> =
        held.calls.iter().map(|(tool, input, ..)| (tool.clone(), input.clone())).collect();
    assert_eq!(calls, says.calls);
    let (own, providers): (Vec<_>, Vec<_>) =
        held.calls.iter().partition(|call| matches!(&*call.0, "weather" | "tool_search"));
    assert!(own.iter().all(|call| call.2 == "output-available"), "{own:?}");
    let outputs: Vec<Value> = providers
        .into_iter()
        .filter(|call| call.2 == "output-available")
        .map(|call| call.3.clone())
        .collect();
    assert_eq!(outputs, says.outputs);
    assert_eq!(held.sources, says.sources);
    let states: Vec<String> =
        held.calls.iter().map(|(tool, _, state, _)| format!("{tool} ({state})")).collect();
    format!(
        "text {} B, reasoning {} B, sources {}, calls [{}]",
        says.text.len(),
        says.reasoning.len(),
        says.sources.len(),
        states.join(", "),
    )
}

async fn replay(recording: &str) -> String {
    let says = if is_chat(recording) { for_chat(recording) } else { of_response(recording) };
    let closing = if is_chat(recording) { "chat/text_is_joined" } else { "responses/text" };
    let provider = Provider::streaming([as_stream(recording), fixture(closing)]).await;
    let mut browser = conversation(agent(&provider, recording));
    browser.send("Go").await;
    assert_eq!(browser.error(), None);
    let closing = match provider.asked().len() {
        1 => "",
        _ if is_chat(recording) => "The harbour is “calm” — 🚢\ntoday.",
        _ => "All is “calm” 🚢.",
    };
    compare(&Held::of(browser.messages().last().unwrap()), &says, closing)
}

/// The question of a recording, if the provider asks one.
fn question(recording: &str) -> Option<(String, String)> {
    let asks = |event: Value| {
        let item = event.get("item")?;
        let is_question = item["type"] == "mcp_approval_request";
        let name = format!("mcp.{}.{}", item["server_label"].as_str()?, item["name"].as_str()?);
        is_question.then(|| (item["id"].as_str().unwrap().to_owned(), name))
    };
    lines(recording).find_map(asks)
}

/// The question that the call of a recording was approved by.
fn approved(recording: &str) -> Option<String> {
    let asked = |event: Value| Some(event["item"]["approval_request_id"].as_str()?.to_owned());
    lines(recording).find_map(asked)
}

/// A question, the person's answer, and the recording that follows upon it. Where that one answers
/// another question than was recorded, it is made to answer this one.
async fn both_ways(asks: &str, then: &str) -> String {
    let (id, tool) = question(asks).unwrap();
    let approved = approved(then);
    let then = approved.as_ref().map_or(then.to_owned(), |other| then.replace(&**other, &id));
    let provider = Provider::streaming([as_stream(asks), as_stream(&then)]).await;
    let mut browser = conversation(agent(&provider, asks));
    browser.send("Go").await;
    match approved {
        Some(_) => browser.approve(&tool).await,
        None => browser.deny(&tool, "not now").await,
    }
    assert_eq!(browser.error(), None);
    let body = &provider.asked()[1].body;
    let answer = body["input"].as_array().unwrap().last().unwrap();
    assert_eq!(answer["type"], "mcp_approval_response");
    assert_eq!(answer["approval_request_id"], *id);
    assert_eq!(answer["approve"], approved.is_some());
    let (mut says, asked) = (of_response(&then), of_response(asks));
    says.reasoning = asked.reasoning + &says.reasoning;
    says.calls = asked.calls;
    let said = compare(&Held::of(browser.messages().last().unwrap()), &says, "");
    format!("forwarded {answer}; {said}")
}

#[tokio::test]
#[ignore = "needs a folder of recordings, in RECORDINGS"]
async fn every_recording_arrives_whole() {
    replay_all(replay, |recording| question(recording).is_some(), both_ways).await;
}
