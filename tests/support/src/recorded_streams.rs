//! Recorded streams of providers, as response bodies and as the message that they produce.
//!
//! Each line of a recording is the data of one event, or `event: ` and the type of the next one.

use std::collections::BTreeSet;
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

/// Returns the events of a recording that are JSON.
pub fn events(recording: &str) -> impl Iterator<Item = Value> {
    recording.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// Whether this is a recording of Chat Completions.
pub fn is_chat(recording: &str) -> bool {
    events(recording).any(|event| event.get("choices").is_some())
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
    /// Whether the response was cut off, and none of its calls runs.
    pub is_cut_off: bool,
    /// Whether the provider reports an error.
    pub is_failed: bool,
}

impl RecordedMessage {
    /// Reads a stream of Chat Completions: the joined deltas.
    pub fn of_chat(recording: &str) -> Self {
        let mut message = Self::default();
        let mut calls: Vec<(Value, (String, String))> = Vec::new();
        for chunk in events(recording) {
            let is_first = |choice: &&Value| choice["index"].as_u64().unwrap_or(0) == 0;
            let choice = list(&chunk["choices"]).iter().find(is_first).unwrap_or(&Value::Null);
            message.is_failed |= !chunk["error"].is_null() || !choice["error"].is_null();
            message.is_cut_off |= text(&choice["finish_reason"]) == "length";
            let delta = &choice["delta"];
            let pieces = match &delta["content"] {
                Value::Array(pieces) => &**pieces,
                text => std::slice::from_ref(text),
            };
            for piece in pieces {
                for thought in list(&piece["thinking"]) {
                    message.reasoning.push_str(text(&thought["text"]));
                }
                message.text.push_str(piece.as_str().unwrap_or_else(|| text(&piece["text"])));
            }
            message.text.push_str(text(&delta["refusal"]));
            let reasoning = [&delta["reasoning_content"], &delta["reasoning"]].map(text);
            message
                .reasoning
                .push_str(reasoning.into_iter().find(|it| !it.is_empty()).unwrap_or(""));
            for piece in list(&delta["tool_calls"]) {
                let index = &piece["index"];
                if !calls.iter().any(|(known, _)| known == index && !index.is_null()) {
                    calls.push((index.clone(), Default::default()));
                }
                let (_, call) = calls.iter_mut().rfind(|(known, _)| known == index).unwrap();
                let function = &piece["function"];
                if call.0.is_empty() {
                    text(&function["name"]).clone_into(&mut call.0);
                }
                call.1.push_str(text(&function["arguments"]));
            }
            let cited = list(&delta["annotations"]).iter().map(|it| &it["url_citation"]["url"]);
            let found = match list(&chunk["search_results"]) {
                [] => list(&chunk["citations"]).iter().collect(),
                results => results.iter().map(|it| &it["url"]).collect::<Vec<_>>(),
            };
            message.cite(cited.chain(found));
        }
        message.with_calls(calls.into_iter().map(|(_, call)| call).collect())
    }

    /// Adds the URLs that are not sources yet.
    fn cite<'v>(&mut self, urls: impl Iterator<Item = &'v Value>) {
        for url in urls.map(text).filter(|url| !url.is_empty()) {
            if !self.sources.iter().any(|known| known == url) {
                self.sources.push(url.to_owned());
            }
        }
    }

    /// Reads a stream of Responses: the complete response in the last event, or its items if that has
    /// none.
    pub fn of_response(recording: &str) -> Self {
        let mut message = Self::default();
        let is_end = |event: &Value| {
            let kind = text(&event["type"]);
            matches!(kind, "response.completed" | "response.incomplete")
        };
        let last = events(recording).find(is_end);
        message.is_failed = last.is_none();
        message.is_cut_off = last.as_ref().is_some_and(|it| it["type"] == "response.incomplete");
        let mut output = last.map(|mut last| last["response"]["output"].take()).unwrap_or_default();
        if list(&output).is_empty() {
            let ends = events(recording).filter(|it| it["type"] == "response.output_item.done");
            output = ends.map(|mut event| event["item"].take()).collect();
        }
        let arguments = |item: &Value| match &item["arguments"] {
            Value::String(text) => parse(text),
            other => other.clone(),
        };
        for item in list(&output) {
            match text(&item["type"]) {
                "message" => {
                    for piece in list(&item["content"]) {
                        message.text.push_str(text(&piece["text"]));
                        message.text.push_str(text(&piece["refusal"]));
                        // Files have no URL.
                        let sources = list(&piece["annotations"]).iter();
                        let urls = sources.filter_map(|source| source["url"].as_str());
                        message.sources.extend(urls.map(str::to_owned));
                    }
                }
                "reasoning" => {
                    let pieces = match list(&item["summary"]) {
                        [] => list(&item["content"]),
                        pieces => pieces,
                    };
                    for piece in pieces {
                        message.reasoning.push_str(text(&piece["text"]));
                    }
                }
                "function_call" => {
                    message.calls.push((text(&item["name"]).to_owned(), arguments(item)));
                }
                "tool_search_call" if item["execution"] != "client" => {}
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
                kind @ ("file_search_call" | "code_interpreter_call") => {
                    let without = |fields: &[&str]| {
                        let mut item = item.as_object().unwrap().clone();
                        item.retain(|field, _| !fields.contains(&&**field));
                        Value::Object(item)
                    };
                    message.outputs.push(without(&["id", "type"]));
                    let input = without(&["id", "type", "status", "results", "outputs"]);
                    message.calls.push((kind.trim_end_matches("_call").to_owned(), input));
                }
                "mcp_list_tools" | "tool_search_output" | "compaction" => {}
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

    /// Returns the names of the tools that the host executes.
    pub fn own_tools(&self) -> BTreeSet<&str> {
        let names = self.calls.iter().map(|(name, _)| &**name);
        names.filter(|name| !is_provider_executed(name)).collect()
    }

    /// Whether the answer is a failure: the provider reports an error, or there is nothing to read.
    pub fn is_failure(&self) -> bool {
        let has_text = !self.text.trim().is_empty() || !self.reasoning.trim().is_empty();
        self.is_failed || !has_text && self.calls.is_empty()
    }

    /// Returns the contents of the message that a recording with an approval request begins, and
    /// `self`, the recording after the decision, completes.
    pub fn after_request(self, request: Self) -> Self {
        let reasoning = request.reasoning + &self.reasoning;
        RecordedMessage { reasoning, calls: request.calls, ..self }
    }

    /// Compares reasoning, calls and outputs with those of a message, and returns a summary. The
    /// host executes its calls unless the response was cut off or failed.
    pub fn compare(&self, message: &MessageContents) -> String {
        assert_eq!(message.reasoning, self.reasoning);
        let runs = !self.is_cut_off && !self.is_failed;
        // A call that does not run has its input in another field.
        let read = |(name, input): (&String, &Value)| {
            (name.clone(), if runs { input.clone() } else { Value::Null })
        };
        let calls = message.calls.iter().map(|(tool, input, ..)| read((tool, input)));
        let recorded = self.calls.iter().map(|(tool, input)| read((tool, input)));
        assert_eq!(calls.collect::<Vec<_>>(), recorded.collect::<Vec<_>>());
        let (provider_calls, own_calls): (Vec<_>, Vec<_>) =
            message.calls.iter().partition(|call| is_provider_executed(&call.0));
        let state = if runs { "output-available" } else { "output-error" };
        assert!(own_calls.iter().all(|call| call.2 == state), "{own_calls:?}");
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
        let calls: Vec<(String, Value)> = calls.collect();
        // Some providers state another reason for a response that was cut off.
        let is_cut_off = self.is_cut_off || calls.iter().any(|(_, input)| input.is_null());
        RecordedMessage { calls, is_cut_off, ..self }
    }
}

fn is_provider_executed(tool: &str) -> bool {
    tool.starts_with("mcp.") || matches!(tool, "web_search" | "file_search" | "code_interpreter")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Reads arguments. Those of a response that was cut off may be incomplete.
fn parse(arguments: &str) -> Value {
    match arguments {
        "" | "null" => json!({}),
        _ => serde_json::from_str(arguments).unwrap_or_default(),
    }
}

/// The name of the tool with which a model searches for tools.
pub const TOOL_SEARCH: &str = "tool_search";
