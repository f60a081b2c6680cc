//! [`State`]: the message of a stream. It applies each chunk by the client's rules, with one match arm
//! for each chunk type.

use std::borrow::Cow;
use std::collections::HashMap;

use super::ReduceError;
use super::merge::{MergeError, MergedMetadata};
use super::tool_calls::ToolCalls;
use crate::chunk::{Chunk, FinishReason, NEWEST_V6, Version};
use crate::id::MessageId;
use crate::json::{ExtraFields, Json};
use crate::message::{
    CustomPart, DataPart, FilePart, Part, ReasoningPart, Role, SourceDocumentPart, SourceUrlPart,
    TextPart, TextState, UiMessage,
};
use crate::metadata::ProviderMetadata;

/// The message so far, and where its parts are.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) reset_on: ResetOn,
    /// The client whose message this is.
    pub(super) client: Version,
    pub(super) message: UiMessage,
    metadata: MergedMetadata,
    pub(super) texts: OpenParts,
    pub(super) reasonings: OpenParts,
    pub(super) calls: ToolCalls,
    /// The index of each data part that can be replaced, by name and id.
    data_parts: DataParts,
    has_started: bool,
    /// The id that the client still shows after a `start` failed that changed the message's id.
    pub(super) shown_id: Option<MessageId>,
    pub(super) finish_reason: Option<FinishReason>,
    /// The text of the first `error` chunk.
    pub(super) error_text: Option<String>,
}

type DataParts = HashMap<Box<str>, HashMap<Box<str>, usize>>;

/// The index of each open text part, or of each open reasoning part, by its id.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenParts {
    /// The part that was opened last. Most deltas belong to it.
    newest: Option<(Box<str>, usize)>,
    others: HashMap<Box<str>, usize>,
}

impl OpenParts {
    /// Opens a part. It replaces a part with the same id.
    fn insert(&mut self, id: &str, at: usize) {
        self.others.remove(id);
        if let Some((older, at)) = self.newest.replace((id.into(), at))
            && *older != *id
        {
            self.others.insert(older, at);
        }
    }

    fn get(&self, id: &str) -> Option<usize> {
        let newest = self.newest.iter().find(|(newest, _)| **newest == *id);
        newest.map(|(_, at)| at).or_else(|| self.others.get(id)).copied()
    }

    fn remove(&mut self, id: &str) -> Option<usize> {
        match self.newest.take_if(|(newest, _)| **newest == *id) {
            Some((_, at)) => Some(at),
            None => self.others.remove(id),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.newest
            .iter()
            .map(|(id, at)| (&**id, *at))
            .chain(self.others.iter().map(|(id, at)| (&**id, *at)))
    }
}

/// When a `start` chunk empties the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ResetOn {
    /// Never. A `start` with another id changes the message's id. `Chat` does this with the
    /// response to a POST.
    #[default]
    Never,
    /// If the `start` has another id than the message. `readUIMessageStream` does this, and `Chat`
    /// does it with a resumed stream of a transport with `resumeStreamIsReplay: false`.
    OtherId,
    /// If the `start` is the first one, or has another id than the message. `Chat` does this with a
    /// resumed stream, which it treats as a replay from the beginning.
    FirstStart,
}

type MetadataField<'a> = Option<Cow<'a, ProviderMetadata>>;

/// The writable fields of an open text part or reasoning part.
struct OpenPart<'a> {
    text: &'a mut String,
    state: &'a mut Option<TextState>,
    provider_metadata: &'a mut Option<ProviderMetadata>,
    extra: &'a mut ExtraFields,
}

impl State {
    /// Creates the state of a new message. The message's id is empty.
    pub(super) fn new() -> Self {
        Self::from_message(UiMessage::new("", Role::Assistant, Vec::new()))
    }

