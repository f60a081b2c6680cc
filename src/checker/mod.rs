//! [`Checker`]: checks the stream of any backend, in one pass.
//!
//! The checker takes chunks one by one and returns findings. A finding ([`Violation`]) names the
//! [`Rule`] that the stream breaks. With [`Severity::Error`] the client throws. With
//! [`Severity::Warning`] the client accepts the chunk, but it is almost certainly a mistake. The
//! checker stores ids but no text, so it can check long streams. It does not build the message; the
//! [`reducer`](crate::reducer) does.

mod calls;
mod reader;
mod rule;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

pub use self::reader::ClientReader;
pub use self::rule::{Rule, Severity, Violation};

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use self::calls::Calls;
use crate::chunk::{Chunk, NEWEST_V6, ReadChunkError, ReceivedChunk, Version};
use crate::id::log_text;
use crate::json::{FieldError, Json, JsonError, Object, each_field};
use crate::message::{Part, Role, UiMessage};

/// Checks a stream of chunks and reports what the client would reject or what is probably a
/// mistake.
///
/// ```
/// use ui_message_stream::checker::{Checker, Rule};
///
/// let mut checker = Checker::new();
/// let found = checker.handle_data(r#"{"type":"text-delta","id":"0","delta":"Hi"}"#);
/// assert_eq!(found[0].rule, Rule::PartNotOpen);
/// ```
#[derive(Debug)]
#[must_use]
pub struct Checker {
    oldest_client: Version,
    reader: ClientReader,
    /// The id of the message that the stream continues.
    continued: Option<String>,
    /// The current id of the message. `None` if the client generated it.
    message_id: Option<String>,
    metadata: MetadataShape,
    /// Whether the stream had any event.
    has_events: bool,
    has_started: bool,
    /// Whether the stream has the format of `ai@4`. It is one finding, not one for each line.
    is_ai_4_stream: bool,
    /// Whether the client throws at any chunk so far. It shows nothing of what follows.
    has_error: bool,
    end: Option<StreamEnd>,
    texts: HashSet<Box<str>>,
    reasoning: HashSet<Box<str>>,
    calls: Calls,
    found: Vec<Violation>,
}

/// How the stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    Finished,
    Failed,
    Aborted,
}

/// The shape of the message's metadata, which decides what can be merged into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetadataShape {
    None,
    Object,
    Scalar,
}

