//! [`compact`]: from a message to the fewest chunks that rebuild it.
//!
//! Who reconnects late needs what the message came to, not each of the thousand deltas that led
//! there. A text is one delta, a tool call as many chunks as its state takes. What comes out is
//! reduced again and compared before it is handed over: it rebuilds the message, or there is an
//! error.

mod tool_call;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use self::tool_call::ToolCallChunks;
use super::Reducer;
use super::call::Call;
use crate::chunk::Chunk;
use crate::message::{Part, TextState, ToolPart, UiMessage};
use crate::metadata::ProviderMetadata;

/// The fewest chunks that rebuild a message: reducing them gives the same one.
///
/// It begins with `start` and the message's id, so that a client that reconnects takes it for a
/// replay; it ends without `finish`. Text that is not complete is left open, under an id of its own:
/// for a stream that goes on, [`Reducer::compact`] keeps the stream's ids. An old client wants
/// [`Chunk::for_version`].
///
/// # Errors
/// [`CompactError`] names what no stream of [`Chunk`]s gives a message that begins empty: an answered
/// approval, say, or a field that this crate does not know. And one part that a stream can give: the
/// input of a dynamic tool that went on in another step than it began in. Its text is lost to the
/// client itself, until the next piece.
///
/// ```
/// use ui_message_stream::UiMessage;
/// use ui_message_stream::reducer::{Reducer, compact};
///
/// let text = r#"{"id":"m1","role":"assistant","parts":[
///     {"type":"text","text":"Done.","state":"done"},
///     {"type":"tool-ls","toolCallId":"c1","state":"output-available","input":{},"output":["a"]}]}"#;
/// let message = UiMessage::parse(text)?;
/// let chunks = compact(&message)?;
/// let kinds: Vec<_> = chunks.iter().map(|chunk| chunk.kind()).collect();
/// let text = ["start", "text-start", "text-delta", "text-end"];
/// let call = ["tool-input-available", "tool-output-available"];
/// assert_eq!(kinds, [&text[..], &call[..]].concat());
///
/// let mut reducer = Reducer::new();
/// for chunk in &chunks {
///     reducer.push_chunk(chunk)?;
/// }
/// assert_eq!(*reducer.message(), message);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compact(message: &UiMessage) -> Result<Vec<Chunk<'static>>, CompactError> {
    rebuild(message, None)
}

impl Reducer {
    /// The fewest chunks that lead where this stream has come to, so that its next chunks can follow
    /// them.
    ///
    /// As [`compact`], and texts and tool inputs that are open are so under the ids that they have
    /// in the stream. More of an input that was whole already is not provided for.
    ///
    /// # Errors
    /// As [`compact`].
    pub fn compact(&mut self) -> Result<Vec<Chunk<'static>>, CompactError> {
        self.message();
        let open = self.texts.iter().chain(&self.reasonings);
        let open: HashMap<usize, &str> = open.map(|(id, at)| (*at, &**id)).collect();
        rebuild(&self.message, Some(&open))
    }
}

/// What no stream of chunks gives a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompactError {
    /// A field of the message.
    #[error("no stream gives a message this `{field}`")]
    Field {
        /// Its name.
        field: &'static str,
    },
    /// A part.
    #[error("no stream gives a message part {at} (`{kind}`) as it is")]
    Part {
        /// Where it stands, from 0.
        at: usize,
        /// Its `type`.
        kind: Box<str>,
    },
}

impl CompactError {
    fn part(message: &UiMessage, at: usize) -> Self {
        let kind = message.parts.get(at).map(kind_of).unwrap_or_default();
        CompactError::Part { at, kind: kind.into() }
    }
}