    pub(super) fn from_message(message: UiMessage) -> Self {
        let client = Version::V6Patch(NEWEST_V6);
        State {
            reset_on: ResetOn::default(),
            client,
            metadata: MergedMetadata::new(message.metadata.clone()),
            texts: OpenParts::default(),
            reasonings: OpenParts::default(),
            calls: ToolCalls::from_parts(client, &message.parts),
            data_parts: data_parts(&message.parts),
            message,
            has_started: false,
            shown_id: None,
            finish_reason: None,
            error_text: None,
        }
    }

    /// Sets the client, before the first chunk.
    pub(super) fn set_client(&mut self, client: Version) {
        self.client = client;
        self.calls.rebuild(client, &self.message.parts);
    }

    /// Returns the message. Incomplete tool inputs that changed since the last call are repaired.
    pub(super) fn message(&mut self) -> &UiMessage {
        self.calls.repack(&mut self.message.parts);
        if let Some(metadata) = self.metadata.take_change() {
            self.message.metadata = Some(metadata);
        }
        &self.message
    }

    /// Returns the text of the part that was opened last, if it is open and has this id.
    pub(super) fn newest_text(&mut self, id: &str) -> Option<&mut String> {
        let (newest, at) = self.texts.newest.as_ref()?;
        match self.message.parts.get_mut(*at) {
            Some(Part::Text(part)) if **newest == *id => Some(&mut part.text),
            _ => None,
        }
    }