impl MetadataShape {
    fn new(json: &Json) -> Self {
        match json.as_str().trim_start().as_bytes().first() {
            None | Some(b'n') => MetadataShape::None,
            Some(b'{' | b'[') => MetadataShape::Object,
            _ => MetadataShape::Scalar,
        }
    }
}

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker {
    /// Creates a checker for a stream that begins a message.
    pub fn new() -> Self {
        Checker {
            oldest_client: Version::V6Patch(NEWEST_V6),
            reader: ClientReader::default(),
            continued: None,
            // `readUIMessageStream` begins with an empty id.
            message_id: Some(String::new()),
            metadata: MetadataShape::None,
            has_events: false,
            has_started: false,
            is_ai_4_stream: false,
            has_error: false,
            end: None,
            texts: HashSet::new(),
            reasoning: HashSet::new(),
            calls: Calls::default(),
            found: Vec::new(),
        }
    }

    /// Creates a checker for a stream that continues this message. If the message is not an
    /// assistant message, the stream begins a new message with the same id.
    pub fn continuing(message: &UiMessage) -> Self {
        let mut checker = Self::new();
        checker.message_id = Some(message.id.to_string());
        if message.role != Role::Assistant {
            return checker;
        }
        checker.continued = checker.message_id.clone();
        checker.metadata =
            message.metadata.as_ref().map_or(MetadataShape::None, MetadataShape::new);
        for part in &message.parts {
            match part {
                Part::StepStart { .. } => checker.calls.start_step(),
                Part::Tool(part) => checker.calls.add_existing(part),
                _ => {}
            }
        }
        checker.calls.end_existing();
        checker
    }

    /// Sets the oldest client version for which the stream is checked. A chunk at which this
    /// version throws, because it does not know the kind or a key, is a finding with
    /// [`Severity::Error`].
    /// The default is `ai@6.0.326`.
    pub fn with_oldest_client(mut self, version: Version) -> Self {
        self.oldest_client = version;
        self
    }

    /// Sets the function of the client that reads the stream: `Chat`, which `useChat` uses, or
    /// `readUIMessageStream`. They handle some chunks differently, for example after an error. Call
    /// this before the first chunk. The default is `readUIMessageStream`.
    ///
    /// ```
    /// use ui_message_stream::checker::{Checker, ClientReader, Rule};
    ///
    /// // `useChat` reads nothing after an error, so no later chunk makes it throw.
    /// let mut checker = Checker::new().with_reader(ClientReader::Chat);
    /// checker.handle_data(r#"{"type":"error","errorText":"An error occurred."}"#);
    /// let found = checker.handle_data(r#"{"type":"text-delta","id":"0","delta":"Hi"}"#);
    /// assert_eq!(found[0].rule, Rule::AfterError);
    /// ```
    pub fn with_reader(mut self, reader: ClientReader) -> Self {
        self.reader = reader;
        if reader == ClientReader::ChatResume && !self.calls.continues_input() {
            self.reset_message();
            self.message_id = None;
        }
        self
    }

    /// Handles the data of the next server-sent event and returns a finding for each rule that it
    /// breaks. `[DONE]` breaks no rule.
    pub fn handle_data(&mut self, data: &str) -> Vec<Violation> {
        if data == "[DONE]" {
            return Vec::new();
        }
        self.has_events = true;
        match ReceivedChunk::parse(data) {
            Ok(received) => self.handle_received(&received),
            Err(_) if self.has_stopped() => {
                vec![Violation { rule: Rule::AfterError, subject: "what is no chunk".to_owned() }]
            }
            Err(_) if is_ai_4_line(data) => {
                if !std::mem::replace(&mut self.is_ai_4_stream, true) {
                    self.report(Rule::Ai4Stream, "the stream".to_owned());
                }
                std::mem::take(&mut self.found)
            }
            Err(error) => {
                let (rule, subject) = match &error {
                    _ if has_prototype_key(data) => (Rule::PrototypeKey, error.to_string()),
                    _ if data.starts_with("data:") => {
                        (Rule::NotJson, "`data:` stands twice before the chunk".to_owned())
                    }
                    ReadChunkError::Field(field) => {
                        (Rule::InvalidField, format!("{error}{}", unknown_keys(data, field)))
                    }
                    _ if is_several_chunks(data) => {
                        let lines = data.lines().count();
                        (Rule::MissingBlankLine, format!("{lines} `data` lines in one event"))
                    }
                    // The line that counts is that of the stream.
                    _ => (Rule::NotJson, error.to_string().replace(" line 1 column", " column")),
                };
                self.report(rule, subject);
                std::mem::take(&mut self.found)
            }
        }
    }

    /// Handles the next chunk and returns a finding for each rule that it breaks.
    pub fn handle_received(&mut self, received: &ReceivedChunk<'_>) -> Vec<Violation> {
        self.has_events = true;
        match received {
            ReceivedChunk::Known { chunk, .. } if self.has_stopped() => self.check_place(chunk),
            ReceivedChunk::Unknown { kind, .. } if self.has_stopped() => {
                self.report(Rule::AfterError, kind.to_string());
            }
            ReceivedChunk::Known { chunk, extra } => {
                if !chunk.is_kind_known_to(self.oldest_client) {
                    self.report(Rule::UnknownKind, format!("a chunk of type {:?}", chunk.kind()));
                }
                if let Chunk::Finish { finish_reason: Some(reason), .. } = chunk
                    && !reason.is_known_to(self.oldest_client)
                {
                    let word = reason.as_str();
                    self.report(Rule::InvalidField, format!("`finishReason` {word:?} of finish"));
                }
                if !self.oldest_client.accepts_unknown_keys() {
                    for (key, _) in extra {
                        self.report(Rule::UnknownKey, format!("key `{key}` of {}", chunk.kind()));
                    }
                    let known = chunk.clone().for_version(self.oldest_client);
                    if let Some(keys) = newer_keys(chunk, &known) {
                        self.report(Rule::UnknownKey, keys);
                    }
                }
                // A kind that neither this client nor the newest `ai@6` has changes nothing.
                if [self.oldest_client, Version::V6Patch(NEWEST_V6)]
                    .iter()
                    .any(|version| chunk.is_kind_known_to(*version))
                {
                    self.handle_chunk(chunk);
                }
            }
            ReceivedChunk::Unknown { kind, .. } => {
                let meant = meant_kind(kind)
                    .map(|meant| format!(", which is {meant:?} in this protocol"))
                    .unwrap_or_default();
                self.report(Rule::UnknownKind, format!("a chunk of type {kind:?}{meant}"));
            }
        }
        std::mem::take(&mut self.found)
    }

    /// Records that the stream ended within a server-sent event. The client never reads this event.
    /// Returns the finding.
    pub fn handle_truncated(&mut self) -> Vec<Violation> {
        self.report(Rule::UnfinishedEvent, "the last event".to_owned());
        std::mem::take(&mut self.found)
    }

    /// Records that a line of the stream holds a JSON object without `data:` before it. The client
    /// never reads this line. Returns the finding.
    pub fn handle_bare_line(&mut self) -> Vec<Violation> {
        self.report(Rule::MissingDataPrefix, "a JSON object".to_owned());
        std::mem::take(&mut self.found)
    }

    /// Ends the check and returns a finding for each rule that the end of the stream breaks.
    pub fn finish(mut self) -> Vec<Violation> {
        self.close_parts("the stream");
        for id in self.calls.streaming_ids() {
            self.report(Rule::InputLeftOpen, format!("tool call {id:?} at the end"));
        }
        for id in self.calls.preliminary_ids() {
            self.report(Rule::OutputLeftPreliminary, format!("tool call {id:?} at the end"));
        }
        if self.end == Some(StreamEnd::Finished) && !self.has_error {
            for id in self.calls.ids_without_output() {
                self.report(Rule::CallWithoutOutput, format!("tool call {id:?} at the end"));
            }
        }
        if !self.has_events {
            self.report(Rule::NoChunks, "the stream".to_owned());
        } else if self.end.is_none() && !self.has_error {
            self.report(Rule::NoFinish, "the stream".to_owned());
        }
        if self.end != Some(StreamEnd::Failed) && self.calls.would_resubmit() {
            self.report(Rule::EndlessResubmission, "the last step".to_owned());
        }
        if matches!(self.end, Some(StreamEnd::Finished | StreamEnd::Aborted)) && !self.has_error {
            for id in self.calls.ids_never_resubmitted() {
                self.report(Rule::NeverResubmitted, format!("tool call {id:?} at the end"));
            }
        }
        self.found
    }

    fn report(&mut self, rule: Rule, subject: String) {
        self.has_error |= rule.severity() == Severity::Error;
        self.found.push(Violation { rule, subject });
    }

    /// Returns whether the client ignores all further chunks.
    fn has_stopped(&self) -> bool {
        self.end == Some(StreamEnd::Failed) && self.reader.stops_at_error()
    }

    /// Checks that a chunk is allowed at this point if the stream has already ended.
    fn check_place(&mut self, chunk: &Chunk<'_>) {
        match self.end {
            Some(StreamEnd::Failed)
                if !matches!(chunk, Chunk::FinishStep {} | Chunk::Finish { .. }) =>
            {
                self.report(Rule::AfterError, chunk.kind().into_owned());
            }
            Some(StreamEnd::Finished | StreamEnd::Aborted)
                if !matches!(chunk, Chunk::FinishStep {} | Chunk::Finish { .. })
                    || self.end == Some(StreamEnd::Finished) =>
            {
                self.report(Rule::AfterFinish, chunk.kind().into_owned());
            }
            _ => {}
        }
    }

    fn handle_chunk(&mut self, chunk: &Chunk<'_>) {
        self.check_place(chunk);
        if is_shown(chunk) {
            self.calls.mark_shown();
        }
        match chunk {
            Chunk::Start { message_id, message_metadata } => {
                self.start(message_id.as_deref());
                self.merge(chunk, message_metadata.as_deref());
            }
            Chunk::TextStart { id, .. } => self.open(PartKind::Text, id),
            Chunk::TextDelta { id, .. } => self.require_open(PartKind::Text, id, chunk),
            Chunk::TextEnd { id, .. } => {
                self.require_open(PartKind::Text, id, chunk);
                self.texts.remove(&**id);
            }
            Chunk::ReasoningStart { id, .. } => self.open(PartKind::Reasoning, id),
            Chunk::ReasoningDelta { id, .. } => self.require_open(PartKind::Reasoning, id, chunk),
            Chunk::ReasoningEnd { id, .. } => {
                self.require_open(PartKind::Reasoning, id, chunk);
                self.reasoning.remove(&**id);
            }
            Chunk::FinishStep {} => {
                if !self.oldest_client.keeps_texts_open() {
                    self.close_parts("the step");
                }
                for id in self.calls.take_streaming_ids_in_step() {
                    self.report(Rule::InputLeftOpen, format!("tool call {id:?} at finish-step"));
                }
            }
            Chunk::ResetStep {} => {
                self.texts = HashSet::new();
                self.reasoning = HashSet::new();
                self.calls.reset_step();
            }
            Chunk::MessageMetadata { message_metadata } => {
                self.merge(chunk, message_metadata.as_deref());
            }
            Chunk::Finish { message_metadata, .. } => {
                self.merge(chunk, message_metadata.as_deref());
                self.end.get_or_insert(StreamEnd::Finished);
            }
            Chunk::Error { .. } => self.end = Some(StreamEnd::Failed),
            Chunk::Abort { .. } => {
                self.end.get_or_insert(StreamEnd::Aborted);
            }
            Chunk::SourceUrl { .. }
            | Chunk::SourceDocument { .. }
            | Chunk::File { .. }
            | Chunk::ReasoningFile { .. }
            | Chunk::Custom { .. }
            | Chunk::Data { .. } => {}
            call => {
                self.calls.handle_chunk(call, &mut self.found);
                self.has_error |=
                    self.found.iter().any(|found| found.rule.severity() == Severity::Error);
            }
        }
    }

    fn start(&mut self, message_id: Option<&str>) {
        let is_first = !std::mem::replace(&mut self.has_started, true);
        if !is_first {
            self.report(Rule::SecondStart, "start".to_owned());
        }
        if let Some(continued) = self.continued.as_deref() {
            match message_id {
                Some(id) if id != continued => {
                    self.report(Rule::OtherMessageId, format!("start with id {id:?}"));
                }
                // The client has generated an id.
                None if self.message_id.is_none() => {
                    self.report(Rule::OtherMessageId, "start without an id".to_owned());
                }
                _ => {}
            }
        }
        let has_other_id = message_id.is_some() && message_id != self.message_id.as_deref();
        if self.reader.resets_message(is_first, has_other_id) {
            self.reset_message();
        }
        if let Some(id) = message_id {
            self.message_id = Some(id.to_owned());
        }
    }

    /// Empties the message, as the client does.
    fn reset_message(&mut self) {
        self.calls = Calls::default();
        self.texts.clear();
        self.reasoning.clear();
        self.metadata = MetadataShape::None;
    }

    /// The client copies both values into one object and looks up each new key in the old value.
    fn merge(&mut self, chunk: &Chunk<'_>, metadata: Option<&Json>) {
        let Some(metadata) = metadata.filter(|metadata| !metadata.is_null()) else {
            return;
        };
        if self.metadata == MetadataShape::Scalar && has_keys(metadata) {
            self.report(Rule::UnmergeableMetadata, format!("metadata of {}", chunk.kind()));
        }
        self.metadata = match self.metadata {
            MetadataShape::None => MetadataShape::new(metadata),
            _ => MetadataShape::Object,
        };
    }

    fn parts(&mut self, kind: PartKind) -> &mut HashSet<Box<str>> {
        match kind {
            PartKind::Text => &mut self.texts,
            PartKind::Reasoning => &mut self.reasoning,
        }
    }

    fn open(&mut self, kind: PartKind, id: &str) {
        if !self.parts(kind).insert(id.into()) {
            self.report(Rule::PartLeftOpen, format!("part {id:?}, started again before its end"));
        }
    }

    fn require_open(&mut self, kind: PartKind, id: &str, chunk: &Chunk<'_>) {
        if !self.parts(kind).contains(id) {
            let parts = self.parts(kind);
            let open = match parts.iter().next() {
                Some(open) if parts.len() == 1 => format!(", while {open:?} is open"),
                _ => String::new(),
            };
            self.report(Rule::PartNotOpen, format!("{} of part {id:?}{open}", chunk.kind()));
        }
    }

    fn close_parts(&mut self, end_of: &str) {
        // `take` instead of `drain`: `drain` costs the capacity that the largest step needed.
        let texts = std::mem::take(&mut self.texts);
        let mut open: Vec<_> =
            texts.into_iter().chain(std::mem::take(&mut self.reasoning)).collect();
        open.sort_unstable();
        for id in open {
            self.report(Rule::PartLeftOpen, format!("part {id:?} at the end of {end_of}"));
        }
    }
}