/// The chunks of a message, checked. With the parts that are open, whatever else is not complete
/// will be closed.
fn rebuild(
    message: &UiMessage,
    open: Option<&HashMap<usize, &str>>,
) -> Result<Vec<Chunk<'static>>, CompactError> {
    let mut chunks = Chunks::default();
    chunks.add(Chunk::Start {
        message_id: Some(Cow::Owned(message.id.as_str().to_owned())),
        message_metadata: message.metadata.clone().map(Cow::Owned),
    });
    let ids = Ids::of(message, open);
    for (at, part) in message.parts.iter().enumerate() {
        chunks.at = at;
        chunks.add_part(part, ids.of_text(at)).ok_or_else(|| CompactError::part(message, at))?;
        if ids.closed_behind == Some(at) {
            chunks.add(Chunk::FinishStep {});
        }
    }
    if let Some((at, _)) = chunks.later.first() {
        return Err(CompactError::part(message, *at));
    }
    chunks.check(message)?;
    Ok(chunks.list.into_iter().map(|(_, chunk)| chunk).collect())
}

/// Under which ids texts are rebuilt.
struct Ids<'a> {
    /// The next open text of each part, whose id it has: that takes it from a text that is not open.
    open_by_part: Vec<Option<&'a str>>,
    /// The id of all texts behind the last open one.
    free: String,
    /// Where a step has to end, so that nothing is open that should not be.
    closed_behind: Option<usize>,
}

impl<'a> Ids<'a> {
    fn of(message: &UiMessage, open: Option<&HashMap<usize, &'a str>>) -> Self {
        let used: HashSet<&str> = open.into_iter().flat_map(HashMap::values).copied().collect();
        let is_free = |id: &String| !used.contains(id.as_str());
        let free = (0..).map(|n: usize| n.to_string()).find(is_free).unwrap_or_default();
        let mut next = None;
        let mut open_by_part = Vec::with_capacity(message.parts.len());
        for (at, part) in message.parts.iter().enumerate().rev() {
            if let (Part::Text(_), Some(open)) = (part, open) {
                next = open.get(&at).copied().or(next);
            }
            open_by_part.push(next);
        }
        open_by_part.reverse();
        let mut ids = Ids { open_by_part, free, closed_behind: None };
        ids.closed_behind = open.and_then(|open| ids.last_left_open(message, open));
        ids
    }

    fn of_text(&self, at: usize) -> &str {
        self.open_by_part.get(at).copied().flatten().unwrap_or(&self.free)
    }

    /// The last part that would be open though it is not: it is streaming, and nothing takes its id.
    /// What is open was opened after it had been closed, so it stands behind it.
    fn last_left_open(&self, message: &UiMessage, open: &HashMap<usize, &'a str>) -> Option<usize> {
        let mut taken: HashSet<(bool, &str)> = HashSet::new();
        let parts = message.parts.iter().enumerate().rev();
        let mut left_open = parts.filter(|(at, part)| {
            let (is_text, id, state) = match part {
                Part::Text(part) => (true, self.of_text(*at), part.state),
                Part::Reasoning(part) => (false, part.id.as_deref().unwrap_or(""), part.state),
                _ => return false,
            };
            let is_taken = !taken.insert((is_text, id));
            state == Some(TextState::Streaming) && !open.contains_key(at) && !is_taken
        });
        left_open.next().map(|(at, _)| at)
    }
}

