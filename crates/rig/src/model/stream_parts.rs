//! [`Parts`]: the parts of an answer as rig streams them, to what an agent says.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use rig_core::message::{
    self, AssistantContent, DocumentSourceKind, Image, MimeType, Opaque, Origin, Reasoning,
    SourceLocation, Text,
};
use rig_core::streaming::{Item, PartKind, StreamEvent};
use uuid::Uuid;

use super::provider_state::Kept;
use super::provider_tools::{self, Hosted};
use ui_message_stream::chunk::Chunk;
use ui_message_stream::event::{AgentEvent, File, Source, ToolCall};
use ui_message_stream::id::{PartId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream_openai::response_items::{Item as Shown, take_image};

/// Reads the parts of one answer, and then of the next.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Which model answers, once that is known.
    origin: Option<Origin>,
    /// Whether something was kept before that was known: what ends later says it.
    owes_origin: bool,
    /// Parts that are being said, by their place.
    open: HashMap<usize, Open>,
    /// The place behind the last that was heard of.
    next: usize,
    /// What ended last, until something else begins: items that end an answer are kept with what
    /// stands before them, since a history leaves out what has no words at its end.
    ending: Vec<Ending>,
    /// Texts that ended before it was known which model answers: they say it in the end.
    texts: Vec<Ending>,
    /// The call that was made last, if nothing else was said since, and the items behind it.
    last_call: Option<(ToolCallId, Vec<Opaque>)>,
    /// The calls that the provider may yet say the end of, by what it calls them.
    awaited: HashMap<String, ToolCallId>,
    /// The texts that are whole.
    text: String,
    /// The pages that were said to be sources.
    cited: HashSet<String>,
}

/// What has ended, with the items behind it that end the answer.
#[derive(Debug)]
struct Ending {
    at: usize,
    content: AssistantContent,
    behind: Vec<Opaque>,
}

impl Ending {
    fn of(at: usize, content: AssistantContent) -> Self {
        Ending { at, content, behind: Vec::new() }
    }

    fn is_text(&self) -> bool {
        matches!(self.content, AssistantContent::Text(_))
    }

    fn is_opaque(&self) -> bool {
        matches!(self.content, AssistantContent::Opaque(_))
    }
}

#[derive(Debug)]
enum Open {
    /// Something stands behind it already.
    Reserved,
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
    /// Of an answer that may say what came of these calls, by what the provider calls them.
    pub(crate) fn awaiting(awaited: HashMap<String, ToolCallId>) -> Self {
        Parts { awaited, ..Parts::default() }
    }

    /// Another answer begins.
    pub(crate) fn begin(&mut self) {
        *self = Parts::awaiting(std::mem::take(&mut self.awaited));
    }

