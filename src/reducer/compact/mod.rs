//! [`compact`]: the fewest chunks that rebuild a message.
//!
//! A client that reconnects late needs the result, not each of the thousand deltas that led to it.
//! A text takes one delta. A tool call takes as many chunks as its state requires. Before the
//! chunks are returned, they are reduced again and the result is compared with the message. They
//! either rebuild the message, or an error is returned.

mod tool_call;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use self::tool_call::ToolCallChunks;
use super::state::State;
use super::tool_part_fields::Call;
use crate::chunk::{Chunk, Citations};
use crate::message::{Part, TextState, ToolPart, UiMessage};
use crate::metadata::ProviderMetadata;

/// Returns the fewest chunks that rebuild a message. Reducing them gives an equal message.
///
/// The chunks begin with `start` and the message's id, so that a reconnecting client treats them as
/// a replay. They end without `finish`. A text that is incomplete stays open, under a new id. For a
/// stream that continues, use [`Reducer::compact`](super::Reducer::compact), which keeps the ids of the stream. For an older
/// client, convert each chunk with [`Chunk::for_version`], and leave out those of a kind that it
/// does not [know](Chunk::is_kind_known_to). That is not enough for `ai@5`: it refuses the chunks of a message with
/// an approval, a denial or an invalid tool input.
///
/// # Errors
/// [`CompactError`] if no stream of [`Chunk`]s that begins with an empty message produces this
/// message: for example, if it holds a field that this crate does not know. There is one part that a stream can produce and that is an error here too: the
/// input of a dynamic tool that continued in another step than the one it began in. The client
/// itself loses the text of such an input until the next delta.
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
pub fn compact(message: &UiMessage) -> Result<Vec<Chunk<'_>>, CompactError> {
    rebuild(message, None)
}

/// A part of a message that no stream of chunks produces.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompactError {
    /// A field of the message.
    #[error("no stream gives a message this `{field}`")]
    Field {
        /// The name of the field.
        field: &'static str,
    },
    /// A part of the message.
    #[error("no stream gives a message part {at} (`{kind}`) as it is")]
    Part {
        /// The index of the part, counted from 0.
        at: usize,
        /// The `type` of the part.
        kind: Box<str>,
    },
}

impl CompactError {
    fn part(message: &UiMessage, at: usize) -> Self {
        let kind = message.parts.get(at).map(kind_of).unwrap_or_default();
        CompactError::Part { at, kind: kind.into() }
    }
}

/// Returns the chunks of a message after checking that they rebuild it. If `open` is given, each
/// part that is incomplete and not in `open` is closed.
pub(super) fn rebuild<'a>(
    message: &'a UiMessage,
    open: Option<&HashMap<usize, &str>>,
) -> Result<Vec<Chunk<'a>>, CompactError> {
    let mut chunks = Chunks::default();
    chunks.add(Chunk::Start {
        message_id: Some(Cow::Owned(message.id.as_str().to_owned())),
        message_metadata: message.metadata.clone().map(Cow::Owned),
    });
    let ids = TextIds::new(message, open);
    for (at, part) in message.parts.iter().enumerate() {
        chunks.at = at;
        chunks.add_part(part, ids.text_id(at)).ok_or_else(|| CompactError::part(message, at))?;
        if ids.finish_step_after == Some(at) {
            chunks.add(Chunk::FinishStep {});
        }
    }
    if let Some((at, _)) = chunks.next_step.first() {
        return Err(CompactError::part(message, *at));
    }
    chunks.check(message)?;
    Ok(chunks.list.into_iter().map(|(_, chunk)| chunk).collect())
}

/// The ids under which text parts are rebuilt.
struct TextIds<'a> {
    /// For each part: the id of the next open text, which this part uses too. The later
    /// `text-start` then takes the id over, so this part is no longer open.
    open_by_part: Vec<Option<&'a str>>,
    /// The id of all texts after the last open one.
    unused: String,
    /// The part after which a `finish-step` closes the parts that would otherwise stay open.
    finish_step_after: Option<usize>,
}

