//! Recorded streams of providers, as response bodies and as the message that they produce.
//!
//! Each line of a recording is the data of one event, or `event: ` and the type of the next one.

use std::fs;

use serde_json::{Value, json};

use crate::message_contents::MessageContents;
use crate::repository;

/// Converts a recording to a response body.
pub fn as_stream(recording: &str) -> String {
    let event = |line: &str| match line.starts_with("event: ") {
        true => format!("{line}\n"),
        false => format!("data: {line}\n\n"),
    };
    let events: String = recording.lines().map(event).collect();
    format!(": hello\n\n{events}data: [DONE]\n\n")
}

/// Returns a recording in `fixtures/providers` as a response body.
pub fn fixture(name: &str) -> String {
    as_stream(&lines_of(name))
}

/// Reads a recording in `fixtures/providers`.
pub fn lines_of(name: &str) -> String {
    let path = repository().join(format!("fixtures/providers/{name}.jsonl"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the events of a recording.
pub fn events(recording: &str) -> impl Iterator<Item = Value> {
    recording.lines().map(|line| serde_json::from_str(line).unwrap())
}

/// Returns the last approval request in a recording of Responses, if there is one.
pub fn approval_request(recording: &str) -> Option<Value> {
    let is_request = |event: &Value| event["item"]["type"] == "mcp_approval_request";
    events(recording).filter(is_request).last().map(|mut event| event["item"].take())
}

/// Returns the id of the approval request that the call in a recording was approved by.
pub fn approved_request(recording: &str) -> Option<String> {
    let id_of = |event: Value| Some(event["item"]["approval_request_id"].as_str()?.to_owned());
    events(recording).find_map(id_of)
}

/// Returns the name of the tool of an MCP server, of its call or of an approval request.
pub fn mcp_tool_name(item: &Value) -> String {
    format!("mcp.{}.{}", text(&item["server_label"]), text(&item["name"]))
}

/// The contents of the message that a recording produces, read without an adapter.
#[derive(Debug, Default, PartialEq)]
pub struct RecordedMessage {
    /// All text.
    pub text: String,
    /// All reasoning.
    pub reasoning: String,
    /// The name and the input of each call.
    pub calls: Vec<(String, Value)>,
    /// The outputs of the provider-executed calls.
    pub outputs: Vec<Value>,
    /// The URL of each source.
    pub sources: Vec<String>,
}

impl RecordedMessage {
    /// Reads a stream of Chat Completions: the joined deltas.
    pub fn of_chat(recording: &str) -> Self {
        let mut message = Self::default();
        let mut calls: Vec<(String, String)> = Vec::new();
        for chunk in events(recording) {
            let delta = &chunk["choices"][0]["delta"];
            message.text.push_str(text(&delta["content"]));
            message.reasoning.push_str(text(&delta["reasoning_content"]));
            for piece in delta["tool_calls"].as_array().into_iter().flatten() {
                let function = &piece["function"];
                if let Some(name) = function["name"].as_str() {
                    calls.push((name.to_owned(), String::new()));
                }
                calls.last_mut().unwrap().1.push_str(text(&function["arguments"]));
            }
        }
        message.with_calls(calls)
    }

    /// Reads a stream of Responses: the complete response in the last event.
    pub fn of_response(recording: &str) -> Self {
        let mut message = Self::default();
        let last = events(recording).last().unwrap();
        let arguments = |item: &Value| match &item["arguments"] {
            Value::String(text) => parse(text),
            other => other.clone(),
        };
        for item in last["response"]["output"].as_array().unwrap() {
            match text(&item["type"]) {
                "message" => {
                    for piece in item["content"].as_array().unwrap() {
                        message.text.push_str(text(&piece["text"]));
                        let sources = piece["annotations"].as_array().into_iter().flatten();
                        message.sources.extend(sources.map(|source| text(&source["url"]).into()));
                    }
                }
                "reasoning" => {
                    for piece in item["summary"].as_array().unwrap() {
                        message.reasoning.push_str(text(&piece["text"]));
                    }
                }
                "function_call" => {
                    message.calls.push((text(&item["name"]).to_owned(), arguments(item)));
                }
                "tool_search_call" => message.calls.push((TOOL_SEARCH.into(), arguments(item))),
                "mcp_approval_request" => {
                    message.calls.push((mcp_tool_name(item), arguments(item)));
                }
                "mcp_call" => {
                    message.calls.push((mcp_tool_name(item), arguments(item)));
                    message.outputs.push(item["output"].clone());
                }
                "web_search_call" => {
                    let mut action = item["action"].clone();
                    message.outputs.push(json!({"status": item["status"], "action": action}));
                    action.as_object_mut().unwrap().remove("sources");
                    message.calls.push(("web_search".to_owned(), action));
                }
                "mcp_list_tools" => {}
                other => panic!("a recording holds {other}"),
            }
        }
        message
    }

    /// Reads a stream of Anthropic's Messages: the joined deltas.
    pub fn of_messages(recording: &str) -> Self {
        let mut message = Self::default();
        let mut calls: Vec<(String, String)> = Vec::new();
        for event in events(recording) {
            let (block, delta) = (&event["content_block"], &event["delta"]);
            if block["type"] == "tool_use" {
                calls.push((text(&block["name"]).to_owned(), String::new()));
            }
            match text(&delta["type"]) {
                "text_delta" => message.text.push_str(text(&delta["text"])),
                "thinking_delta" => message.reasoning.push_str(text(&delta["thinking"])),
                "input_json_delta" => {
                    calls.last_mut().unwrap().1.push_str(text(&delta["partial_json"]));
                }
                _ => {}
            }
        }
        message.with_calls(calls)
    }

    /// Returns the contents of the message that a recording with an approval request begins, and
    /// `self`, the recording after the decision, completes.
    pub fn after_request(self, request: Self) -> Self {
        let reasoning = request.reasoning + &self.reasoning;
        RecordedMessage { reasoning, calls: request.calls, ..self }
    }

    /// Compares reasoning, calls and outputs with those of a message, and returns a summary. The
    /// host executes `weather` and [`TOOL_SEARCH`], and the provider executes the other calls.
    pub fn compare(&self, message: &MessageContents) -> String {
        assert_eq!(message.reasoning, self.reasoning);
        let calls = message.calls.iter().map(|(tool, input, ..)| (tool.clone(), input.clone()));
        assert_eq!(calls.collect::<Vec<_>>(), self.calls);
        let (own_calls, provider_calls): (Vec<_>, Vec<_>) =
            message.calls.iter().partition(|call| matches!(&*call.0, "weather" | TOOL_SEARCH));
        assert!(own_calls.iter().all(|call| call.2 == "output-available"), "{own_calls:?}");
        let completed = provider_calls.into_iter().filter(|call| call.2 == "output-available");
        let outputs: Vec<Value> = completed.map(|call| call.3.clone()).collect();
        assert_eq!(outputs, self.outputs);
        let states: Vec<String> =
            message.calls.iter().map(|(tool, _, state, _)| format!("{tool} ({state})")).collect();
        format!(
            "text {} B, reasoning {} B, sources {}, calls [{}]",
            self.text.len(),
            self.reasoning.len(),
            self.sources.len(),
            states.join(", "),
        )
    }

    fn with_calls(self, calls: Vec<(String, String)>) -> Self {
        let calls = calls.into_iter().map(|(name, arguments)| (name, parse(&arguments)));
        RecordedMessage { calls: calls.collect(), ..self }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn parse(arguments: &str) -> Value {
    if arguments.is_empty() { json!({}) } else { serde_json::from_str(arguments).unwrap() }
}

/// The name of the tool with which a model searches for tools.
pub const TOOL_SEARCH: &str = "tool_search";