/// Returns whether the client shows the message after it has read this chunk. The changes of other
/// chunks are shown with the next chunk for which this is true.
fn is_shown(chunk: &Chunk<'_>) -> bool {
    match chunk {
        Chunk::StartStep {} | Chunk::FinishStep {} | Chunk::Error { .. } | Chunk::Abort { .. } => {
            false
        }
        Chunk::Start { message_id, message_metadata } => {
            message_id.is_some() || message_metadata.as_ref().is_some_and(|json| !json.is_null())
        }
        Chunk::Finish { message_metadata, .. } | Chunk::MessageMetadata { message_metadata } => {
            message_metadata.as_ref().is_some_and(|json| !json.is_null())
        }
        Chunk::Data { transient, .. } => *transient != Some(true),
        _ => true,
    }
}

#[derive(Clone, Copy)]
enum PartKind {
    Text,
    Reasoning,
}

/// Returns whether the client's JSON reader refuses the chunk because of a key, independent of
/// other errors.
fn has_prototype_key(data: &str) -> bool {
    let raw = serde_json::from_str::<&RawValue>(data).map(Json::received);
    matches!(raw, Ok(Err(JsonError::PrototypeKey)))
}

/// Returns whether this is a line of the stream format of `ai@4`: a letter or digit for the kind, a
/// colon, and JSON.
fn is_ai_4_line(data: &str) -> bool {
    matches!(data.as_bytes(), [b'0'..=b'9' | b'a'..=b'k', b':', b'"' | b'{' | b'[', ..])
}

