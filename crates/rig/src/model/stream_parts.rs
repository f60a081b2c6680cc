//! [`PartReader`]: converts the parts that rig streams to agent events.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use rig_core::message::{
    self, AssistantContent, DocumentSourceKind, Image, MimeType, Opaque, Origin, Reasoning,
    SourceLocation, Text,
};
use rig_core::streaming::{Item, PartKind, StreamEvent};
use uuid::Uuid;

use super::provider_state::ProviderState;
use super::provider_tools::{self, ProviderItem};
use ui_message_stream::chunk::Chunk;
use ui_message_stream::event::{AgentEvent, File, Source, ToolCall};
use ui_message_stream::id::{PartId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream_openai::response_items::{Item as Shown, take_image};

/// Reads the parts of one response, then those of the next.
#[derive(Debug, Default)]
pub(crate) struct PartReader {
    /// The model that produces the response, once it is known.
    origin: Option<Origin>,
    /// Whether state was stored before the model was known. A text that ends later then stores the
    /// model.
    origin_pending: bool,
    /// The open parts by their index.
    open: HashMap<usize, OpenPart>,
    /// The index after the highest one so far.
    next: usize,
    /// The parts that were closed last, until another part starts. Items at the end of a response
    /// are stored with the part before them, because a history may leave out items without text at
    /// its end.
    closed: Vec<ClosedPart>,
    /// Texts that were closed before the model was known. They store it when the response is
    /// complete.
    texts: Vec<ClosedPart>,
    /// The calls of the response so far.
    calls: Vec<message::ToolCall>,
    /// The last call, if no other part followed, with the items after it.
    last_call: Option<(ToolCallId, Vec<Opaque>)>,
    /// The calls whose results may still arrive, by the provider's id.
    awaited_calls: HashMap<String, ToolCallId>,
    /// The text of all closed text parts.
    text: String,
    /// The URLs that were emitted as sources.
    cited: HashSet<String>,
}

/// A closed part, with the items that follow it at the end of the response.
#[derive(Debug)]
struct ClosedPart {
    at: usize,
    content: AssistantContent,
    behind: Vec<Opaque>,
}

impl ClosedPart {
    fn new(at: usize, content: AssistantContent) -> Self {
        ClosedPart { at, content, behind: Vec::new() }
    }

    fn is_text(&self) -> bool {
        matches!(self.content, AssistantContent::Text(_))
    }

    fn is_opaque(&self) -> bool {
        matches!(self.content, AssistantContent::Opaque(_))
    }
}

#[derive(Debug)]
enum OpenPart {
    /// The part was started because a later part is already open.
    Reserved,
    Started,
    /// The arguments received so far.
    Call(ToolCallId, String),
}

/// A complete call of the model.
#[derive(Debug)]
pub(crate) struct ModelCall {
    /// The id that the client knows. The provider's id is known only at the end of the call.
    pub(crate) id: ToolCallId,
    pub(crate) call: message::ToolCall,
    arguments: String,
}

impl PartReader {
    /// Creates a reader of a response that may contain results of these calls, by the provider's
    /// id.
    pub(crate) fn with_awaited_calls(awaited_calls: HashMap<String, ToolCallId>) -> Self {
        PartReader { awaited_calls, ..PartReader::default() }
    }

    /// Starts the next response.
    pub(crate) fn begin(&mut self) {
        *self = PartReader::with_awaited_calls(std::mem::take(&mut self.awaited_calls));
    }

    /// Returns the text of all closed text parts.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the model that produces the response is known.
    pub(crate) fn has_origin(&self) -> bool {
        self.origin.is_some()
    }

    /// Sets the model that produces the response.
    pub(crate) fn set_origin(&mut self, origin: Origin) {
        self.origin = Some(origin);
    }

    /// Reads an item of rig's stream. Appends agent events, and returns a complete call or an
    /// approval request.
    pub(crate) fn handle_item(
        &mut self,
        item: Item<StreamEvent>,
        events: &mut impl Extend<AgentEvent>,
    ) -> Option<CallRequest> {
        let Item::Event(event) = item else { return None };
        let at = event.part().index();
        let is_opaque = matches!(
            event,
            StreamEvent::Start { kind: PartKind::Opaque, .. }
                | StreamEvent::End { content: AssistantContent::Opaque(_), .. }
        );
        // rig delays reasoning until what it leads to is complete: the delayed reasoning does not
        // follow it.
        if !is_opaque && at + 1 >= self.next {
            self.flush_closed(events);
        }
        self.reserve(at, events);
        match event {
            StreamEvent::Start { kind: PartKind::ToolCall, name, .. } => {
                let id = ToolCallId::from(fresh_id());
                let name = name.map(String::from).unwrap_or_default();
                events.extend([AgentEvent::tool_input_start(ToolCall::new(id.clone(), name))]);
                self.open.insert(at, OpenPart::Call(id, String::new()));
            }
            StreamEvent::Start { .. } => {}
            StreamEvent::Text { text, .. } => {
                self.open.insert(at, OpenPart::Started);
                let id = Some(part_id(at));
                events.extend([AgentEvent::TextDelta { id, delta: text.into() }]);
            }
            StreamEvent::Reasoning { text, .. } => {
                let id = part_id(at);
                if self.open.insert(at, OpenPart::Started).is_none() {
                    events.extend([AgentEvent::ReasoningStart { id: id.clone() }]);
                }
                events.extend([AgentEvent::ReasoningDelta { id: Some(id), delta: text.into() }]);
            }
            StreamEvent::Arguments { json, .. } => {
                if let Some(OpenPart::Call(id, arguments)) = self.open.get_mut(&at) {
                    arguments.push_str(&json);
                    events.extend([AgentEvent::tool_input_delta(id.clone(), json)]);
                }
            }
            StreamEvent::End { content, .. } => return self.end(at, content, events),
        }
        None
    }

    fn end(
        &mut self,
        at: usize,
        content: AssistantContent,
        events: &mut impl Extend<AgentEvent>,
    ) -> Option<CallRequest> {
        let open = self.open.remove(&at);
        match content {
            AssistantContent::ToolCall(call) => {
                let (id, arguments) = match open {
                    Some(OpenPart::Call(id, arguments)) => (id, arguments),
                    _ => (fresh_id().into(), String::new()),
                };
                self.last_call = Some((id.clone(), Vec::new()));
                let is_repeated = self.is_repeated(&call);
                self.calls.push(call.clone());
                let call = ModelCall { id, call, arguments };
                return Some(if is_repeated {
                    CallRequest::RepeatedCall(call)
                } else {
                    CallRequest::ToolCall(call)
                });
            }
            AssistantContent::Text(text) => {
                events.extend(self.sources(&text, |_| true));
                if matches!(open, Some(OpenPart::Started)) {
                    self.text.push_str(&text.text);
                    self.closed.push(ClosedPart::new(at, AssistantContent::Text(text)));
                }
            }
            AssistantContent::Reasoning(Reasoning { .. }) => {
                let id = part_id(at);
                let provider_metadata = self.state_metadata(content);
                let begins = open.is_none().then(|| AgentEvent::ReasoningStart { id: id.clone() });
                events.extend(begins);
                events.extend([AgentEvent::ReasoningEnd { id: Some(id), provider_metadata }]);
            }
            AssistantContent::Image(_) => self.closed.push(ClosedPart::new(at, content)),
            AssistantContent::Opaque(opaque) => return self.opaque(at, opaque, events),
            _ => {}
        }
        None
    }

    /// Whether a server of the Responses API has sent this call before. Some repeat an item with
    /// another id and another number in the last event. rig takes it for another item, and replaces
    /// the id of the call, which two calls cannot share.
    fn is_repeated(&self, call: &message::ToolCall) -> bool {
        let is_item = |call: &message::ToolCall| {
            call.native.as_ref().is_some_and(|native| native.item["type"] == "function_call")
        };
        let is_it = |other: &message::ToolCall| is_item(other) && other.function == call.function;
        call.id.is_local() && self.calls.iter().any(is_it)
    }

    /// Starts the parts before this one: rig delays only reasoning parts.
    fn reserve(&mut self, at: usize, events: &mut impl Extend<AgentEvent>) {
        let held_back = self.next..at;
        self.next = self.next.max(at + 1);
        if held_back.is_empty() {
            return;
        }
        self.flush_closed_before_provider_call(events);
        for at in held_back {
            self.open.insert(at, OpenPart::Reserved);
            events.extend([AgentEvent::ReasoningStart { id: part_id(at) }]);
        }
    }

    /// Handles an item that only its provider can read.
    fn opaque(
        &mut self,
        at: usize,
        opaque: Opaque,
        events: &mut impl Extend<AgentEvent>,
    ) -> Option<CallRequest> {
        match ProviderItem::from_opaque(&opaque) {
            Some(ProviderItem::ApprovalRequest) => {
                return Some(CallRequest::ProviderApproval(opaque));
            }
            // The item is incomplete, or must be handled by a component that rig does not support.
            _ if !opaque.replay => {
                tracing::warn!(kind = opaque.kind(), "an item of the provider's is passed over");
                return None;
            }
            Some(ProviderItem::CallWithResult(item)) => match self.approved_call(item) {
                Some(id) => events.extend([provider_tools::result_event(id, item)]),
                None => {
                    self.call_with_result(item.clone(), events);
                    return None;
                }
            },
            Some(ProviderItem::Call(item)) => {
                let (call, input) = provider_tools::call(item);
                if let Some(id) = provider_tools::id(&opaque) {
                    self.awaited_calls.insert(id.to_owned(), call.id.clone());
                }
                self.call(call, input, opaque, events);
                return None;
            }
            Some(ProviderItem::Result(id, item)) => {
                let call = self.awaited_calls.remove(id);
                events.extend(call.map(|call| provider_tools::separate_result_event(call, item)));
            }
            None => {}
        }
        self.closed.push(ClosedPart::new(at, AssistantContent::Opaque(opaque)));
        None
    }

    /// Returns the approved call whose result this item contains.
    fn approved_call(&mut self, item: &Shown) -> Option<ToolCallId> {
        self.awaited_calls.remove(item.get("approval_request_id")?.as_str()?)
    }

    /// Emits a call of the provider with its result.
    fn call_with_result(&mut self, mut item: Shown, events: &mut impl Extend<AgentEvent>) {
        let image = take_image(&mut item);
        let (call, input) = provider_tools::call(&item);
        let result = provider_tools::result_event(call.id.clone(), &item);
        let state = Opaque { item: item.into(), replay: true };
        // The item is sent back together with the file before it.
        self.flush_closed_before_provider_call(events);
        events.extend(image.map(|file| AgentEvent::File(Box::new(file))));
        self.call(call, input, state, events);
        events.extend([result]);
    }

    fn call(
        &mut self,
        mut call: ToolCall,
        input: Json,
        opaque: Opaque,
        events: &mut impl Extend<AgentEvent>,
    ) {
        self.flush_closed_before_provider_call(events);
        call.provider_metadata = self.state_metadata(AssistantContent::Opaque(opaque));
        events.extend([AgentEvent::tool_input(call, input)]);
    }

    /// Emits the closed parts, because another part follows.
    fn flush_closed(&mut self, events: &mut impl Extend<AgentEvent>) {
        self.last_call = None;
        for part in std::mem::take(&mut self.closed) {
            if self.origin.is_none() && part.is_text() {
                self.texts.push(part);
                continue;
            }
            let part_events = self.closed_part_events(part);
            events.extend(part_events);
        }
    }

    /// Emits the closed parts unless all of them are texts. A call of the provider follows, which
    /// stores only its own item: a text before it may still store the items at the end of the
    /// response.
    fn flush_closed_before_provider_call(&mut self, events: &mut impl Extend<AgentEvent>) {
        if !self.closed.iter().all(ClosedPart::is_text) {
            self.flush_closed(events);
        }
    }

    /// Emits the closed parts, because the response is complete.
    pub(crate) fn finish(&mut self, events: &mut impl Extend<AgentEvent>) {
        let before = self.closed.iter().rposition(|part| !part.is_opaque());
        let trailing = self.closed.split_off(before.map_or(0, |last| last + 1));
        let opaque = |part: ClosedPart| match part.content {
            AssistantContent::Opaque(opaque) => Some(opaque),
            _ => None,
        };
        match (self.closed.last_mut(), &mut self.last_call) {
            (Some(last), _) => last.behind.extend(trailing.into_iter().filter_map(opaque)),
            (None, Some((_, state))) => state.extend(trailing.into_iter().filter_map(opaque)),
            // The history contains these items but may leave them out.
            (None, None) => self.closed = trailing,
        }
        let texts = std::mem::take(&mut self.texts);
        for part in texts.into_iter().chain(std::mem::take(&mut self.closed)) {
            let part_events = self.closed_part_events(part);
            events.extend(part_events);
        }
    }

    /// Returns the events of a closed part, with the state that the provider needs back.
    fn closed_part_events(&mut self, part: ClosedPart) -> Vec<AgentEvent> {
        let ClosedPart { at, content, behind } = part;
        let id = part_id(at);
        let mut state = ProviderState::from_content(content.clone(), self.origin.as_ref());
        state.behind = behind;
        let is_text = matches!(content, AssistantContent::Text(_));
        let metadata = if is_text && self.origin_pending && self.origin.is_some() {
            state.metadata_with_origin()
        } else {
            state.metadata()
        };
        self.origin_pending |= metadata.is_some() && self.origin.is_none();
        let provider_metadata = metadata.clone().map(Cow::Owned);
        let chunk = match content {
            AssistantContent::Text(_) => Chunk::TextEnd {
                id: Cow::Owned(id.to_string()),
                citations: None,
                provider_metadata,
            },
            AssistantContent::Image(image) => {
                let Some(File { url, media_type }) = file(image) else { return Vec::new() };
                let url = Cow::Owned(url.to_string());
                let media_type = Cow::Owned(media_type.to_string());
                Chunk::File { url, media_type, provider_metadata }
            }
            // Only the provider can read the item, but it needs a place in the message.
            _ if metadata.is_some() => {
                return vec![
                    AgentEvent::ReasoningStart { id: id.clone() },
                    AgentEvent::ReasoningEnd { id: Some(id), provider_metadata: metadata },
                ];
            }
            _ => return Vec::new(),
        };
        vec![AgentEvent::Chunk(Box::new(chunk))]
    }

    /// Returns the sources of a text that were reported only after its end.
    pub(crate) fn late_sources(&mut self, text: &Text) -> Vec<AgentEvent> {
        let cited = self.cited.clone();
        self.sources(text, |url| !cited.contains(url))
    }

    fn sources(&mut self, text: &Text, is_included: impl Fn(&str) -> bool) -> Vec<AgentEvent> {
        let citations = text.citations().iter().enumerate();
        // Some servers repeat what they have cited in every chunk.
        let is_first = |(at, citation)| !text.citations().iter().take(at).any(|it| it == citation);
        let cited = citations.filter(|cited| is_first(*cited)).flat_map(|(_, it)| &it.sources);
        let pages = cited.filter_map(|source| match &source.location {
            SourceLocation::Url { url } if is_included(url) => Some((url, source.title.clone())),
            _ => None,
        });
        let sources = pages.map(|(url, title)| {
            self.cited.insert(url.clone());
            Source::Url {
                // The indexes of the parts start from zero in each response, and a message has
                // several responses.
                source_id: fresh("source").into(),
                url: url.clone().into(),
                title: title.map(Into::into),
            }
        });
        sources.map(|source| AgentEvent::Source(Box::new(source))).collect()
    }

    /// Returns the call with the state that the provider needs back.
    pub(crate) fn tool_call(&self, model_call: &ModelCall) -> ToolCall {
        let mut call =
            ToolCall::new(model_call.id.clone(), model_call.call.function.name.to_string());
        let content = AssistantContent::ToolCall(model_call.call.clone());
        let mut state = ProviderState::from_content(content, self.origin.as_ref());
        if let Some((id, behind)) = &self.last_call
            && *id == model_call.id
        {
            state.behind.clone_from(behind);
        }
        call.provider_metadata = state.metadata();
        call
    }

    /// Returns the call for which the provider requests approval, with the complete text of its
    /// input.
    pub(crate) fn provider_approval_call(&self, opaque: &Opaque) -> Option<(ToolCall, String)> {
        provider_tools::provider_approval_call(opaque, self.origin.as_ref())
    }

    fn state_metadata(&mut self, content: AssistantContent) -> Option<ProviderMetadata> {
        let metadata = ProviderState::from_content(content, self.origin.as_ref()).metadata();
        self.origin_pending |= metadata.is_some() && self.origin.is_none();
        metadata
    }
}

/// A call or approval request that the reader of the response must handle.
#[derive(Debug)]
pub(crate) enum CallRequest {
    /// A complete call.
    ToolCall(ModelCall),
    /// A call that the provider has sent before. It must not run again.
    RepeatedCall(ModelCall),
    /// The provider requests approval before it executes a tool.
    ProviderApproval(Opaque),
}

impl ModelCall {
    /// Returns the complete text of the input as the model wrote it. rig's repaired version of text
    /// that no tool accepts is not what the model wrote.
    pub(super) fn input(self) -> String {
        let function = self.call.function;
        if let Some(text) = function.invalid_arguments {
            return text;
        }
        let made = serde_json::Value::Object(function.arguments);
        // The streamed text has the numbers as the model wrote them. If the two differ, rig's final
        // value is correct.
        match serde_json::from_str::<serde_json::Value>(&self.arguments) {
            Ok(streamed) if streamed == made => self.arguments,
            _ => made.to_string(),
        }
    }
}

fn file(image: Image) -> Option<File> {
    let media_type = image.media_type.map_or("image/png", |kind| kind.to_mime_type());
    let url = match image.data {
        DocumentSourceKind::Url(url) => url,
        DocumentSourceKind::Base64(data) => format!("data:{media_type};base64,{data}"),
        _ => return None,
    };
    Some(File { url: url.into(), media_type: media_type.into() })
}

fn part_id(at: usize) -> PartId {
    PartId::from(format!("part-{at}"))
}

/// Returns a new id for a call.
pub(crate) fn fresh_id() -> String {
    fresh("call")
}

#[expect(clippy::disallowed_methods, reason = "rig has no id for it that is whole in time")]
fn fresh(what: &str) -> String {
    format!("{what}_{}", Uuid::new_v4().simple())
}