impl<'a> TextIds<'a> {
    fn new(message: &UiMessage, open: Option<&HashMap<usize, &'a str>>) -> Self {
        let used: HashSet<&str> = open.into_iter().flat_map(HashMap::values).copied().collect();
        let is_unused = |id: &String| !used.contains(id.as_str());
        let unused = (0..).map(|n: usize| n.to_string()).find(is_unused).unwrap_or_default();
        let mut next = None;
        let mut open_by_part = Vec::with_capacity(message.parts.len());
        for (at, part) in message.parts.iter().enumerate().rev() {
            if let (Part::Text(_), Some(open)) = (part, open) {
                next = open.get(&at).copied().or(next);
            }
            open_by_part.push(next);
        }
        open_by_part.reverse();
        let mut ids = TextIds { open_by_part, unused, finish_step_after: None };
        ids.finish_step_after = open.and_then(|open| ids.last_wrongly_open(message, open));
        ids
    }

    fn text_id(&self, at: usize) -> &str {
        self.open_by_part.get(at).copied().flatten().unwrap_or(&self.unused)
    }

    /// Returns the last part that would be open although it must not be: it is streaming, and no
    /// later part takes its id over. Every part that must stay open was opened after such a part
    /// was closed, and therefore follows it.
    fn last_wrongly_open(
        &self,
        message: &UiMessage,
        open: &HashMap<usize, &'a str>,
    ) -> Option<usize> {
        let mut taken: HashSet<(bool, &str)> = HashSet::new();
        let parts = message.parts.iter().enumerate().rev();
        let mut wrongly_open = parts.filter(|(at, part)| {
            let (is_text, id, state) = match part {
                Part::Text(part) => (true, self.text_id(*at), part.state),
                Part::Reasoning(part) => (false, part.id.as_deref().unwrap_or(""), part.state),
                _ => return false,
            };
            let is_taken = !taken.insert((is_text, id));
            state == Some(TextState::Streaming) && !open.contains_key(at) && !is_taken
        });
        wrongly_open.next().map(|(at, _)| at)
    }
}