/// Returns whether each line is a chunk or `[DONE]`: no blank line stands between the events.
fn is_several_chunks(data: &str) -> bool {
    let is_chunk = |line: &str| line == "[DONE]" || Object::parse(line).is_ok();
    data.contains('\n') && data.lines().all(is_chunk)
}

/// Returns the kind that the author of an unknown kind probably means: a kind in another spelling
/// (`text_delta`, `textDelta`), or what other streams call it.
fn meant_kind(kind: &str) -> Option<Cow<'static, str>> {
    let mut spelled = String::new();
    for character in kind.chars() {
        if character.is_ascii_uppercase() && !spelled.is_empty() && !spelled.ends_with('-') {
            spelled.push('-');
        }
        spelled.push(match character {
            '_' | '.' | ' ' => '-',
            other => other.to_ascii_lowercase(),
        });
    }
    let other_name = OTHER_NAMES.iter().find(|(name, _)| *name == spelled);
    match other_name {
        Some((_, meant)) => Some(Cow::Borrowed(*meant)),
        None => Chunk::keys(&spelled).map(|_| Cow::Owned(spelled)),
    }
}

/// Names the keys that the chunk has in place of a missing field, or returns an empty text.
fn unknown_keys(data: &str, missing: &FieldError) -> String {
    let (Ok(mut object), "missing") = (Object::parse(data), missing.problem()) else {
        return String::new();
    };
    let Ok(kind) = object.text("type") else {
        return String::new();
    };
    let Some(known) = Chunk::keys(&kind) else {
        return String::new();
    };
    let unknown = object.rest().filter(|(key, _)| !known.contains(key));
    let unknown: Vec<String> =
        unknown.take(3).map(|(key, _)| format!("`{}`", log_text(key))).collect();
    if unknown.is_empty() {
        String::new()
    } else {
        format!(", and {kind} has no key {}", unknown.join(", "))
    }
}