    /// Applies a chunk. Returns whether the client renders the message again after this chunk.
    pub(super) fn apply(
        &mut self,
        chunk: &Chunk<'_>,
        extra: &[(Box<str>, Json)],
    ) -> Result<bool, ReduceError> {
        let kind = chunk.kind_pieces().0;
        match chunk {
            Chunk::Start { message_id, message_metadata } => {
                return self.start(message_id.as_deref(), message_metadata.as_deref());
            }
            Chunk::StartStep {} => {
                self.message.parts.push(Part::StepStart { extra: ExtraFields::default() });
                self.calls.start_step();
                return Ok(false);
            }
            Chunk::TextStart { id, provider_metadata } => {
                self.texts.insert(id, self.message.parts.len());
                self.message.parts.push(Part::Text(Box::new(TextPart {
                    text: String::new(),
                    state: Some(TextState::Streaming),
                    provider_metadata: provider_metadata.as_deref().cloned(),
                    extra: ExtraFields::default(),
                })));
            }
            Chunk::TextDelta { id, delta, provider_metadata } => {
                let at = self.texts.get(id);
                self.write(kind, id, at, delta, provider_metadata)?;
            }
            Chunk::TextEnd { id, citations, provider_metadata } => {
                let at = self.texts.remove(id);
                let part = self.write(kind, id, at, "", provider_metadata)?;
                *part.state = Some(TextState::Done);
                if let Some(citations) = citations {
                    let extra = std::mem::take(part.extra);
                    *part.extra = extra.with([("citations", citations.as_json())].into_iter());
                }
            }
            Chunk::ReasoningStart { id, provider_metadata } => {
                self.reasonings.insert(id, self.message.parts.len());
                self.message.parts.push(Part::Reasoning(Box::new(ReasoningPart {
                    text: String::new(),
                    id: Some(id.as_ref().into()),
                    state: Some(TextState::Streaming),
                    provider_metadata: provider_metadata.as_deref().cloned(),
                    extra: ExtraFields::default(),
                })));
            }
            Chunk::ReasoningDelta { id, delta, provider_metadata } => {
                let at = self.reasonings.get(id);
                self.write(kind, id, at, delta, provider_metadata)?;
            }
            Chunk::ReasoningEnd { id, provider_metadata } => {
                let at = self.reasonings.remove(id);
                *self.write(kind, id, at, "", provider_metadata)?.state = Some(TextState::Done);
            }
            Chunk::SourceUrl { source_id, url, title, provider_metadata } => {
                self.message.parts.push(Part::SourceUrl(Box::new(SourceUrlPart {
                    source_id: source_id.as_ref().into(),
                    url: url.as_ref().to_owned(),
                    title: title.as_deref().map(Into::into),
                    provider_metadata: provider_metadata.as_deref().cloned(),
                    extra: ExtraFields::default(),
                })));
            }
            Chunk::SourceDocument { source_id, media_type, title, filename, provider_metadata } => {
                self.message.parts.push(Part::SourceDocument(Box::new(SourceDocumentPart {
                    source_id: source_id.as_ref().into(),
                    media_type: media_type.as_ref().into(),
                    title: title.as_ref().into(),
                    filename: filename.as_deref().map(Into::into),
                    provider_metadata: provider_metadata.as_deref().cloned(),
                    extra: ExtraFields::default(),
                })));
            }
            Chunk::File { url, media_type, provider_metadata } => {
                let part = file_part(url, media_type, provider_metadata);
                self.message.parts.push(Part::File(part));
            }
            Chunk::ReasoningFile { url, media_type, provider_metadata } => {
                let part = file_part(url, media_type, provider_metadata);
                self.message.parts.push(Part::ReasoningFile(part));
            }
            Chunk::Custom { content_kind, provider_metadata } => {
                self.message.parts.push(Part::Custom(Box::new(CustomPart {
                    kind: content_kind.as_ref().into(),
                    provider_metadata: provider_metadata.as_deref().cloned(),
                    extra: ExtraFields::default(),
                })));
            }
            Chunk::Data { transient: Some(true), .. } => return Ok(false),
            Chunk::Data { name, id, data, transient } => {
                let data = data.as_deref().cloned();
                self.put_data(name, id.as_deref(), data, *transient, extra);
            }
            Chunk::MessageMetadata { message_metadata } => {
                return self.merge(kind, message_metadata.as_deref());
            }
            Chunk::Finish { finish_reason, message_metadata } => {
                self.finish_reason = finish_reason.or(self.finish_reason);
                return self.merge(kind, message_metadata.as_deref());
            }
            Chunk::FinishStep {} => {
                if self.client.keeps_texts_open() {
                    return Ok(false);
                }
                // New ones: to clear a map costs the capacity that the largest step needed.
                self.texts = OpenParts::default();
                self.reasonings = OpenParts::default();
                return Ok(false);
            }
            Chunk::ResetStep {} => return Ok(self.reset_step()),
            Chunk::Error { error_text } => {
                self.error_text.get_or_insert_with(|| error_text.as_ref().to_owned());
                return Ok(false);
            }
            Chunk::Abort { .. } => return Ok(false),
            Chunk::ToolInputStart { .. }
            | Chunk::ToolInputDelta { .. }
            | Chunk::ToolInputAvailable { .. }
            | Chunk::ToolInputError { .. }
            | Chunk::ToolApprovalRequest { .. }
            | Chunk::ToolApprovalResponse { .. }
            | Chunk::ToolOutputAvailable { .. }
            | Chunk::ToolOutputError { .. }
            | Chunk::ToolOutputDenied { .. } => {
                self.calls.handle(chunk, &mut self.message.parts)?;
            }
        }
        Ok(true)
    }

    fn start(&mut self, id: Option<&str>, metadata: Option<&Json>) -> Result<bool, ReduceError> {
        let has_other_id = id.is_some_and(|id| id != self.message.id.as_str());
        let resets = match self.reset_on {
            ResetOn::Never => false,
            ResetOn::OtherId => has_other_id,
            ResetOn::FirstStart => has_other_id || !self.has_started,
        };
        if resets {
            self.reset();
        }
        self.has_started = true;
        let earlier = has_other_id.then(|| self.message.id.clone());
        if let Some(id) = id {
            self.message.id = MessageId::from(id);
        }
        let has_metadata =
            self.merge("start", metadata).inspect_err(|_| self.shown_id = earlier)?;
        Ok(resets || id.is_some() || has_metadata)
    }

    /// Empties the message but keeps its id.
    fn reset(&mut self) {
        let id = self.message.id.clone();
        self.message = UiMessage::new(id, Role::Assistant, Vec::new());
        self.metadata = MergedMetadata::default();
        self.texts = OpenParts::default();
        self.reasonings = OpenParts::default();
        self.calls = ToolCalls::new(self.client);
        self.data_parts = HashMap::new();
        self.finish_reason = None;
    }

