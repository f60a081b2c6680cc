//! [`EventReader`]: converts the events of a response to model events.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value, json};

use super::last_item::LastItem;
use super::provider_state::ProviderState;
use super::provider_tools;
use super::request::Fingerprints;
use crate::error::ProviderError;
use crate::fields::LeftOut;
use crate::response_items::{
    Item, mcp_result_event, mcp_tool_input, result_event, take_image, text_field, tool_input,
};
use crate::response_stream::ReadEvent;
use ui_message_stream::Json;
use ui_message_stream::chunk::{Chunk, Citations, FinishReason};
use ui_message_stream::event::{AgentEvent, Source, ToolCall};
use ui_message_stream::id::{PartId, ToolCallId, log_text};
use ui_message_stream::model::{ModelEvent, Usage};

/// Reads the events of one response.
#[derive(Debug)]
pub(super) struct EventReader {
    /// The approval requests that were approved, with the calls they are about.
    approved: HashMap<String, ToolCallId>,
    fingerprints: Fingerprints,
    /// The delayed events of the last complete item, if the provider stores the response.
    last: Option<LastItem>,
    /// The open items by their output index.
    open: HashMap<u64, OpenItem>,
    /// The types of the items whose content was emitted, and the ids of the calls that are complete.
    seen: HashSet<String>,
    /// Whether the response has calls or approval requests that must be answered before the model
    /// continues.
    has_open_calls: bool,
    /// Whether a call of the response was cut off.
    has_cut_call: bool,
    is_ended: bool,
}

/// An item that is not complete.
#[derive(Debug, Default)]
struct OpenItem {
    /// The first id of the item: some servers use another id in every event.
    id: String,
    /// The call that arguments are added to.
    call: Option<ToolCall>,
    /// The complete arguments of a function, before its item is complete.
    arguments: Option<String>,
    /// The text or reasoning parts that were started.
    parts: HashSet<PartId>,
    /// Whether reasoning was emitted as text.
    has_reasoning_text: bool,
    /// The number of the last reasoning summary.
    summary: u64,
    /// What the text cites.
    citations: Vec<Value>,
}

impl EventReader {
    pub(super) fn new(
        approved: HashMap<String, ToolCallId>,
        is_stored: bool,
        fingerprints: Fingerprints,
    ) -> Self {
        EventReader {
            approved,
            fingerprints,
            last: is_stored.then(LastItem::default),
            open: HashMap::new(),
            seen: HashSet::new(),
            has_open_calls: false,
            has_cut_call: false,
            is_ended: false,
        }
    }
}

type Events<'a> = &'a mut VecDeque<ModelEvent>;

impl ReadEvent for EventReader {
    fn read(&mut self, event: &Item, _: &LeftOut, events: Events<'_>) -> Result<(), ProviderError> {
        let mut fresh = VecDeque::new();
        let read = self.handle_event(event, &mut fresh);
        if let Some(last) = &mut self.last {
            let response = event.get("response");
            match text_field(event, "type") {
                "response.output_item.done" if !fresh.is_empty() => {
                    last.replace(std::mem::take(&mut fresh), events);
                }
                "response.completed" => {
                    let id = response.and_then(|response| response.get("id")?.as_str());
                    last.end(id, std::mem::take(&mut fresh), events);
                }
                kind => {
                    let is_begun = kind == "response.output_item.added";
                    if is_begun || !fresh.is_empty() || read.is_err() {
                        last.release(events);
                    }
                }
            }
        }
        events.append(&mut fresh);
        read
    }

    fn end(&mut self, _: bool, events: Events<'_>) -> Result<(), ProviderError> {
        if let Some(last) = &mut self.last {
            last.release(events);
        }
        if self.is_ended { Ok(()) } else { Err(ProviderError::truncated()) }
    }
}