/// Returns whether the client looks up a key when it merges this value.
fn has_keys(metadata: &Json) -> bool {
    if let Ok(object) = metadata.decode::<BTreeMap<String, IgnoredAny>>() {
        // The client skips these keys.
        return object.keys().any(|key| !matches!(&**key, "constructor" | "prototype"));
    }
    let text = metadata.as_str().trim();
    match text.as_bytes().first() {
        Some(b'{' | b'[') => text[1..text.len() - 1].trim() != "",
        Some(b'"') => text.len() > 2,
        _ => false,
    }
}

/// Names the fields of a chunk that an older client does not know. `None` if it knows all.
fn newer_keys(chunk: &Chunk<'_>, known: &Chunk<'_>) -> Option<String> {
    if chunk == known {
        return None;
    }
    let keys = |chunk: &Chunk<'_>| -> Vec<String> {
        let text = serde_json::to_string(chunk).unwrap_or_default();
        let mut keys = Vec::new();
        let _ = each_field(&text, |key, _| keys.push(key.to_owned()));
        keys
    };
    let known = keys(known);
    let newer: Vec<String> = keys(chunk).into_iter().filter(|key| !known.contains(key)).collect();
    (!newer.is_empty()).then(|| format!("key `{}` of {}", newer.join("`, `"), chunk.kind()))
}

/// What other streams call a kind of chunk: `fullStream` of the AI SDK, and the parts of a message.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("text", "text-delta"),
    ("reasoning", "reasoning-delta"),
    ("tool-call", "tool-input-available"),
    ("tool-call-streaming-start", "tool-input-start"),
    ("tool-call-delta", "tool-input-delta"),
    ("tool-input-end", "tool-input-available"),
    ("tool-result", "tool-output-available"),
    ("tool-error", "tool-output-error"),
    ("source", "source-url"),
    ("step-start", "start-step"),
    ("step-finish", "finish-step"),
];