    /// Removes the parts of the current step. Returns whether there were any.
    fn reset_step(&mut self) -> bool {
        self.message();
        let is_start = |part: &Part| matches!(part, Part::StepStart { .. });
        let parts = &mut self.message.parts;
        let begin = parts.iter().rposition(is_start).map_or(0, |start| start + 1);
        let had_parts = begin < parts.len();
        parts.truncate(begin);
        self.texts = OpenParts::default();
        self.reasonings = OpenParts::default();
        self.calls.rebuild(self.client, parts);
        self.data_parts = data_parts(parts);
        had_parts
    }

    fn merge(&mut self, kind: &'static str, metadata: Option<&Json>) -> Result<bool, ReduceError> {
        self.metadata.merge(metadata).map_err(|error| match error {
            MergeError::NotMergeable => ReduceError::MetadataNotMergeable { kind },
            MergeError::TooDeep => ReduceError::MetadataTooDeep { kind },
        })
    }

    /// Appends `delta` to the text or reasoning part at index `at`, and replaces the provider
    /// metadata if the chunk carries any.
    fn write(
        &mut self,
        kind: &'static str,
        id: &str,
        at: Option<usize>,
        delta: &str,
        metadata: &MetadataField<'_>,
    ) -> Result<OpenPart<'_>, ReduceError> {
        let part = at.and_then(|at| self.message.parts.get_mut(at));
        let part = match part {
            Some(Part::Text(part)) => OpenPart {
                text: &mut part.text,
                state: &mut part.state,
                provider_metadata: &mut part.provider_metadata,
                extra: &mut part.extra,
            },
            Some(Part::Reasoning(part)) => OpenPart {
                text: &mut part.text,
                state: &mut part.state,
                provider_metadata: &mut part.provider_metadata,
                extra: &mut part.extra,
            },
            _ => return Err(ReduceError::PartNotOpen { kind, id: id.into() }),
        };
        part.text.push_str(delta);
        if metadata.is_some() {
            *part.provider_metadata = metadata.as_deref().cloned();
        }
        Ok(part)
    }

    /// Replaces the data of the part with this name and id. Without such a part, appends a new one.
    fn put_data(
        &mut self,
        name: &str,
        id: Option<&str>,
        data: Option<Json>,
        transient: Option<bool>,
        extra: &[(Box<str>, Json)],
    ) {
        let index = id.and_then(|id| self.data_parts.get(name)?.get(id).copied());
        if let Some(Part::Data(part)) = index.and_then(|at| self.message.parts.get_mut(at)) {
            part.data = data;
            return;
        }
        if let Some(id) = id {
            let at = self.message.parts.len();
            self.data_parts.entry(name.into()).or_default().insert(id.into(), at);
        }
        // The client keeps the chunk object itself as the part, with all its fields.
        let transient = transient.and_then(|flag| Json::from_serialize(&flag).ok());
        let transient = transient.iter().map(|flag| ("transient", flag));
        let fields = transient.chain(extra.iter().map(|(key, value)| (&**key, value)));
        self.message.parts.push(Part::Data(Box::new(DataPart {
            name: name.into(),
            id: id.map(Into::into),
            data,
            extra: ExtraFields::default().with(fields),
        })));
    }
}

fn file_part(url: &str, media_type: &str, metadata: &MetadataField<'_>) -> Box<FilePart> {
    Box::new(FilePart {
        media_type: media_type.into(),
        url: url.to_owned(),
        filename: None,
        provider_metadata: metadata.as_deref().cloned(),
        extra: ExtraFields::default(),
    })
}

/// Returns the index of each data part that can be replaced.
fn data_parts(parts: &[Part]) -> DataParts {
    let mut found = DataParts::new();
    for (at, part) in parts.iter().enumerate() {
        if let Part::Data(part) = part
            && let Some(id) = &part.id
        {
            found.entry(part.name.clone()).or_default().entry(id.clone()).or_insert(at);
        }
    }
    found
}
