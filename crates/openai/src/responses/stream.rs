//! [`EventReader`]: the events of a response to what the model says.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::provider_state::Kept;
use super::provider_tools;
use super::response_id::LastPiece;
use crate::error::ProviderError;
use crate::function_tools::cut_off;
use crate::response_items::{
    Item, mcp_result_event, mcp_tool_input, result_event, take_image, text_field, tool_input,
};
use crate::response_stream::Read;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, Source, ToolCall};
use ui_message_stream::id::{PartId, ToolCallId};
use ui_message_stream::run::{ModelEvent, Usage};

/// Reads the events of one response.
#[derive(Debug)]
pub(super) struct EventReader {
    /// The questions that were said yes to, and the calls that they are about.
    approved: HashMap<String, ToolCallId>,
    /// Of the endpoint.
    mark: String,
    /// What was whole last, if the response is stored: it waits for the id.
    last: Option<LastPiece>,
    /// Items that are being said, by their place.
    open: HashMap<u64, Open>,
    /// Whether somebody has to answer before the model goes on.
    has_calls: bool,
    is_over: bool,
}

/// An item that is being said.
#[derive(Debug, Default)]
struct Open {
    /// What it was called first: some servers call it something else in every event.
    id: String,
    /// The call that its arguments belong to.
    call: Option<ToolCallId>,
    /// Of a text or of thoughts, which parts have begun.
    parts: HashSet<PartId>,
    /// The last summary of thoughts.
    summary: u64,
}

impl EventReader {
    pub(super) fn new(
        approved: HashMap<String, ToolCallId>,
        is_stored: bool,
        mark: String,
    ) -> Self {
        EventReader {
            approved,
            mark,
            last: is_stored.then(LastPiece::default),
            open: HashMap::new(),
            has_calls: false,
            is_over: false,
        }
    }
}

type Out<'a> = &'a mut VecDeque<ModelEvent>;

impl Read for EventReader {
    fn read(&mut self, data: &str, said: Out<'_>) -> Result<(), ProviderError> {
        let event: Value = serde_json::from_str(data).map_err(ProviderError::not_understood)?;
        let Value::Object(event) = event else {
            return Err(ProviderError::not_understood("an event that is no object"));
        };
        let mut fresh = VecDeque::new();
        let read = self.take(&event, &mut fresh);
        if let Some(last) = &mut self.last {
            let response = event.get("response");
            match text_field(&event, "type") {
                "response.output_item.done" if !fresh.is_empty() => {
                    last.replace(std::mem::take(&mut fresh), said);
                }
                "response.completed" => {
                    let id = response.and_then(|response| response.get("id")?.as_str());
                    last.end(id, said);
                }
                kind => {
                    let is_begun = kind == "response.output_item.added";
                    if is_begun || !fresh.is_empty() || read.is_err() {
                        last.release(said);
                    }
                }
            }
        }
        said.append(&mut fresh);
        read
    }

    fn end(&mut self, said: Out<'_>) -> Result<(), ProviderError> {
        if let Some(last) = &mut self.last {
            last.release(said);
        }
        if self.is_over { Ok(()) } else { Err(ProviderError::cut()) }
    }
}

