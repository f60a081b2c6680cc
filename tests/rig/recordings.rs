//! Whatever folder of recorded streams, through rig's providers to the browser's message:
//! `RECORDINGS=folder cargo test --features rig,testing --test rig recordings -- --ignored --nocapture`.
//!
//! A file holds one event's data a line: of Chat Completions, of Responses, or of Anthropic's
//! Messages. What must arrive is read from it by other means. What a provider ran itself is not
//! shown through rig, and not looked for.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use ui_message_stream::agent::{Agent, Told, Tool};
use ui_message_stream::model::rig::RigModel;

use super::provider::{Provider, as_stream, fixture};
use crate::browser::{Held, conversation};
use crate::folder::recordings;

/// Anything at all.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
struct Anything(#[allow(dead_code)] Value);

/// What a recording says.
#[derive(Debug, Default, PartialEq)]
struct Says {
    text: String,
    reasoning: String,
    calls: Vec<(String, Value)>,
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

fn parsed(calls: Vec<(String, String)>) -> Vec<(String, Value)> {
    let parse = |text: &str| match text {
        "" => serde_json::json!({}),
        text => serde_json::from_str(text).unwrap(),
    };
    calls.into_iter().map(|(name, arguments)| (name, parse(&arguments))).collect()
}

fn of_chat(recording: &str) -> Says {
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
    let mut calls = Vec::new();
    let last = lines(recording).last().unwrap();
    for item in last["response"]["output"].as_array().unwrap() {
        for piece in item["content"].as_array().into_iter().flatten() {
            says.text.push_str(text(&piece["text"]));
        }
        for piece in item["summary"].as_array().into_iter().flatten() {
            says.reasoning.push_str(text(&piece["text"]));
        }
        if item["type"] == "function_call" {
            calls.push((text(&item["name"]).to_owned(), text(&item["arguments"]).to_owned()));
        }
    }
    Says { calls: parsed(calls), ..says }
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

async fn replay(recording: &str) -> String {
    let kind = kind(recording);
    let (says, closing) = match kind {
        Kind::Chat => (of_chat(recording), "chat/text_is_joined"),
        Kind::Responses => (of_responses(recording), "responses/text"),
        Kind::Messages => (of_messages(recording), "anthropic/text"),
    };
    let provider = Provider::streaming([as_stream(recording), fixture(closing)]);
    let model = match kind {
        Kind::Chat => provider.chat(),
        Kind::Responses => provider.responses(),
        Kind::Messages => provider.anthropic("claude-sonnet-4-5"),
    };
    let answer = async |_: BTreeMap<String, Anything>| Ok::<_, Told>("sun");
    let agent = Agent::new(RigModel::new(model)).tool(Tool::new("weather", answer));
    let mut browser = conversation(agent);
    browser.send("Go").await;
    assert_eq!(browser.error(), None);
    let held = Held::of(browser.messages().last().unwrap());
    assert!(held.text.starts_with(&says.text), "{} … {}", says.text, held.text);
    assert_eq!(held.reasoning, says.reasoning);
    let calls: Vec<(String, Value)> =
        held.calls.iter().map(|(tool, input, ..)| (tool.clone(), input.clone())).collect();
    assert_eq!(calls, says.calls);
    assert!(held.calls.iter().all(|call| call.2 == "output-available"), "{:?}", held.calls);
    assert_eq!(provider.asked().len(), if calls.is_empty() { 1 } else { 2 });
    let (text, reasoning) = (says.text.len(), says.reasoning.len());
    format!("{kind:?}: text {text} B, reasoning {reasoning} B, calls {calls:?}")
}

#[tokio::test]
#[ignore = "needs a folder of recordings, in RECORDINGS"]
async fn every_recording_arrives_whole() {
    let folder = std::env::var_os("RECORDINGS").expect("RECORDINGS names a folder");
    let folder = Path::new(&folder);
    let files = recordings(folder);
    assert!(!files.is_empty(), "{} holds no recordings", folder.display());
    for path in &files {
        let recording = std::fs::read_to_string(path).unwrap();
        println!("{}: {}", path.strip_prefix(folder).unwrap().display(), replay(&recording).await);
    }
}
