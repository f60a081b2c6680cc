//! [`Parts`]: the parts of an answer as rig streams them, to what an agent says.

use std::borrow::Cow;
use std::collections::HashMap;

use rig_core::message::{
    self, AssistantContent, DocumentSourceKind, Image, MimeType, Origin, Reasoning, SourceLocation,
    Text,
};
use rig_core::streaming::{Item, PartKind, StreamEvent};
use uuid::Uuid;

use super::kept::Kept;
use crate::chunk::Chunk;
use crate::event::{AgentEvent, File, Source, ToolCall};
use crate::id::{PartId, ToolCallId};
use crate::json::Json;
use crate::metadata::ProviderMetadata;

/// Reads the parts of one answer.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Which model answers, once that is known.
    origin: Option<Origin>,
    /// Whether something was kept before that was known: what ends later says it.
    owes_origin: bool,
    /// Parts that are being said, by their place.
    open: HashMap<usize, Open>,
}

#[derive(Debug)]
enum Open {
    Said,
    /// Its arguments so far.
    Call(ToolCallId, String),
}

/// A call that the model has made.
#[derive(Debug)]
pub(crate) struct MadeCall {
    /// What it is called here. The provider's id is known last, when the client knows the call.
    pub(crate) id: ToolCallId,
    pub(crate) call: message::ToolCall,
    arguments: String,
}

impl Parts {
    /// It is known which model answers.
    pub(crate) fn are_of(&mut self, origin: Origin) {
        self.origin = Some(origin);
    }

    /// Takes in what rig streams.
    pub(crate) fn take(
        &mut self,
        item: Item<StreamEvent>,
        said: &mut impl Extend<AgentEvent>,
    ) -> Option<Ended> {
        let Item::Event(event) = item else { return None };
        let at = event.part().index();
        match event {
            StreamEvent::Start { kind: PartKind::ToolCall, name, .. } => {
                let id = ToolCallId::from(fresh_id());
                let name = name.map(String::from).unwrap_or_default();
                said.extend([AgentEvent::tool_input_start(ToolCall::new(id.clone(), name))]);
                self.open.insert(at, Open::Call(id, String::new()));
            }
            StreamEvent::Start { .. } => {}
            StreamEvent::Text { text, .. } => {
                self.open.insert(at, Open::Said);
                let id = Some(part_id(at));
                said.extend([AgentEvent::TextDelta { id, delta: text.into() }]);
            }
            StreamEvent::Reasoning { text, .. } => {
                let id = part_id(at);
                if self.open.insert(at, Open::Said).is_none() {
                    said.extend([AgentEvent::ReasoningStart { id: id.clone() }]);
                }
                said.extend([AgentEvent::ReasoningDelta { id: Some(id), delta: text.into() }]);
            }
            StreamEvent::Arguments { json, .. } => {
                if let Some(Open::Call(id, arguments)) = self.open.get_mut(&at) {
                    arguments.push_str(&json);
                    said.extend([AgentEvent::tool_input_delta(id.clone(), json)]);
                }
            }
            StreamEvent::End { content, .. } => return self.end(at, content, said),
        }
        None
    }