    /// The texts that are whole.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is known which model answers.
    pub(crate) fn is_of_known_model(&self) -> bool {
        self.origin.is_some()
    }

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
        let is_opaque = matches!(
            event,
            StreamEvent::Start { kind: PartKind::Opaque, .. }
                | StreamEvent::End { content: AssistantContent::Opaque(_), .. }
        );
        // rig holds thoughts back until what they lead to is whole: they are not behind it.
        if !is_opaque && at + 1 >= self.next {
            self.goes_on(said);
        }
        self.reserve(at, said);
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
                self.last_call = Some((id.clone(), Vec::new()));
                return Some(Ended::Call(MadeCall { id, call, arguments }));
            }
            AssistantContent::Text(text) => {
                said.extend(self.sources(&text, |_| true));
                if matches!(open, Some(Open::Said)) {
                    self.text.push_str(&text.text);
                    self.ending.push(Ending::of(at, AssistantContent::Text(text)));
                }
            }
            AssistantContent::Reasoning(Reasoning { .. }) => {
                let id = part_id(at);
                let provider_metadata = self.kept(content);
                let begins = open.is_none().then(|| AgentEvent::ReasoningStart { id: id.clone() });
                said.extend(begins);
                said.extend([AgentEvent::ReasoningEnd { id: Some(id), provider_metadata }]);
            }
            AssistantContent::Image(_) => self.ending.push(Ending::of(at, content)),
            AssistantContent::Opaque(opaque) => return self.opaque(at, opaque, said),
            _ => {}
        }
        None
    }

    /// Keeps the places in front of this one: what rig holds back are thoughts.
    fn reserve(&mut self, at: usize, said: &mut impl Extend<AgentEvent>) {
        let held_back = self.next..at;
        self.next = self.next.max(at + 1);
        if held_back.is_empty() {
            return;
        }
        self.goes_on_with_opaque(said);
        for at in held_back {
            self.open.insert(at, Open::Reserved);
            said.extend([AgentEvent::ReasoningStart { id: part_id(at) }]);
        }
    }

    /// An item that only its provider reads.
    fn opaque(
        &mut self,
        at: usize,
        opaque: Opaque,
        said: &mut impl Extend<AgentEvent>,
    ) -> Option<Ended> {
        match Hosted::of(&opaque) {
            Some(Hosted::Asks) => return Some(Ended::Asks(opaque)),
            // It was cut off, or is for somebody to answer whom rig does not know.
            _ if !opaque.replay => {
                tracing::warn!(kind = opaque.kind(), "an item of the provider's is passed over");
                return None;
            }
            Some(Hosted::Ran(item)) => match self.approved(item) {
                Some(id) => said.extend([provider_tools::came_of(id, item)]),
                None => {
                    self.ran(item.clone(), said);
                    return None;
                }
            },
            Some(Hosted::Begun(item)) => {
                let (call, input) = provider_tools::call(item);
                if let Some(id) = provider_tools::id(&opaque) {
                    self.awaited.insert(id.to_owned(), call.id.clone());
                }
                self.called(call, input, opaque, said);
                return None;
            }
            Some(Hosted::Ended(id, item)) => {
                let call = self.awaited.remove(id);
                said.extend(call.map(|call| provider_tools::ended(call, item)));
            }
            None => {}
        }
        self.ending.push(Ending::of(at, AssistantContent::Opaque(opaque)));
        None
    }

    /// The call that a person approved, and that this item says the end of.
    fn approved(&mut self, item: &Shown) -> Option<ToolCallId> {
        self.awaited.remove(item.get("approval_request_id")?.as_str()?)
    }

    /// A call that the provider made, and what came of it.
    fn ran(&mut self, mut item: Shown, said: &mut impl Extend<AgentEvent>) {
        let picture = take_image(&mut item);
        let (call, input) = provider_tools::call(&item);
        let came = provider_tools::came_of(call.id.clone(), &item);
        let kept = Opaque { item: item.into(), replay: true };
        // The item goes back with the file in front of it.
        self.goes_on_with_opaque(said);
        said.extend(picture.map(|file| AgentEvent::File(Box::new(file))));
        self.called(call, input, kept, said);
        said.extend([came]);
    }

    fn called(
        &mut self,
        mut call: ToolCall,
        input: Json,
        opaque: Opaque,
        said: &mut impl Extend<AgentEvent>,
    ) {
        self.goes_on_with_opaque(said);
        call.provider_metadata = self.kept(AssistantContent::Opaque(opaque));
        said.extend([AgentEvent::tool_input(call, input)]);
    }

    /// Something follows upon what has ended.
    fn goes_on(&mut self, said: &mut impl Extend<AgentEvent>) {
        self.last_call = None;
        for ending in std::mem::take(&mut self.ending) {
            if self.origin.is_none() && ending.is_text() {
                self.texts.push(ending);
                continue;
            }
            let ended = self.ended(ending);
            said.extend(ended);
        }
    }

    /// A call of the provider's follows, which keeps its own item only: a text in front of it may
    /// yet keep what ends the answer.
    fn goes_on_with_opaque(&mut self, said: &mut impl Extend<AgentEvent>) {
        if !self.ending.iter().all(Ending::is_text) {
            self.goes_on(said);
        }
    }

    /// The answer is whole.
    pub(crate) fn finish(&mut self, said: &mut impl Extend<AgentEvent>) {
        let before = self.ending.iter().rposition(|ending| !ending.is_opaque());
        let behind = self.ending.split_off(before.map_or(0, |last| last + 1));
        let opaque = |ending: Ending| match ending.content {
            AssistantContent::Opaque(opaque) => Some(opaque),
            _ => None,
        };
        match (self.ending.last_mut(), &mut self.last_call) {
            (Some(last), _) => last.behind.extend(behind.into_iter().filter_map(opaque)),
            (None, Some((_, kept))) => kept.extend(behind.into_iter().filter_map(opaque)),
            // They stand in the history, which may leave them out.
            (None, None) => self.ending = behind,
        }
        let texts = std::mem::take(&mut self.texts);
        for ending in texts.into_iter().chain(std::mem::take(&mut self.ending)) {
            let ended = self.ended(ending);
            said.extend(ended);
        }
    }

    /// What has ended, with what the provider wants back with it.
    fn ended(&mut self, ending: Ending) -> Vec<AgentEvent> {
        let Ending { at, content, behind } = ending;
        let id = part_id(at);
        let mut kept = Kept::with(content.clone(), self.origin.as_ref());
        kept.behind = behind;
        let is_text = matches!(content, AssistantContent::Text(_));
        let metadata = match is_text && self.owes_origin && self.origin.is_some() {
            true => kept.whole_metadata(),
            false => kept.metadata(),
        };
        self.owes_origin |= metadata.is_some() && self.origin.is_none();
        let provider_metadata = metadata.clone().map(Cow::Owned);
        let chunk = match content {
            AssistantContent::Text(_) => {
                Chunk::TextEnd { id: Cow::Owned(id.to_string()), provider_metadata }
            }
            AssistantContent::Image(image) => {
                let Some(File { url, media_type }) = file(image) else { return Vec::new() };
                let (url, media_type) =
                    (Cow::Owned(url.to_string()), Cow::Owned(media_type.to_string()));
                Chunk::File { url, media_type, provider_metadata }
            }
            // Nobody reads it but its provider; it needs a place in the message.
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

    /// The sources of a text that were known only when it had ended.
    pub(crate) fn late_sources(&mut self, text: &Text) -> Vec<AgentEvent> {
        let cited = self.cited.clone();
        self.sources(text, |url| !cited.contains(url))
    }

    fn sources(&mut self, text: &Text, counts: impl Fn(&str) -> bool) -> Vec<AgentEvent> {
        let cited = text.citations().iter().flat_map(|citation| &citation.sources);
        let pages = cited.filter_map(|source| match &source.location {
            SourceLocation::Url { url } if counts(url) => Some((url, source.title.clone())),
            _ => None,
        });
        let sources = pages.map(|(url, title)| {
            self.cited.insert(url.clone());
            Source::Url {
                // The places of the parts begin anew with each answer, of which a message has
                // several.
                source_id: fresh("source").into(),
                url: url.clone().into(),
                title: title.map(Into::into),
            }
        });
        sources.map(|source| AgentEvent::Source(Box::new(source))).collect()
    }

    /// The call, with what the provider wants back with it.
    pub(crate) fn announced(&self, made: &MadeCall) -> ToolCall {
        let mut call = ToolCall::new(made.id.clone(), made.call.function.name.to_string());
        let content = AssistantContent::ToolCall(made.call.clone());
        let mut kept = Kept::with(content, self.origin.as_ref());
        if let Some((id, behind)) = &self.last_call
            && *id == made.id
        {
            kept.behind.clone_from(behind);
        }
        call.provider_metadata = kept.metadata();
        call
    }

    /// The call that the provider asks about, with the whole text of its input.
    pub(crate) fn question(&self, opaque: &Opaque) -> Option<(ToolCall, String)> {
        provider_tools::question(opaque, self.origin.as_ref())
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
    /// A call.
    Call(MadeCall),
    /// The provider asks before it runs a tool.
    Asks(Opaque),
}

impl MadeCall {
    /// The whole text of its input as the model wrote it. What rig could read of a text that is not
    /// what a tool takes is not what the model wrote.
    pub(super) fn input(self) -> String {
        let function = self.call.function;
        if let Some(text) = function.invalid_arguments {
            return text;
        }
        let made = serde_json::Value::Object(function.arguments);
        // The text holds numbers as they were written; the last word is what rig has in the end.
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

/// What a call is called here.
pub(crate) fn fresh_id() -> String {
    fresh("call")
}

#[expect(clippy::disallowed_methods, reason = "rig has no id for it that is whole in time")]
fn fresh(what: &str) -> String {
    format!("{what}_{}", Uuid::new_v4().simple())
}