impl EventReader {
    fn handle_event(&mut self, event: &Item, events: Events<'_>) -> Result<(), ProviderError> {
        let at = event.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        let item = event.get("item").and_then(Value::as_object);
        match text_field(event, "type") {
            "response.output_item.added" => self.begin(at, item, events),
            "response.output_item.done" => {
                let Some(item) = item else { return Ok(()) };
                self.end_whole_item(at, item.clone(), events);
            }
            "response.output_text.delta" | "response.refusal.delta" => {
                let id = part_id(&self.item_id(at, text_field(event, "item_id")), at);
                self.open.entry(at).or_default().parts.insert(id.clone());
                self.seen.insert("message".to_owned());
                emit(events, AgentEvent::TextDelta { id: Some(id), delta: delta(event) });
            }
            "response.output_text.annotation.added" => {
                let id = self.item_id(at, text_field(event, "item_id"));
                if let Some(source) = source(event, &part_id(&id, at)) {
                    self.open.entry(at).or_default().citations.extend(citation(event, &source));
                    emit(events, AgentEvent::Source(Box::new(source)));
                }
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let number = event.get("summary_index").or_else(|| event.get("content_index"));
                let number = number.and_then(Value::as_u64).unwrap_or(0);
                let item_id = self.item_id(at, text_field(event, "item_id"));
                let id = self.reasoning_part(at, &item_id, number, events);
                self.open.entry(at).or_default().has_reasoning_text = true;
                self.seen.insert("reasoning".to_owned());
                emit(events, AgentEvent::ReasoningDelta { id: Some(id), delta: delta(event) });
            }
            "response.function_call_arguments.delta" | "response.mcp_call_arguments.delta" => {
                if let Some(call) = self.open.get(&at).and_then(|open| open.call.as_ref()) {
                    let (tool_call_id, delta) = (call.id.clone(), delta(event));
                    emit(events, AgentEvent::ToolInputDelta { tool_call_id, delta });
                }
            }
            "response.function_call_arguments.done" => {
                let arguments = text_field(event, "arguments").to_owned();
                self.open.entry(at).or_default().arguments = Some(arguments);
            }
            kind @ ("response.completed" | "response.incomplete") => {
                self.finish(kind == "response.completed", event.get("response"), events);
            }
            "response.failed" => {
                let response = event.get("response");
                let error = response.and_then(|response| response.get("error"));
                return Err(ProviderError::from_error_event(error.unwrap_or(&Value::Null)));
            }
            // A server that does not stream.
            "" if text_field(event, "object") == "response" => {
                let is_whole = text_field(event, "status") == "completed";
                self.finish(is_whole, Some(&Value::Object(event.clone())), events);
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles the start of an item.
    fn begin(&mut self, at: u64, item: Option<&Item>, events: Events<'_>) {
        let Some(item) = item else { return };
        self.open.insert(at, OpenItem::default());
        self.item_id(at, text_field(item, "id"));
        let call = match text_field(item, "type") {
            "function_call" => Some(self.function_call(item)),
            // The input is known from the approved call.
            "mcp_call" if self.approved.contains_key(text_field(item, "approval_request_id")) => {
                None
            }
            "mcp_call" => Some(provider_tools::mcp_call(item)),
            "reasoning" => {
                self.reasoning_part(at, text_field(item, "id"), 0, events);
                return;
            }
            _ => provider_tools::call(item),
        };
        let Some(call) = call.filter(|call| !call.id.is_empty()) else { return };
        self.open.entry(at).or_default().call = Some(call.clone());
        emit(events, AgentEvent::tool_input_start(call));
    }

    /// Returns the first id of the item and uses it for all later events.
    fn item_id(&mut self, at: u64, id: &str) -> String {
        let open = self.open.entry(at).or_default();
        if open.id.is_empty() {
            id.clone_into(&mut open.id);
        }
        open.id.clone()
    }

    /// Handles a complete item.
    fn end_whole_item(&mut self, at: u64, mut item: Item, events: Events<'_>) {
        let id = self.item_id(at, text_field(&item, "id"));
        if !id.is_empty() {
            item.insert("id".into(), id.into());
        }
        self.seen.insert(identity(&item).to_owned());
        self.end_item(at, &item, events);
    }

    /// Handles the items that were not complete before the response was: some servers send them only with the whole
    /// response, or only the arguments of a call. Servers number the items of both in different ways, and give them
    /// other ids. So a call is known by its own id, and of every other type all items were sent, or none.
    fn end_rest(&mut self, output: &[Value], events: Events<'_>) {
        let items = output.iter().filter_map(Value::as_object);
        let rest: Vec<&Item> = items.filter(|it| !self.seen.contains(identity(it))).collect();
        for (number, item) in (FIRST_OF_REST..).zip(rest) {
            let is_it = |open: &OpenItem| {
                open.call.as_ref().is_some_and(|call| call.id.as_str() == identity(item))
            };
            let begun = self.open.iter().find(|(_, open)| is_it(open)).map(|(at, _)| *at);
            if begun.is_none() {
                self.begin(number, Some(item), events);
            }
            self.end_whole_item(begun.unwrap_or(number), item.clone(), events);
        }
        let mut open: Vec<(u64, OpenItem)> = self.open.drain().collect();
        open.sort_by_key(|(at, _)| *at);
        for (_, item) in open {
            if let OpenItem { call: Some(call), arguments: Some(arguments), .. } = item
                && !self.seen.contains(call.id.as_str())
            {
                self.has_open_calls = true;
                events.push_back(ModelEvent::ToolCall(Box::new(call), arguments));
            }
        }
    }

    /// Handles the end of an item.
    fn end_item(&mut self, at: u64, item: &Item, events: Events<'_>) {
        match text_field(item, "type") {
            "message" => self.end_text(at, item, events),
            "reasoning" => self.end_reasoning(at, item, events),
            "function_call" => {
                self.has_open_calls = true;
                self.has_cut_call |= text_field(item, "status") == "incomplete";
                let call = self.function_call(item);
                let arguments = text_field(item, "arguments").to_owned();
                events.push_back(ModelEvent::ToolCall(Box::new(call), arguments));
            }
            "tool_search_call" if text_field(item, "execution") == "client" => {
                self.has_open_calls = true;
                let state = ProviderState {
                    item_type: Some("tool_search_call".to_owned()),
                    ..ProviderState::default()
                };
                let mut call = ToolCall::new(text_field(item, "call_id"), "tool_search");
                call.provider_metadata = state.metadata();
                let arguments = item.get("arguments").map(Value::to_string).unwrap_or_default();
                events.push_back(ModelEvent::ToolCall(Box::new(call), arguments));
            }
            "mcp_approval_request" => {
                self.has_open_calls = true;
                let call = provider_tools::mcp_call(item);
                let arguments = text_field(item, "arguments").to_owned();
                events.push_back(ModelEvent::ProviderApprovalRequest(Box::new(call), arguments));
            }
            "mcp_call" => self.end_mcp_call(item, events),
            "mcp_list_tools" => {}
            kind => match provider_tools::call(item) {
                Some(call) => self.end_built_in_call(call, item, events),
                None => {
                    let kind = &*log_text(kind);
                    tracing::warn!(kind, "a kind of item that is not known is left out");
                }
            },
        }
        self.open.remove(&at);
    }

    fn end_text(&mut self, at: u64, item: &Item, events: Events<'_>) {
        let id = part_id(text_field(item, "id"), at);
        let mut is_begun = self.open.get(&at).is_some_and(|open| !open.parts.is_empty());
        if !is_begun {
            // A server may send the whole text at the end, or no text.
            let pieces = item.get("content").and_then(Value::as_array).into_iter().flatten();
            let texts = pieces.filter_map(|piece| piece.get("text").or(piece.get("refusal")));
            for piece in texts.filter_map(Value::as_str) {
                let delta = piece.to_owned().into();
                emit(events, AgentEvent::TextDelta { id: Some(id.clone()), delta });
                is_begun = true;
            }
        }
        if !is_begun {
            return;
        }
        let cited = self.open.get_mut(&at).map(|open| std::mem::take(&mut open.citations));
        let cited = cited.filter(|cited| !cited.is_empty());
        let citations = cited.and_then(|cited| Json::try_from(Value::Array(cited)).ok());
        emit(
            events,
            match citations.and_then(|citations| Citations::new(citations).ok()) {
                Some(citations) => AgentEvent::Chunk(Box::new(Chunk::TextEnd {
                    id: Cow::Owned(id.to_string()),
                    citations: Some(Cow::Owned(citations)),
                    provider_metadata: None,
                })),
                None => AgentEvent::TextEnd { id },
            },
        );
    }

    /// Returns the part of a reasoning summary. Starts the part if necessary, and ends the previous
    /// one.
    fn reasoning_part(
        &mut self,
        at: u64,
        item_id: &str,
        number: u64,
        events: Events<'_>,
    ) -> PartId {
        let state = ProviderState { item_id: Some(item_id.to_owned()), ..ProviderState::default() };
        let open = self.open.entry(at).or_default();
        let id = PartId::from(format!("{item_id}:{number}"));
        if open.parts.insert(id.clone()) {
            if number > open.summary {
                let id = PartId::from(format!("{item_id}:{}", open.summary));
                let provider_metadata = state.metadata();
                emit(events, AgentEvent::ReasoningEnd { id: Some(id), provider_metadata });
            }
            open.summary = number;
            emit(events, AgentEvent::ReasoningStart { id: id.clone() });
        }
        id
    }

    fn end_reasoning(&mut self, at: u64, item: &Item, events: Events<'_>) {
        let item_id = text_field(item, "id");
        if !self.open.get(&at).is_some_and(|open| open.has_reasoning_text) {
            // A server may send the whole reasoning at the end, or none.
            let pieces = |field| {
                let list = item.get(field).and_then(Value::as_array).into_iter().flatten();
                list.filter_map(|piece| piece.get("text")?.as_str()).collect::<Vec<&str>>()
            };
            let mut texts = pieces("summary");
            if texts.is_empty() {
                texts = pieces("content");
            }
            for (number, text) in (0..).zip(texts) {
                let id = Some(self.reasoning_part(at, item_id, number, events));
                emit(events, AgentEvent::ReasoningDelta { id, delta: text.to_owned().into() });
            }
        }
        let number = self.open.get(&at).map_or(0, |open| open.summary);
        let id = self.reasoning_part(at, item_id, number, events);
        let encrypted = item.get("encrypted_content").and_then(Value::as_str);
        let state = ProviderState {
            item_id: Some(item_id.to_owned()),
            made_by: encrypted.map(|_| self.fingerprints.endpoint.clone()),
            made_by_model: encrypted.map(|_| self.fingerprints.model.clone()),
            reasoning_encrypted_content: encrypted.map(str::to_owned),
            ..ProviderState::default()
        };
        let provider_metadata = state.metadata();
        emit(events, AgentEvent::ReasoningEnd { id: Some(id), provider_metadata });
    }

    fn end_mcp_call(&mut self, item: &Item, events: Events<'_>) {
        // An approval leads to one call. Any further call is shown as a separate call.
        let id = match self.approved.remove(text_field(item, "approval_request_id")) {
            Some(id) => id,
            None => {
                let call = provider_tools::mcp_call(item);
                let id = call.id.clone();
                emit(events, AgentEvent::tool_input(call, mcp_tool_input(item)));
                id
            }
        };
        emit(events, mcp_result_event(id, item));
    }

    fn end_built_in_call(&mut self, call: ToolCall, item: &Item, events: Events<'_>) {
        let id = call.id.clone();
        let mut item = item.clone();
        if let Some(picture) = take_image(&mut item) {
            emit(events, AgentEvent::File(Box::new(picture)));
        }
        emit(events, AgentEvent::tool_input(call, tool_input(&item)));
        emit(events, result_event(id, &item));
    }

    fn finish(&mut self, is_whole: bool, response: Option<&Value>, events: Events<'_>) {
        let field = |name: &str| response.and_then(|response| response.get(name));
        let output = field("output").and_then(Value::as_array);
        self.end_rest(output.map(|output| &**output).unwrap_or_default(), events);
        let tokens = |name: &str| field("usage").and_then(|usage| usage.get(name)?.as_u64());
        let (input_tokens, output_tokens) = (tokens("input_tokens"), tokens("output_tokens"));
        if input_tokens.is_some() || output_tokens.is_some() {
            events.push_back(ModelEvent::Usage(Usage {
                input_tokens: input_tokens.unwrap_or(0),
                output_tokens: output_tokens.unwrap_or(0),
            }));
        }
        let why = field("incomplete_details").and_then(|details| details.get("reason")?.as_str());
        let reason = match why {
            _ if self.has_cut_call => FinishReason::Length,
            _ if is_whole && self.has_open_calls => FinishReason::ToolCalls,
            _ if is_whole => FinishReason::Stop,
            Some("max_output_tokens") => FinishReason::Length,
            Some("content_filter") => FinishReason::ContentFilter,
            _ => FinishReason::Other,
        };
        self.is_ended = true;
        events.push_back(ModelEvent::Finished(reason));
    }

    fn function_call(&self, item: &Item) -> ToolCall {
        let namespace = provider_tools::optional_text(item, "namespace");
        let mut call =
            ToolCall::new(text_field(item, "call_id"), text_field(item, "name").to_owned());
        call.provider_metadata = ProviderState { namespace, ..ProviderState::default() }.metadata();
        call
    }
}

/// Returns what an item is known by: the id of its call, or its type.
fn identity(item: &Item) -> &str {
    match text_field(item, "call_id") {
        "" => text_field(item, "type"),
        id => id,
    }
}

/// The number of the first item that was not sent before the whole response.
const FIRST_OF_REST: u64 = 1 << 32;

fn emit(events: Events<'_>, event: AgentEvent) {
    events.push_back(ModelEvent::Event(event));
}

/// Returns the source that an annotation names.
fn source(event: &Item, part: &PartId) -> Option<Source> {
    let annotation = event.get("annotation")?.as_object()?;
    let number = event.get("annotation_index").and_then(Value::as_u64).unwrap_or(0);
    let source_id = format!("{part}:{number}").into();
    let owned = |field: &str| {
        let value = annotation.get(field).and_then(Value::as_str);
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    Some(match text_field(annotation, "type") {
        "url_citation" => {
            let title = owned("title").map(Into::into);
            Source::Url { source_id, url: owned("url")?.into(), title }
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
        _ => return None,
    })
}

/// Returns what an annotation cites of a web page, and for which piece of the text.
fn citation(event: &Item, source: &Source) -> Option<Value> {
    let Source::Url { source_id, url, title } = source else { return None };
    let annotation = event.get("annotation")?;
    let mut source = json!({"type": "source", "sourceType": "url", "id": source_id, "url": url});
    if let Some(title) = title {
        source["title"] = json!(title);
    }
    let (start, end) = (annotation.get("start_index"), annotation.get("end_index"));
    Some(match (start.and_then(Value::as_u64), end.and_then(Value::as_u64)) {
        (Some(start), Some(end)) => json!({"source": source, "startIndex": start, "endIndex": end}),
        _ => json!({"source": source}),
    })
}

fn part_id(item_id: &str, at: u64) -> PartId {
    if item_id.is_empty() { PartId::from(format!("item-{at}")) } else { item_id.into() }
}

fn delta(event: &Item) -> ui_message_stream::event::Text {
    text_field(event, "delta").to_owned().into()
}
