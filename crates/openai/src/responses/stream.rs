//! [`EventReader`]: converts the events of a response to model events.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value, json};

use super::last_item::LastItem;
use super::provider_state::ProviderState;
use super::provider_tools;
use super::request::Fingerprints;
use crate::deltas::{Deltas, Target};
use crate::error::ProviderError;
use crate::fields::Fields;
use crate::response_items::{
    Item, mcp_result_event, mcp_tool_input, result_event, take_image, text_field, tool_input,
};
use crate::response_stream::ReadEvent;
use ui_message_stream::Json;
use ui_message_stream::chunk::{Chunk, Citations, FinishReason};
use ui_message_stream::event::{AgentEvent, Source, ToolCall};
use ui_message_stream::id::{PartId, ToolCallId};
use ui_message_stream::model::{ModelEvent, Usage};

/// Reads the events of one response.
#[derive(Debug)]
pub(super) struct EventReader {
    /// The approval requests that were approved, with the calls they are about.
    approved: HashMap<String, ToolCallId>,
    fingerprints: Fingerprints,
    /// The delayed events of the last complete item, if the provider stores the response.
    last: Option<LastItem>,
    deltas: Deltas,
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
    /// The arguments of the call so far, before its item is complete.
    arguments: String,
    /// Whether these are all its arguments.
    has_all_arguments: bool,
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
            deltas: Deltas::default(),
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
    fn read(&mut self, event: &Fields<'_>, events: Events<'_>) -> Result<(), ProviderError> {
        // What follows the end would be a second answer.
        if self.is_ended {
            return Ok(());
        }
        let (kind, mut fresh) = (event.text("type").unwrap_or_default(), VecDeque::new());
        let read = self.handle_event(&kind, event, &mut fresh);
        if let Some(last) = &mut self.last {
            match &*kind {
                "response.output_item.done" if !fresh.is_empty() => {
                    last.replace(std::mem::take(&mut fresh), events);
                }
                "response.completed" => {
                    let id = event.object("response").and_then(|response| response.text("id"));
                    last.end(id.as_deref(), std::mem::take(&mut fresh), events);
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
        self.deltas.end(|_| true, events);
        if self.is_ended { Ok(()) } else { Err(ProviderError::truncated()) }
    }
}

impl EventReader {
    fn handle_event(
        &mut self,
        kind: &str,
        event: &Fields<'_>,
        events: Events<'_>,
    ) -> Result<(), ProviderError> {
        let at = event.number("output_index").unwrap_or(0);
        match kind {
            "response.output_item.added" => {
                if let Some(item) = event.object("item") {
                    self.begin(at, &item, events);
                }
            }
            "response.output_item.done" => {
                if let Some(item) = event.object("item") {
                    self.end_item(at, &item, events);
                }
            }
            "response.output_text.delta" | "response.refusal.delta" => {
                let Some(delta) = event.string("delta") else { return Ok(()) };
                let id = part_id(&self.item_id(at, event.text("item_id")), at);
                self.open.entry(at).or_default().parts.insert(id.clone());
                self.seen.insert("message".to_owned());
                self.deltas.push(Target::Text(Some(id)), delta, events);
            }
            "response.output_text.annotation.added" => {
                let id = self.item_id(at, event.text("item_id"));
                if let Some(source) = source(event, &part_id(&id, at)) {
                    self.open.entry(at).or_default().citations.extend(citation(event, &source));
                    emit(events, AgentEvent::Source(Box::new(source)));
                }
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let Some(delta) = event.string("delta") else { return Ok(()) };
                let number =
                    event.number("summary_index").or_else(|| event.number("content_index"));
                let item_id = self.item_id(at, event.text("item_id"));
                let id = self.reasoning_part(at, &item_id, number.unwrap_or(0), events);
                self.open.entry(at).or_default().has_reasoning_text = true;
                self.seen.insert("reasoning".to_owned());
                self.deltas.push(Target::Reasoning(Some(id)), delta, events);
            }
            "response.function_call_arguments.delta" | "response.mcp_call_arguments.delta" => {
                let Some(delta) = event.string("delta") else { return Ok(()) };
                if let Some(open) = self.open.get_mut(&at)
                    && let Some(call) = &open.call
                {
                    let target = Target::ToolInput(call.id.clone());
                    let delta = self.deltas.push(target, delta, events);
                    open.arguments.push_str(&delta.unwrap_or_default());
                }
            }
            "response.function_call_arguments.done" => {
                if let Some(arguments) = event.json_text("arguments") {
                    let open = self.open.entry(at).or_default();
                    (open.arguments, open.has_all_arguments) = (arguments, true);
                }
            }
            "response.completed" | "response.incomplete" => {
                self.finish(
                    kind == "response.completed",
                    event.object("response").as_ref(),
                    events,
                );
            }
            "response.failed" => {
                let error = event.object("response").and_then(|response| response.value("error"));
                return Err(ProviderError::from_error_event(&error.unwrap_or_default()));
            }
            // A server that does not stream.
            "" if event.text("object").as_deref() == Some("response") => {
                let is_whole = event.text("status").as_deref() == Some("completed");
                self.finish(is_whole, Some(event), events);
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles the start of an item.
    fn begin(&mut self, at: u64, item: &Fields<'_>, events: Events<'_>) {
        self.open.insert(at, OpenItem::default());
        let id = self.item_id(at, item.text("id"));
        let call = match &*item.text("type").unwrap_or_default() {
            "reasoning" => {
                self.reasoning_part(at, &id, 0, events);
                return;
            }
            "function_call" => Some(self.function_call(item)),
            // The input is known from the approved call.
            "mcp_call" if self.approved.contains_key(&approval_request_id(item)) => None,
            "mcp_call" => Some(provider_tools::mcp_call(&whole(item, &id))),
            _ => provider_tools::call(&whole(item, &id)),
        };
        let Some(call) = call.filter(|call| !call.id.is_empty()) else { return };
        self.open.entry(at).or_default().call = Some(call.clone());
        emit(events, AgentEvent::tool_input_start(call));
    }

    /// Returns the first id of the item and uses it for all later events.
    fn item_id(&mut self, at: u64, id: Option<String>) -> String {
        let open = self.open.entry(at).or_default();
        if open.id.is_empty() {
            open.id = id.unwrap_or_default();
        }
        open.id.clone()
    }

    /// Handles the items that were not complete before the response was: some servers send them only with the whole
    /// response, or only the arguments of a call. Servers number the items of both in different ways, and give them
    /// other ids. So a call is known by its own id, and of every other type all items were sent, or none.
    fn end_rest(&mut self, output: &[Fields<'_>], events: Events<'_>) {
        let rest: Vec<_> = output.iter().filter(|it| !self.seen.contains(&identity(it))).collect();
        for (number, item) in (FIRST_OF_REST..).zip(rest) {
            let id = identity(item);
            let is_it = |open: &OpenItem| open.call.as_ref().is_some_and(|call| *call.id == *id);
            let begun = self.open.iter().find(|(_, open)| is_it(open)).map(|(at, _)| *at);
            if begun.is_none() {
                self.begin(number, item, events);
            }
            self.end_item(begun.unwrap_or(number), item, events);
        }
        let mut open: Vec<(u64, OpenItem)> = self.open.drain().collect();
        open.sort_by_key(|(at, _)| *at);
        for (_, item) in open {
            if let OpenItem { call: Some(call), arguments, has_all_arguments: true, .. } = item
                && !self.seen.contains(call.id.as_str())
            {
                self.has_open_calls = true;
                events.push_back(ModelEvent::ToolCall(Box::new(call), arguments));
            }
        }
    }

    /// Handles the end of an item.
    fn end_item(&mut self, at: u64, item: &Fields<'_>, events: Events<'_>) {
        let id = self.item_id(at, item.text("id"));
        self.seen.insert(identity(item));
        if let Some(call) = self.open.get(&at).and_then(|open| open.call.as_ref()) {
            let is_it = |target: &Target| matches!(target, Target::ToolInput(id) if *id == call.id);
            self.deltas.end(is_it, events);
        }
        match &*item.text("type").unwrap_or_default() {
            "message" => self.end_text(at, &id, item, events),
            "reasoning" => self.end_reasoning(at, &id, item, events),
            "function_call" => {
                self.has_open_calls = true;
                self.has_cut_call |= item.text("status").as_deref() == Some("incomplete");
                let call = self.function_call(item);
                let arguments = item.json_text("arguments").filter(|text| !text.is_empty());
                let streamed =
                    self.open.get_mut(&at).map(|open| std::mem::take(&mut open.arguments));
                let arguments = arguments.or(streamed).unwrap_or_default();
                events.push_back(ModelEvent::ToolCall(Box::new(call), arguments));
            }
            "tool_search_call" if item.text("execution").as_deref() == Some("client") => {
                self.has_open_calls = true;
                let state = ProviderState {
                    item_type: Some("tool_search_call".to_owned()),
                    ..ProviderState::default()
                };
                let mut call =
                    ToolCall::new(item.text("call_id").unwrap_or_default(), "tool_search");
                call.provider_metadata = state.metadata();
                let arguments = item.json_text("arguments").unwrap_or_default();
                events.push_back(ModelEvent::ToolCall(Box::new(call), arguments));
            }
            "mcp_approval_request" => {
                self.has_open_calls = true;
                let item = whole(item, &id);
                let call = provider_tools::mcp_call(&item);
                let arguments = text_field(&item, "arguments").to_owned();
                events.push_back(ModelEvent::ProviderApprovalRequest(Box::new(call), arguments));
            }
            "mcp_call" => self.end_mcp_call(&id, item, events),
            "mcp_list_tools" => {}
            kind => {
                let whole = whole(item, &id);
                match provider_tools::call(&whole) {
                    Some(call) => self.end_built_in_call(call, whole, events),
                    None => item.leave_out(&format!("type={kind}"), "it is not known"),
                }
            }
        }
        self.open.remove(&at);
    }

    fn end_text(&mut self, at: u64, item_id: &str, item: &Fields<'_>, events: Events<'_>) {
        let id = part_id(item_id, at);
        let target = Target::Text(Some(id.clone()));
        let mut is_begun = self.open.get(&at).is_some_and(|open| !open.parts.is_empty());
        if !is_begun {
            // A server may send the whole text at the end, or no text.
            for piece in item.objects("content") {
                if let Some(text) = piece.string("text").or_else(|| piece.string("refusal")) {
                    self.deltas.push(target.clone(), text, events);
                    is_begun = true;
                }
            }
        }
        if !is_begun {
            return;
        }
        self.deltas.end(|other| *other == target, events);
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
                let target = Target::Reasoning(Some(id.clone()));
                self.deltas.end(|other| *other == target, events);
                emit(events, AgentEvent::ReasoningEnd { id: Some(id), provider_metadata });
            }
            open.summary = number;
            emit(events, AgentEvent::ReasoningStart { id: id.clone() });
        }
        id
    }

    fn end_reasoning(&mut self, at: u64, item_id: &str, item: &Fields<'_>, events: Events<'_>) {
        if !self.open.get(&at).is_some_and(|open| open.has_reasoning_text) {
            // A server may send the whole reasoning at the end, or none.
            let mut pieces = item.objects("summary");
            if pieces.is_empty() {
                pieces = item.objects("content");
            }
            let texts = pieces.iter().filter_map(|piece| piece.string("text"));
            for (number, text) in (0..).zip(texts) {
                let id = self.reasoning_part(at, item_id, number, events);
                self.deltas.push(Target::Reasoning(Some(id)), text, events);
            }
        }
        let number = self.open.get(&at).map_or(0, |open| open.summary);
        let id = self.reasoning_part(at, item_id, number, events);
        let target = Target::Reasoning(Some(id.clone()));
        self.deltas.end(|other| *other == target, events);
        let encrypted = item.text("encrypted_content");
        let made_by = encrypted.is_some().then_some(&self.fingerprints);
        let state = ProviderState {
            item_id: Some(item_id.to_owned()),
            made_by: made_by.map(|it| it.endpoint.clone()),
            made_by_model: made_by.map(|it| it.model.clone()),
            reasoning_encrypted_content: encrypted,
            ..ProviderState::default()
        };
        let provider_metadata = state.metadata();
        emit(events, AgentEvent::ReasoningEnd { id: Some(id), provider_metadata });
    }

    fn end_mcp_call(&mut self, id: &str, item: &Fields<'_>, events: Events<'_>) {
        let approved = self.approved.remove(&approval_request_id(item));
        let item = whole(item, id);
        // An approval leads to one call. Any further call is shown as a separate call.
        let id = approved.unwrap_or_else(|| {
            let call = provider_tools::mcp_call(&item);
            let id = call.id.clone();
            emit(events, AgentEvent::tool_input(call, mcp_tool_input(&item)));
            id
        });
        emit(events, mcp_result_event(id, &item));
    }

    fn end_built_in_call(&mut self, call: ToolCall, mut item: Item, events: Events<'_>) {
        let id = call.id.clone();
        if let Some(picture) = take_image(&mut item) {
            emit(events, AgentEvent::File(Box::new(picture)));
        }
        emit(events, AgentEvent::tool_input(call, tool_input(&item)));
        emit(events, result_event(id, &item));
    }

    fn finish(&mut self, is_whole: bool, response: Option<&Fields<'_>>, events: Events<'_>) {
        let output = response.map(|response| response.objects("output"));
        self.end_rest(&output.unwrap_or_default(), events);
        self.deltas.end(|_| true, events);
        let field = |name| response.and_then(|response| response.object(name));
        let usage = field("usage");
        let tokens = |name| usage.as_ref().and_then(|usage| usage.number(name));
        let (input_tokens, output_tokens) = (tokens("input_tokens"), tokens("output_tokens"));
        if input_tokens.is_some() || output_tokens.is_some() {
            events.push_back(ModelEvent::Usage(Usage {
                input_tokens: input_tokens.unwrap_or(0),
                output_tokens: output_tokens.unwrap_or(0),
            }));
        }
        let why = field("incomplete_details").and_then(|details| details.text("reason"));
        let reason = match why.as_deref() {
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

    fn function_call(&self, item: &Fields<'_>) -> ToolCall {
        let text = |field| item.text(field).unwrap_or_default();
        let mut call = ToolCall::new(text("call_id"), text("name"));
        call.provider_metadata =
            ProviderState { namespace: item.text("namespace"), ..ProviderState::default() }
                .metadata();
        call
    }
}

/// Returns what an item is known by: the id of its call, or its type.
fn identity(item: &Fields<'_>) -> String {
    item.text("call_id").or_else(|| item.text("type")).unwrap_or_default()
}

fn approval_request_id(item: &Fields<'_>) -> String {
    item.text("approval_request_id").unwrap_or_default()
}

/// Returns the whole item of a tool that the provider executes, with the first id of the item.
fn whole(item: &Fields<'_>, id: &str) -> Item {
    let mut whole = item.to_item();
    if !id.is_empty() {
        whole.insert("id".to_owned(), id.into());
    }
    if let Some(arguments) = item.json_text("arguments") {
        whole.insert("arguments".to_owned(), arguments.into());
    }
    // Each is read as a text below, where a field of another type is the empty text.
    for field in ["status", "server_label", "name", "output"] {
        item.text(field);
    }
    whole
}

/// The number of the first item that was not sent before the whole response.
const FIRST_OF_REST: u64 = 1 << 32;

fn emit(events: Events<'_>, event: AgentEvent) {
    events.push_back(ModelEvent::Event(event));
}

/// Returns the source that an annotation names.
fn source(event: &Fields<'_>, part: &PartId) -> Option<Source> {
    let annotation = event.object("annotation")?;
    let number = event.number("annotation_index").unwrap_or(0);
    let source_id = format!("{part}:{number}").into();
    let owned = |field: &str| annotation.text(field);
    Some(match &*annotation.text("type")? {
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
fn citation(event: &Fields<'_>, source: &Source) -> Option<Value> {
    let Source::Url { source_id, url, title } = source else { return None };
    let annotation = event.object("annotation")?;
    let mut source = json!({"type": "source", "sourceType": "url", "id": source_id, "url": url});
    if let Some(title) = title {
        source["title"] = json!(title);
    }
    Some(match (annotation.number("start_index"), annotation.number("end_index")) {
        (Some(start), Some(end)) => json!({"source": source, "startIndex": start, "endIndex": end}),
        _ => json!({"source": source}),
    })
}

fn part_id(item_id: &str, at: u64) -> PartId {
    if item_id.is_empty() { PartId::from(format!("item-{at}")) } else { item_id.into() }
}