/// The chunks collected so far, each with the index of the part that it belongs to.
#[derive(Default)]
struct Chunks<'a> {
    list: Vec<(usize, Chunk<'a>)>,
    /// Chunks that must wait for the next step, because within their own step they would reach
    /// another part of the same call.
    next_step: Vec<(usize, Chunk<'a>)>,
    at: usize,
    /// The ids of the calls in the current step.
    calls: HashSet<Box<str>>,
}

impl<'a> Chunks<'a> {
    fn add(&mut self, chunk: Chunk<'a>) {
        self.list.push((self.at, chunk));
    }

    /// Adds the chunks of a part. Returns `None` if no chunks produce this part.
    fn add_part(&mut self, part: &'a Part, id: &str) -> Option<()> {
        let owned = |text: &str| Cow::Owned(text.to_owned());
        match part {
            Part::Text(part) => {
                let start = |id, provider_metadata| Chunk::TextStart { id, provider_metadata };
                self.add(start(owned(id), borrowed(&part.provider_metadata)));
                if !part.text.is_empty() {
                    let id = owned(id);
                    let delta = Cow::Borrowed(&*part.text);
                    self.add(Chunk::TextDelta { id, delta, provider_metadata: None });
                }
                if part.state == Some(TextState::Done) {
                    let citations = part.extra.get("citations");
                    let citations = citations.and_then(|json| Citations::new(json).ok());
                    self.add(Chunk::TextEnd {
                        id: owned(id),
                        citations: citations.map(Cow::Owned),
                        provider_metadata: None,
                    });
                }
            }
            Part::Reasoning(part) => {
                let id = part.id.as_deref()?;
                let start = |id, provider_metadata| Chunk::ReasoningStart { id, provider_metadata };
                self.add(start(owned(id), borrowed(&part.provider_metadata)));
                if !part.text.is_empty() {
                    let id = owned(id);
                    let delta = Cow::Borrowed(&*part.text);
                    self.add(Chunk::ReasoningDelta { id, delta, provider_metadata: None });
                }
                if part.state == Some(TextState::Done) {
                    self.add(Chunk::ReasoningEnd { id: owned(id), provider_metadata: None });
                }
            }
            Part::SourceUrl(part) => self.add(Chunk::SourceUrl {
                source_id: Cow::Borrowed(&part.source_id),
                url: Cow::Borrowed(&part.url),
                title: part.title.as_deref().map(Cow::Borrowed),
                provider_metadata: borrowed(&part.provider_metadata),
            }),
            Part::SourceDocument(part) => self.add(Chunk::SourceDocument {
                source_id: Cow::Borrowed(&part.source_id),
                media_type: Cow::Borrowed(&part.media_type),
                title: Cow::Borrowed(&part.title),
                filename: part.filename.as_deref().map(Cow::Borrowed),
                provider_metadata: borrowed(&part.provider_metadata),
            }),
            Part::File(part) => self.add(Chunk::File {
                url: Cow::Borrowed(&part.url),
                media_type: Cow::Borrowed(&part.media_type),
                provider_metadata: borrowed(&part.provider_metadata),
            }),
            Part::ReasoningFile(part) => self.add(Chunk::ReasoningFile {
                url: Cow::Borrowed(&part.url),
                media_type: Cow::Borrowed(&part.media_type),
                provider_metadata: borrowed(&part.provider_metadata),
            }),
            Part::Custom(part) => self.add(Chunk::Custom {
                content_kind: Cow::Borrowed(&part.kind),
                provider_metadata: borrowed(&part.provider_metadata),
            }),
            Part::StepStart { .. } => {
                self.add(Chunk::StartStep {});
                self.list.append(&mut self.next_step);
                self.calls.clear();
            }
            Part::Data(part) => self.add(Chunk::Data {
                name: Cow::Borrowed(&part.name),
                id: part.id.as_deref().map(Cow::Borrowed),
                data: part.data.as_ref().map(Cow::Borrowed),
                transient: part.extra.get("transient").and_then(|flag| flag.decode().ok()),
            }),
            Part::Tool(part) => self.add_call(part),
            Part::Unknown(_) => return None,
        }
        Some(())
    }

    fn add_call(&mut self, part: &ToolPart) {
        let is_first = self.calls.insert(part.tool_call_id.as_str().into());
        let chunks = ToolCallChunks::new(&Call::from_part(part.clone()), is_first);
        let at = self.at;
        self.list.extend(chunks.same_step.into_iter().map(|chunk| (at, chunk)));
        self.next_step.extend(chunks.next_step.into_iter().map(|chunk| (at, chunk)));
    }

    /// Checks that the chunks rebuild the message. The error names the first difference.
    fn check(&self, message: &UiMessage) -> Result<(), CompactError> {
        let mut state = State::new();
        for (at, chunk) in &self.list {
            state.apply(chunk, &[]).map_err(|_| CompactError::part(message, *at))?;
        }
        let rebuilt = state.message();
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

fn borrowed(metadata: &Option<ProviderMetadata>) -> Option<Cow<'_, ProviderMetadata>> {
    metadata.as_ref().map(Cow::Borrowed)
}

/// Returns the `type` of a part.
fn kind_of(part: &Part) -> String {
    match part {
        Part::Text(_) => "text".into(),
        Part::Reasoning(_) => "reasoning".into(),
        Part::SourceUrl(_) => "source-url".into(),
        Part::SourceDocument(_) => "source-document".into(),
        Part::File(_) => "file".into(),
        Part::ReasoningFile(_) => "reasoning-file".into(),
        Part::Custom(_) => "custom".into(),
        Part::StepStart { .. } => "step-start".into(),
        Part::Data(part) => format!("data-{}", part.name),
        Part::Tool(part) if part.is_dynamic() => "dynamic-tool".into(),
        Part::Tool(part) => format!("tool-{}", part.tool_name),
        Part::Unknown(part) => part.kind().into_owned(),
    }
}