impl EventReader {
    fn take(&mut self, event: &Item, said: Out<'_>) -> Result<(), ProviderError> {
        let at = event.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        let item = event.get("item").and_then(Value::as_object);
        match text_field(event, "type") {
            "response.output_item.added" => self.begin(at, item, said),
            "response.output_item.done" => {
                let Some(mut item) = item.cloned() else { return Ok(()) };
                let id = self.item_id(at, text_field(&item, "id"));
                if !id.is_empty() {
                    item.insert("id".into(), id.into());
                }
                self.end_item(at, &item, said);
            }
            "response.output_text.delta" | "response.refusal.delta" => {
                let id = part_id(&self.item_id(at, text_field(event, "item_id")), at);
                self.open.entry(at).or_default().parts.insert(id.clone());
                say(said, AgentEvent::TextDelta { id: Some(id), delta: delta(event) });
            }
            "response.output_text.annotation.added" => {
                let id = self.item_id(at, text_field(event, "item_id"));
                say_source(event, &part_id(&id, at), said);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let number = event.get("summary_index").or_else(|| event.get("content_index"));
                let number = number.and_then(Value::as_u64).unwrap_or(0);
                let item_id = self.item_id(at, text_field(event, "item_id"));
                let id = self.thoughts(at, &item_id, number, said);
                say(said, AgentEvent::ReasoningDelta { id: Some(id), delta: delta(event) });
            }
            "response.function_call_arguments.delta" | "response.mcp_call_arguments.delta" => {
                if let Some(id) = self.open.get(&at).and_then(|open| open.call.clone()) {
                    let delta = delta(event);
                    say(said, AgentEvent::ToolInputDelta { tool_call_id: id, delta });
                }
            }
            kind @ ("response.completed" | "response.incomplete") => {
                self.finish(kind == "response.completed", event.get("response"), said);
            }
            "response.failed" => {
                let response = event.get("response");
                let error = response.and_then(|response| response.get("error"));
                return Err(ProviderError::reported(error.unwrap_or(&Value::Null)));
            }
            "error" => {
                let whole = Value::Object(event.clone());
                let error = event.get("error").filter(|error| error.is_object());
                return Err(ProviderError::reported(error.unwrap_or(&whole)));
            }
            // Proxies say it as in the other API.
            "" => match event.get("error") {
                Some(error) if !error.is_null() => return Err(ProviderError::reported(error)),
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    /// An item begins.
    fn begin(&mut self, at: u64, item: Option<&Item>, said: Out<'_>) {
        let Some(item) = item else { return };
        self.open.insert(at, Open::default());
        self.item_id(at, text_field(item, "id"));
        let call = match text_field(item, "type") {
            "function_call" => Some(self.function(item)),
            // Its input is known, and was approved.
            "mcp_call" if self.approved.contains_key(text_field(item, "approval_request_id")) => {
                None
            }
            "mcp_call" => Some(provider_tools::mcp_call(item)),
            "reasoning" => {
                self.thoughts(at, text_field(item, "id"), 0, said);
                return;
            }
            _ => provider_tools::call(item),
        };
        let Some(call) = call.filter(|call| !call.id.is_empty()) else { return };
        self.open.entry(at).or_default().call = Some(call.id.clone());
        say(said, AgentEvent::tool_input_start(call));
    }

    /// What an item was called first, and is from now on.
    fn item_id(&mut self, at: u64, id: &str) -> String {
        let open = self.open.entry(at).or_default();
        if open.id.is_empty() {
            id.clone_into(&mut open.id);
        }
        open.id.clone()
    }

    /// An item is whole.
    fn end_item(&mut self, at: u64, item: &Item, said: Out<'_>) {
        match text_field(item, "type") {
            "message" => self.end_text(at, item, said),
            "reasoning" => self.end_thoughts(at, item, said),
            "function_call" => {
                self.has_calls = true;
                let call = self.function(item);
                let mut arguments = text_field(item, "arguments").to_owned();
                if text_field(item, "status") == "incomplete" {
                    arguments = cut_off(arguments);
                }
                said.push_back(ModelEvent::Call(Box::new(call), arguments));
            }
            "tool_search_call" if text_field(item, "execution") == "client" => {
                self.has_calls = true;
                let kept =
                    Kept { item_type: Some("tool_search_call".to_owned()), ..Kept::default() };
                let mut call = ToolCall::new(text_field(item, "call_id"), "tool_search");
                call.provider_metadata = kept.metadata();
                let arguments = item.get("arguments").map(Value::to_string).unwrap_or_default();
                said.push_back(ModelEvent::Call(Box::new(call), arguments));
            }
            "mcp_approval_request" => {
                self.has_calls = true;
                let call = provider_tools::mcp_call(item);
                let arguments = text_field(item, "arguments").to_owned();
                said.push_back(ModelEvent::ProviderAsks(Box::new(call), arguments));
            }
            "mcp_call" => self.end_mcp_call(item, said),
            "mcp_list_tools" => {}
            kind => match provider_tools::call(item) {
                Some(call) => self.end_hosted_call(call, item, said),
                None => tracing::warn!(kind, "a kind of item that is not known is left out"),
            },
        }
        self.open.remove(&at);
    }

    fn end_text(&mut self, at: u64, item: &Item, said: Out<'_>) {
        let id = part_id(text_field(item, "id"), at);
        let mut is_begun = self.open.get(&at).is_some_and(|open| !open.parts.is_empty());
        if !is_begun {
            // A server may send a text at once, or none.
            let pieces = item.get("content").and_then(Value::as_array).into_iter().flatten();
            let texts = pieces.filter_map(|piece| piece.get("text").or(piece.get("refusal")));
            for piece in texts.filter_map(Value::as_str) {
                let delta = piece.to_owned().into();
                say(said, AgentEvent::TextDelta { id: Some(id.clone()), delta });
                is_begun = true;
            }
        }
        if is_begun {
            say(said, AgentEvent::TextEnd { id });
        }
    }

    /// The part of a summary of thoughts; what was open before it ends.
    fn thoughts(&mut self, at: u64, item_id: &str, number: u64, said: Out<'_>) -> PartId {
        let kept = Kept { item_id: Some(item_id.to_owned()), ..Kept::default() };
        let open = self.open.entry(at).or_default();
        let id = PartId::from(format!("{item_id}:{number}"));
        if open.parts.insert(id.clone()) {
            if number > open.summary {
                let id = PartId::from(format!("{item_id}:{}", open.summary));
                let provider_metadata = kept.metadata();
                say(said, AgentEvent::ReasoningEnd { id: Some(id), provider_metadata });
            }
            open.summary = number;
            say(said, AgentEvent::ReasoningStart { id: id.clone() });
        }
        id
    }

    fn end_thoughts(&mut self, at: u64, item: &Item, said: Out<'_>) {
        let item_id = text_field(item, "id");
        let number = self.open.get(&at).map_or(0, |open| open.summary);
        let id = self.thoughts(at, item_id, number, said);
        let encrypted = item.get("encrypted_content").and_then(Value::as_str);
        let kept = Kept {
            item_id: Some(item_id.to_owned()),
            made_by: encrypted.map(|_| self.mark.clone()),
            reasoning_encrypted_content: encrypted.map(str::to_owned),
            ..Kept::default()
        };
        let provider_metadata = kept.metadata();
        say(said, AgentEvent::ReasoningEnd { id: Some(id), provider_metadata });
    }

    fn end_mcp_call(&mut self, item: &Item, said: Out<'_>) {
        // One call comes of an approval; another one is shown as such.
        let id = match self.approved.remove(text_field(item, "approval_request_id")) {
            Some(id) => id,
            None => {
                let call = provider_tools::mcp_call(item);
                let id = call.id.clone();
                say(said, AgentEvent::tool_input(call, mcp_tool_input(item)));
                id
            }
        };
        say(said, mcp_result_event(id, item));
    }

    fn end_hosted_call(&mut self, call: ToolCall, item: &Item, said: Out<'_>) {
        let id = call.id.clone();
        let mut item = item.clone();
        if let Some(picture) = take_image(&mut item) {
            say(said, AgentEvent::File(Box::new(picture)));
        }
        say(said, AgentEvent::tool_input(call, tool_input(&item)));
        say(said, result_event(id, &item));
    }

    fn finish(&mut self, is_whole: bool, response: Option<&Value>, said: Out<'_>) {
        let field = |name: &str| response.and_then(|response| response.get(name));
        let tokens = |name: &str| field("usage").and_then(|usage| usage.get(name)?.as_u64());
        let (input_tokens, output_tokens) = (tokens("input_tokens"), tokens("output_tokens"));
        if input_tokens.is_some() || output_tokens.is_some() {
            said.push_back(ModelEvent::Used(Usage {
                input_tokens: input_tokens.unwrap_or(0),
                output_tokens: output_tokens.unwrap_or(0),
            }));
        }
        let why = field("incomplete_details").and_then(|details| details.get("reason")?.as_str());
        let reason = match why {
            _ if is_whole && self.has_calls => FinishReason::ToolCalls,
            _ if is_whole => FinishReason::Stop,
            Some("max_output_tokens") => FinishReason::Length,
            Some("content_filter") => FinishReason::ContentFilter,
            _ => FinishReason::Other,
        };
        self.is_over = true;
        said.push_back(ModelEvent::Finished(reason));
    }

    fn function(&self, item: &Item) -> ToolCall {
        let namespace = provider_tools::optional(item, "namespace");
        let mut call =
            ToolCall::new(text_field(item, "call_id"), text_field(item, "name").to_owned());
        call.provider_metadata = Kept { namespace, ..Kept::default() }.metadata();
        call
    }
}

fn say(said: Out<'_>, event: AgentEvent) {
    said.push_back(ModelEvent::Said(event));
}

fn say_source(event: &Item, part: &PartId, said: Out<'_>) {
    let Some(Value::Object(annotation)) = event.get("annotation") else { return };
    let number = event.get("annotation_index").and_then(Value::as_u64).unwrap_or(0);
    let source_id = format!("{part}:{number}").into();
    let owned = |field: &str| {
        let value = annotation.get(field).and_then(Value::as_str);
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    let source = match text_field(annotation, "type") {
        "url_citation" => {
            let Some(url) = owned("url") else { return };
            Source::Url { source_id, url: url.into(), title: owned("title").map(Into::into) }
        }
        "file_citation" | "container_file_citation" => {
            let filename = owned("filename");
            let title = filename.clone().or(owned("file_id")).unwrap_or_default();
            Source::Document {
                source_id,
                media_type: "application/octet-stream".into(),
                title: title.into(),
                filename: filename.map(Into::into),
            }
        }
        _ => return,
    };
    say(said, AgentEvent::Source(Box::new(source)));
}

fn part_id(item_id: &str, at: u64) -> PartId {
    if item_id.is_empty() { PartId::from(format!("item-{at}")) } else { item_id.into() }
}

fn delta(event: &Item) -> ui_message_stream::event::Text {
    text_field(event, "delta").to_owned().into()
}