    fn end(
        &mut self,
        at: usize,
        content: AssistantContent,
        said: &mut impl Extend<AgentEvent>,
    ) -> Option<Ended> {
        let open = self.open.remove(&at);
        match content {
            AssistantContent::ToolCall(call) => {
                let (id, arguments) = match open {
                    Some(Open::Call(id, arguments)) => (id, arguments),
                    _ => (fresh_id().into(), String::new()),
                };
                return Some(Ended::Call(MadeCall { id, call, arguments }));
            }
            AssistantContent::Text(text) => {
                said.extend(sources(&text));
                let was_said = open.is_some();
                return was_said.then(|| Ended::Text(part_id(at), AssistantContent::Text(text)));
            }
            AssistantContent::Reasoning(Reasoning { .. }) => {
                let id = part_id(at);
                let provider_metadata = self.kept(content);
                let begins = open.is_none().then(|| AgentEvent::ReasoningStart { id: id.clone() });
                said.extend(begins);
                said.extend([AgentEvent::ReasoningEnd { id: Some(id), provider_metadata }]);
            }
            AssistantContent::Image(image) => {
                said.extend(file(image).map(|file| AgentEvent::File(Box::new(file))));
            }
            // Nobody reads it but its provider; it needs a place in the message.
            AssistantContent::Opaque(opaque) if opaque.replay => {
                if opaque.kind() == Some("mcp_approval_request") {
                    tracing::warn!("the provider asks before it runs a tool, and nobody is asked");
                }
                let provider_metadata = self.kept(AssistantContent::Opaque(opaque));
                if provider_metadata.is_some() {
                    let id = part_id(at);
                    said.extend([AgentEvent::ReasoningStart { id: id.clone() }]);
                    said.extend([AgentEvent::ReasoningEnd { id: Some(id), provider_metadata }]);
                }
            }
            _ => {}
        }
        None
    }

    /// The end of a text, with what the provider wants back with it.
    pub(crate) fn text_end(&self, id: &PartId, content: AssistantContent) -> AgentEvent {
        let kept = Kept::with(content, self.origin.as_ref());
        let metadata = if self.owes_origin { kept.whole_metadata() } else { kept.metadata() };
        let id = Cow::Owned(id.to_string());
        let provider_metadata = metadata.map(Cow::Owned);
        AgentEvent::Chunk(Box::new(Chunk::TextEnd { id, provider_metadata }))
    }

    /// The call, with what the provider wants back with it.
    pub(crate) fn announced(&self, made: &MadeCall) -> ToolCall {
        let mut call = ToolCall::new(made.id.clone(), made.call.function.name.to_string());
        let content = AssistantContent::ToolCall(made.call.clone());
        call.provider_metadata = Kept::with(content, self.origin.as_ref()).metadata();
        call
    }

    fn kept(&mut self, content: AssistantContent) -> Option<ProviderMetadata> {
        let metadata = Kept::with(content, self.origin.as_ref()).metadata();
        self.owes_origin |= metadata.is_some() && self.origin.is_none();
        metadata
    }
}

/// What ended, for the reader of the answer to go on with.
#[derive(Debug)]
pub(crate) enum Ended {
    /// A text.
    Text(PartId, AssistantContent),
    /// A call.
    Call(MadeCall),
}

impl MadeCall {
    /// The whole text of its input as the model wrote it. What rig could read of a text that is not
    /// what a tool takes is not what the model wrote.
    pub(super) fn input(self) -> String {
        let function = self.call.function;
        if let Some(text) = function.invalid_arguments {
            return text;
        }
        match Json::parse(&self.arguments) {
            Ok(json) if json.is_object() => self.arguments,
            _ => serde_json::Value::Object(function.arguments).to_string(),
        }
    }
}

/// The places of the parts begin anew with each answer, of which a message has several.
fn sources(text: &Text) -> Vec<AgentEvent> {
    let cited = text.citations().iter().flat_map(|citation| &citation.sources);
    let pages = cited.filter_map(|source| match &source.location {
        SourceLocation::Url { url } => Some((url, source.title.clone())),
        _ => None,
    });
    let sources = pages.map(|(url, title)| Source::Url {
        source_id: fresh("source").into(),
        url: url.clone().into(),
        title: title.map(Into::into),
    });
    sources.map(|source| AgentEvent::Source(Box::new(source))).collect()
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

/// What a call is called here.
pub(crate) fn fresh_id() -> String {
    fresh("call")
}

#[expect(clippy::disallowed_methods, reason = "rig has no id for it that is whole in time")]
fn fresh(what: &str) -> String {
    format!("{what}_{}", Uuid::new_v4().simple())
}
