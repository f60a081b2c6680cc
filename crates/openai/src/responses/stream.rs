//! [`EventReader`]: converts the events of a response to model events.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::items::{Identity, Item, Items};
use super::last_item::LastItem;
use super::provider_state::ProviderState;
use super::provider_tools;
use super::request::Fingerprints;
use crate::deltas::{Deltas, Target};
use crate::error::ProviderError;
use crate::fields::Fields;
use crate::fields::LeftOut;
use crate::response_items::{
    self, mcp_result_event, mcp_tool_input, result_event, take_image, text_field, tool_input,
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
    /// Whether the request asks for encrypted reasoning.
    awaits_state: bool,
    /// The ends of reasoning without it: some servers, as Azure, send it only with the whole response.
    held: Vec<(PartId, ProviderState)>,
    deltas: Deltas,
    items: Items,
    /// Whether the response has calls or approval requests that must be answered before the model
    /// continues.
    has_open_calls: bool,
    /// Why no call of the response runs: one was cut off, or its input may lack a piece.
    cut: Option<FinishReason>,
    is_ended: bool,
}

impl EventReader {
    pub(super) fn new(
        approved: HashMap<String, ToolCallId>,
        is_stored: bool,
        awaits_state: bool,
        fingerprints: Fingerprints,
    ) -> Self {
        EventReader {
            approved,
            fingerprints,
            last: is_stored.then(LastItem::default),
            awaits_state,
            held: Vec::new(),
            deltas: Deltas::default(),
            items: Items::default(),
            has_open_calls: false,
            cut: None,
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
        let kind = event.text("type").unwrap_or_default();
        let mut fresh = VecDeque::new();
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
                    if is_begun || !fresh.is_empty() {
                        last.release(events);
                    }
                }
            }
        }
        events.append(&mut fresh);
        read
    }

    fn release(&mut self, events: Events<'_>) {
        if let Some(last) = &mut self.last {
            last.release(events);
        }
        self.deltas.end(|_| true, events);
        self.release_held(events);
    }

    fn end(&mut self, _: bool, _: &LeftOut, _: Events<'_>) -> Result<(), ProviderError> {
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
        match kind {
            "response.output_item.added" => {
                let Some(fields) = event.object("item") else { return Ok(()) };
                let at = event.number("output_index");
                let mut item = self.items.begin(Identity::of_item(at, &fields));
                self.begin(&mut item, &fields, events);
                self.items.add_open(item);
            }
            "response.output_item.done" => {
                let Some(fields) = event.object("item") else { return Ok(()) };
                let at = event.number("output_index");
                let item = self.items.take(Identity::of_item(at, &fields));
                self.end_item(item, &fields, events);
            }
            "response.output_text.delta" | "response.refusal.delta" => {
                let Some(delta) = event.delta("text") else { return Ok(()) };
                let item = self.items.of(Identity::of_event("message", event));
                let id = item.part_id();
                item.parts.insert(id.clone());
                self.deltas.push(Target::Text(Some(id)), delta, events);
            }
            "response.output_text.annotation.added" => {
                let item = self.items.of(Identity::of_event("message", event));
                if let Some(source) = source(event, &item.part_id()) {
                    item.citations.extend(citation(event, &source));
                    emit(events, AgentEvent::Source(Box::new(source)));
                }
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let Some(delta) = event.delta("reasoning") else { return Ok(()) };
                let number =
                    event.number("summary_index").or_else(|| event.number("content_index"));
                let item = self.items.of(Identity::of_event("reasoning", event));
                item.has_reasoning_text = true;
                let id = reasoning_part(item, number.unwrap_or(0), &mut self.deltas, events);
                self.deltas.push(Target::Reasoning(Some(id)), delta, events);
            }
            "response.function_call_arguments.delta" | "response.mcp_call_arguments.delta" => {
                let Some(delta) = event.delta("arguments") else { return Ok(()) };
                let kind = if kind.contains("mcp") { "mcp_call" } else { "function_call" };
                let item = self.items.of(Identity::of_event(kind, event));
                if let Some(call) = &item.call {
                    let target = Target::ToolInput(call.id.clone());
                    let delta = self.deltas.push(target, delta, events);
                    item.arguments.push_str(&delta.unwrap_or_default());
                } else if item.is_function_call() {
                    // Its name may come with its end.
                    item.arguments.push_str(&event.text("delta").unwrap_or_default());
                }
            }
            "response.function_call_arguments.done" => {
                if let Some(arguments) = event.json_text("arguments") {
                    let item = self.items.of(Identity::of_event("function_call", event));
                    (item.arguments, item.has_all_arguments) = (arguments, true);
                }
            }
            "response.completed" | "response.incomplete" => {
                let response = event.object("response");
                let is_whole = kind == "response.completed";
                self.finish(is_whole, response.as_ref().unwrap_or(event), events);
            }
            "response.failed" => {
                let error = event.object("response").and_then(|response| response.value("error"));
                return Err(ProviderError::from_error_event(&error.unwrap_or_default()));
            }
            // A server that does not stream.
            "" if event.text("object").as_deref() == Some("response") => {
                let is_whole = event.text("status").as_deref() == Some("completed");
                self.finish(is_whole, event, events);
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles the start of an item.
    fn begin(&mut self, item: &mut Item, fields: &Fields<'_>, events: Events<'_>) {
        let call = match item.kind() {
            "reasoning" => {
                reasoning_part(item, 0, &mut self.deltas, events);
                return;
            }
            "function_call" => Some(function_call(fields)),
            // The input is known from the approved call.
            "mcp_call" if self.approved.contains_key(&approval_request_id(fields)) => None,
            "mcp_call" => Some(provider_tools::mcp_call(&whole(fields, item.id()))),
            _ => provider_tools::call(&whole(fields, item.id())),
        };
        let is_known = |call: &ToolCall| !call.id.is_empty() && !call.tool_name.is_empty();
        let Some(call) = call.filter(is_known) else { return };
        if item.call.is_none() {
            item.call = Some(call.clone());
            emit(events, AgentEvent::tool_input_start(call));
        }
    }

    /// Handles what did not end before the response did: some servers send items only with the whole response, or only the
    /// arguments of a call.
    fn end_rest(&mut self, response: &Fields<'_>, events: Events<'_>) {
        for (mut item, fields) in self.items.merge(&response.objects("output")) {
            if item.is_ended() {
                let part = last_part(&item);
                let state = self.reasoning_state(&item, fields);
                if let Some((_, held)) = self.held.iter_mut().find(|(held, _)| *held == part) {
                    *held = state;
                }
                continue;
            }
            self.begin(&mut item, fields, events);
            self.end_item(item, fields, events);
        }
        self.release_held(events);
        for item in self.items.rest() {
            match item.call {
                Some(call) if item.has_all_arguments => {
                    self.has_open_calls = true;
                    self.check_input(response);
                    events.push_back(ModelEvent::ToolCall(Box::new(call), item.arguments));
                }
                _ if item.is_function_call() => {
                    response.leave_out("output", "a call that was streamed is not in it");
                }
                _ => {}
            }
        }
    }

    /// Handles the end of an item.
    fn end_item(&mut self, mut it: Item, item: &Fields<'_>, events: Events<'_>) {
        if let Some(call) = &it.call {
            let is_it = |target: &Target| matches!(target, Target::ToolInput(id) if *id == call.id);
            self.deltas.end(is_it, events);
        }
        match it.kind() {
            "message" => self.end_text(&mut it, item, events),
            "reasoning" => self.end_reasoning(&mut it, item, events),
            "function_call" => {
                self.has_open_calls = true;
                if item.text("status").as_deref() == Some("incomplete") {
                    self.cut = Some(FinishReason::Length);
                }
                let mut call = function_call(item);
                if let Some(begun) = it.call.take() {
                    // Some servers give the call another id here.
                    call.id = begun.id;
                    if call.tool_name.is_empty() {
                        call.tool_name = begun.tool_name;
                    }
                }
                let arguments = item.json_text("arguments").filter(|text| !text.is_empty());
                let arguments = arguments.unwrap_or_else(|| {
                    self.check_input(item);
                    std::mem::take(&mut it.arguments)
                });
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
                let item = whole(item, it.id());
                let call = provider_tools::mcp_call(&item);
                let arguments = text_field(&item, "arguments").to_owned();
                events.push_back(ModelEvent::ProviderApprovalRequest(Box::new(call), arguments));
            }
            "mcp_call" => self.end_mcp_call(it.id(), item, events),
            "mcp_list_tools" => {}
            kind => {
                let whole = whole(item, it.id());
                match provider_tools::call(&whole) {
                    Some(call) => self.end_built_in_call(call, whole, events),
                    None => item.leave_out(&format!("type={kind}"), "it is not known"),
                }
            }
        }
        self.items.add_ended(it);
    }

    /// Checks an input that only other events than the item have.
    fn check_input(&mut self, fields: &Fields<'_>) {
        if fields.may_lack_input() {
            self.cut.get_or_insert(FinishReason::Other);
        }
    }

    fn end_text(&mut self, it: &mut Item, item: &Fields<'_>, events: Events<'_>) {
        let id = it.part_id();
        let target = Target::Text(Some(id.clone()));
        let mut is_begun = !it.parts.is_empty();
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
        let cited = Some(std::mem::take(&mut it.citations)).filter(|cited| !cited.is_empty());
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

    fn end_reasoning(&mut self, it: &mut Item, item: &Fields<'_>, events: Events<'_>) {
        if !it.has_reasoning_text {
            // A server may send the whole reasoning at the end, or none.
            let mut pieces = item.objects("summary");
            if pieces.is_empty() {
                pieces = item.objects("content");
            }
            let texts = pieces.iter().filter_map(|piece| piece.string("text"));
            for (number, text) in (0..).zip(texts) {
                let id = reasoning_part(it, number, &mut self.deltas, events);
                self.deltas.push(Target::Reasoning(Some(id)), text, events);
            }
        }
        let id = reasoning_part(it, it.summary, &mut self.deltas, events);
        let target = Target::Reasoning(Some(id.clone()));
        self.deltas.end(|other| *other == target, events);
        let state = self.reasoning_state(it, item);
        if self.awaits_state && state.reasoning_encrypted_content.is_none() {
            self.held.push((id, state));
            return;
        }
        let provider_metadata = state.metadata();
        emit(events, AgentEvent::ReasoningEnd { id: Some(id), provider_metadata });
    }

    fn reasoning_state(&self, it: &Item, item: &Fields<'_>) -> ProviderState {
        let encrypted = item.text("encrypted_content");
        let made_by = encrypted.is_some().then_some(&self.fingerprints);
        ProviderState {
            item_id: Some(it.id().to_owned()),
            made_by: made_by.map(|it| it.endpoint.clone()),
            made_by_model: made_by.map(|it| it.model.clone()),
            reasoning_encrypted_content: encrypted,
            ..ProviderState::default()
        }
    }

    /// Emits the ends of reasoning that were held back.
    fn release_held(&mut self, events: Events<'_>) {
        for (id, state) in self.held.drain(..) {
            let id = Some(id);
            let provider_metadata = state.metadata();
            emit(events, AgentEvent::ReasoningEnd { id, provider_metadata });
        }
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

    fn end_built_in_call(
        &mut self,
        call: ToolCall,
        mut item: response_items::Item,
        events: Events<'_>,
    ) {
        let id = call.id.clone();
        if let Some(picture) = take_image(&mut item) {
            emit(events, AgentEvent::File(Box::new(picture)));
        }
        emit(events, AgentEvent::tool_input(call, tool_input(&item)));
        emit(events, result_event(id, &item));
    }

    fn finish(&mut self, is_whole: bool, response: &Fields<'_>, events: Events<'_>) {
        self.end_rest(response, events);
        self.deltas.end(|_| true, events);
        let field = |name| response.object(name);
        let usage = field("usage");
        let tokens = |name| usage.as_ref().and_then(|usage| usage.number(name));
        let input_tokens = tokens("input_tokens");
        let output_tokens = tokens("output_tokens");
        if input_tokens.is_some() || output_tokens.is_some() {
            events.push_back(ModelEvent::Usage(Usage {
                input_tokens: input_tokens.unwrap_or(0),
                output_tokens: output_tokens.unwrap_or(0),
            }));
        }
        let details = field("incomplete_details");
        let why = details.as_ref().and_then(|details| details.text("reason"));
        // Some servers end every response with the same event.
        let is_whole = is_whole
            && details.is_none()
            && response.text("status").is_none_or(|status| status == "completed");
        let reason = match why.as_deref() {
            _ if is_whole && self.has_open_calls => FinishReason::ToolCalls,
            _ if is_whole => FinishReason::Stop,
            Some("max_output_tokens") => FinishReason::Length,
            Some("content_filter") => FinishReason::ContentFilter,
            _ => FinishReason::Other,
        };
        self.is_ended = true;
        events.push_back(ModelEvent::Finished(self.cut.unwrap_or(reason)));
    }
}

/// Returns the part of a reasoning summary. Starts the part if necessary, and ends the previous
/// one.
fn reasoning_part(item: &mut Item, number: u64, deltas: &mut Deltas, events: Events<'_>) -> PartId {
    let id = part_of(item, number);
    let previous = last_part(item);
    if item.parts.insert(id.clone()) {
        if number > item.summary {
            let state =
                ProviderState { item_id: Some(item.id().to_owned()), ..ProviderState::default() };
            let target = Target::Reasoning(Some(previous.clone()));
            deltas.end(|other| *other == target, events);
            let id = Some(previous);
            let provider_metadata = state.metadata();
            emit(events, AgentEvent::ReasoningEnd { id, provider_metadata });
        }
        item.summary = number;
        emit(events, AgentEvent::ReasoningStart { id: id.clone() });
    }
    id
}

/// Returns the id of the last part of reasoning so far.
fn last_part(item: &Item) -> PartId {
    part_of(item, item.summary)
}

fn part_of(item: &Item, number: u64) -> PartId {
    PartId::from(format!("{}:{number}", item.part_id()))
}

fn function_call(item: &Fields<'_>) -> ToolCall {
    let text = |field| item.text(field).unwrap_or_default();
    let mut call = ToolCall::new(text("call_id"), text("name"));
    call.provider_metadata =
        ProviderState { namespace: item.text("namespace"), ..ProviderState::default() }.metadata();
    call
}

fn approval_request_id(item: &Fields<'_>) -> String {
    item.text("approval_request_id").unwrap_or_default()
}

/// Returns the whole item of a tool that the provider executes, with the first id of the item.
fn whole(item: &Fields<'_>, id: &str) -> response_items::Item {
    let mut whole = item.to_item();
    if !id.is_empty() {
        whole.insert("id".to_owned(), id.into());
    }
    if let Some(arguments) = item.json_text("arguments") {
        whole.insert("arguments".to_owned(), arguments.into());
    }
    // A field of another type counts as missing.
    whole.retain(|name, _| {
        !matches!(&**name, "status" | "server_label" | "name" | "output")
            || item.raw(name).is_none()
            || item.string(name).is_some()
    });
    whole
}

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