/// Chunks as they are collected, each with the part that it is for.
#[derive(Default)]
struct Chunks {
    list: Vec<(usize, Chunk<'static>)>,
    /// What has to wait for the next step: in its own, another part of the same call is in the way.
    later: Vec<(usize, Chunk<'static>)>,
    at: usize,
    /// The calls of the current step.
    calls: HashSet<Box<str>>,
}

impl Chunks {
    fn add(&mut self, chunk: Chunk<'static>) {
        self.list.push((self.at, chunk));
    }

    /// Adds the chunks of a part; nothing if there are none for it.
    fn add_part(&mut self, part: &Part, id: &str) -> Option<()> {
        let owned = |text: &str| Cow::Owned(text.to_owned());
        match part {
            Part::Text(part) => {
                let start = |id, provider_metadata| Chunk::TextStart { id, provider_metadata };
                self.add(start(owned(id), kept(&part.provider_metadata)));
                if !part.text.is_empty() {
                    let (id, delta) = (owned(id), owned(&part.text));
                    self.add(Chunk::TextDelta { id, delta, provider_metadata: None });
                }
                if part.state == Some(TextState::Done) {
                    self.add(Chunk::TextEnd { id: owned(id), provider_metadata: None });
                }
            }
            Part::Reasoning(part) => {
                let id = part.id.as_deref()?;
                let start = |id, provider_metadata| Chunk::ReasoningStart { id, provider_metadata };
                self.add(start(owned(id), kept(&part.provider_metadata)));
                if !part.text.is_empty() {
                    let (id, delta) = (owned(id), owned(&part.text));
                    self.add(Chunk::ReasoningDelta { id, delta, provider_metadata: None });
                }
                if part.state == Some(TextState::Done) {
                    self.add(Chunk::ReasoningEnd { id: owned(id), provider_metadata: None });
                }
            }
            Part::SourceUrl(part) => self.add(Chunk::SourceUrl {
                source_id: owned(&part.source_id),
                url: owned(&part.url),
                title: part.title.as_deref().map(owned),
                provider_metadata: kept(&part.provider_metadata),
            }),
            Part::SourceDocument(part) => self.add(Chunk::SourceDocument {
                source_id: owned(&part.source_id),
                media_type: owned(&part.media_type),
                title: owned(&part.title),
                filename: part.filename.as_deref().map(owned),
                provider_metadata: kept(&part.provider_metadata),
            }),
            Part::File(part) => self.add(Chunk::File {
                url: owned(&part.url),
                media_type: owned(&part.media_type),
                provider_metadata: kept(&part.provider_metadata),
            }),
            Part::StepStart { .. } => {
                self.add(Chunk::StartStep {});
                self.list.append(&mut self.later);
                self.calls.clear();
            }
            Part::Data(part) => self.add(Chunk::Data {
                name: owned(&part.name),
                id: part.id.as_deref().map(owned),
                data: part.data.clone().map(Cow::Owned),
                transient: part.extra.get("transient").and_then(|flag| flag.to().ok()),
            }),
            Part::Tool(part) => self.add_call(part),
            Part::Unknown(_) => return None,
        }
        Some(())
    }

    fn add_call(&mut self, part: &ToolPart) {
        let is_first = self.calls.insert(part.tool_call_id.as_str().into());
        let chunks = ToolCallChunks::of(&Call::of(part.clone()), is_first);
        let at = self.at;
        self.list.extend(chunks.here.into_iter().map(|chunk| (at, chunk)));
        self.later.extend(chunks.later.into_iter().map(|chunk| (at, chunk)));
    }

    /// Whether the chunks rebuild the message, else where they do not.
    fn check(&self, message: &UiMessage) -> Result<(), CompactError> {
        let mut reducer = Reducer::new();
        for (at, chunk) in &self.list {
            reducer.push_chunk(chunk).map_err(|_| CompactError::part(message, *at))?;
        }
        let rebuilt = reducer.message();
        for (field, same) in [
            ("role", rebuilt.role == message.role),
            ("metadata", rebuilt.metadata == message.metadata),
            ("extra", rebuilt.extra == message.extra),
        ] {
            if !same {
                return Err(CompactError::Field { field });
            }
        }
        let parts = rebuilt.parts.iter().zip(&message.parts);
        match parts.take_while(|(rebuilt, part)| rebuilt == part).count() {
            same if same == message.parts.len() && same == rebuilt.parts.len() => Ok(()),
            at => Err(CompactError::part(message, at)),
        }
    }
}

fn kept(metadata: &Option<ProviderMetadata>) -> Option<Cow<'static, ProviderMetadata>> {
    metadata.clone().map(Cow::Owned)
}

/// The `type` of a part.
fn kind_of(part: &Part) -> String {
    match part {
        Part::Text(_) => "text".into(),
        Part::Reasoning(_) => "reasoning".into(),
        Part::SourceUrl(_) => "source-url".into(),
        Part::SourceDocument(_) => "source-document".into(),
        Part::File(_) => "file".into(),
        Part::StepStart { .. } => "step-start".into(),
        Part::Data(part) => format!("data-{}", part.name),
        Part::Tool(part) if part.is_dynamic() => "dynamic-tool".into(),
        Part::Tool(part) => format!("tool-{}", part.tool_name),
        Part::Unknown(part) => part.kind().into_owned(),
    }
}
