//! [`Checker`]: what is wrong with anyone's stream, in one pass.
//!
//! Chunks go in one by one, findings come out, each with its [`Rule`]: what the client throws at
//! ([`Severity::Error`]), and what it accepts though it was surely not meant
//! ([`Severity::Warning`]). The checker remembers ids and never text, so a stream may be as long as
//! it likes. What the message comes to is the reducer's business.

mod calls;
mod reader;
mod rule;

use std::collections::{BTreeMap, HashSet};
use std::fmt;

pub use self::reader::Reader;
pub use self::rule::{Rule, Severity};

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use self::calls::Calls;
use crate::chunk::{Chunk, ReadChunkError, Received, Version};
use crate::json::{Json, JsonError};
use crate::message::{Part, Role, UiMessage};

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// What breaks it: `text-delta of part "0"`.
    pub subject: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { rule, subject } = self;
        write!(f, "{}: {subject}: {}; {}", rule.code(), rule.why(), rule.remedy())
    }
}

/// Checks a stream, chunk by chunk.
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
    reader: Reader,
    /// The id of the message that the stream goes on with.
    continued: Option<String>,
    /// The id that the message has now; none if the client made it up.
    message_id: Option<String>,
    metadata: Metadata,
    /// Something has come.
    begun: bool,
    started: bool,
    ended: Option<Ended>,
    texts: HashSet<Box<str>>,
    reasoning: HashSet<Box<str>>,
    calls: Calls,
    found: Vec<Violation>,
}

/// What has ended the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Finished,
    Failed,
    Aborted,
}

/// The shape of the message's metadata: what can be merged into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metadata {
    None,
    Object,
    Scalar,
}

impl Metadata {
    fn of(json: &Json) -> Self {
        match json.as_str().trim_start().as_bytes().first() {
            None | Some(b'n') => Metadata::None,
            Some(b'{' | b'[') => Metadata::Object,
            _ => Metadata::Scalar,
        }
    }
}

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker {
    /// Checks a stream that begins a message.
    pub fn new() -> Self {
        Checker {
            oldest_client: Version::V6At(NEWEST),
            reader: Reader::default(),
            continued: None,
            // What `readUIMessageStream` begins with.
            message_id: Some(String::new()),
            metadata: Metadata::None,
            begun: false,
            started: false,
            ended: None,
            texts: HashSet::new(),
            reasoning: HashSet::new(),
            calls: Calls::default(),
            found: Vec::new(),
        }
    }

    /// Checks a stream that goes on with this message. One that is not the assistant's is not gone
    /// on with.
    pub fn continuing(message: &UiMessage) -> Self {
        let mut checker = Self::new();
        checker.message_id = Some(message.id.to_string());
        if message.role != Role::Assistant {
            return checker;
        }
        checker.continued = checker.message_id.clone();
        checker.metadata = message.metadata.as_ref().map_or(Metadata::None, Metadata::of);
        for part in &message.parts {
            match part {
                Part::StepStart { .. } => checker.calls.start_step(),
                Part::Tool(part) => checker.calls.hold(part),
                _ => {}
            }
        }
        checker.calls.show();
        checker
    }

    /// Also holds the stream against older clients, back to this one: keys that they do not know
    /// are errors then. Without it the client is `ai@6.0.326`.
    pub fn with_oldest_client(mut self, version: Version) -> Self {
        self.oldest_client = version;
        self
    }

    /// Sets who reads, before the first chunk; `readUIMessageStream` unless set.
    ///
    /// ```
    /// use ui_message_stream::checker::{Checker, Reader, Rule};
    ///
    /// // `useChat` reads nothing behind an error, so nothing there can make it throw.
    /// let mut checker = Checker::new().with_reader(Reader::Chat);
    /// checker.handle_data(r#"{"type":"error","errorText":"An error occurred."}"#);
    /// let found = checker.handle_data(r#"{"type":"text-delta","id":"0","delta":"Hi"}"#);
    /// assert_eq!(found[0].rule, Rule::AfterError);
    /// ```
    pub fn with_reader(mut self, reader: Reader) -> Self {
        self.reader = reader;
        if reader == Reader::ChatResume && !self.calls.any_has_started() {
            self.forget();
            self.message_id = None;
        }
        self
    }

    /// Takes the data of the next event and returns what is wrong with it. `[DONE]` is nothing.
    pub fn handle_data(&mut self, data: &str) -> Vec<Violation> {
        if data == "[DONE]" {
            return Vec::new();
        }
        self.begun = true;
        match Received::parse(data) {
            Ok(received) => self.handle_received(&received),
            Err(_) if self.has_stopped() => {
                vec![Violation { rule: Rule::AfterError, subject: "what is no chunk".to_owned() }]
            }
            Err(error) => {
                let rule = match &error {
                    _ if has_prototype_key(data) => Rule::PrototypeKey,
                    ReadChunkError::Field(_) => Rule::InvalidField,
                    _ => Rule::NotJson,
                };
                vec![Violation { rule, subject: error.to_string() }]
            }
        }
    }

    /// Takes the next chunk and returns what is wrong with it.
    pub fn handle_received(&mut self, received: &Received<'_>) -> Vec<Violation> {
        self.begun = true;
        match received {
            Received::Known { chunk, .. } if self.has_stopped() => self.check_place(chunk),
            Received::Unknown { kind, .. } if self.has_stopped() => {
                self.find(Rule::AfterError, kind.to_string());
            }
            Received::Known { chunk, extra } => {
                if self.oldest_client < Version::V6At(LOOSE_SINCE) {
                    for (key, _) in extra {
                        self.find(Rule::UnknownKey, format!("key `{key}` of {}", chunk.kind()));
                    }
                    let known = chunk.clone().for_version(self.oldest_client);
                    if known != *chunk {
                        self.find(Rule::UnknownKey, newer_keys(chunk, &known));
                    }
                }
                self.handle_chunk(chunk);
            }
            Received::Unknown { kind, .. } => {
                self.find(Rule::UnknownKind, format!("a chunk of type {kind:?}"));
            }
        }
        std::mem::take(&mut self.found)
    }

    /// The stream ended within an event, which the client never sees.
    pub fn handle_unfinished(&mut self) -> Vec<Violation> {
        self.find(Rule::UnfinishedEvent, "the last event".to_owned());
        std::mem::take(&mut self.found)
    }

    /// The stream is over: what is wrong with how it ended.
    pub fn finish(mut self) -> Vec<Violation> {
        self.close_parts("the stream");
        for id in self.calls.left_streaming() {
            self.find(Rule::InputLeftOpen, format!("tool call {id:?} at the end"));
        }
        for id in self.calls.left_preliminary() {
            self.find(Rule::OutputLeftPreliminary, format!("tool call {id:?} at the end"));
        }
        if !self.begun {
            self.find(Rule::NoChunks, "the stream".to_owned());
        } else if self.ended.is_none() {
            self.find(Rule::NoFinish, "the stream".to_owned());
        }
        if self.ended != Some(Ended::Failed) && self.calls.would_resubmit() {
            self.find(Rule::EndlessResubmission, "the last step".to_owned());
        }
        self.found
    }

    fn find(&mut self, rule: Rule, subject: String) {
        self.found.push(Violation { rule, subject });
    }

    /// Whether the client reads nothing more.
    fn has_stopped(&self) -> bool {
        self.ended == Some(Ended::Failed) && self.reader.stops_at_error()
    }

    /// What may follow the end.
    fn check_place(&mut self, chunk: &Chunk<'_>) {
        match self.ended {
            Some(Ended::Failed)
                if !matches!(chunk, Chunk::FinishStep {} | Chunk::Finish { .. }) =>
            {
                self.find(Rule::AfterError, chunk.kind().into_owned());
            }
            Some(Ended::Finished | Ended::Aborted)
                if !matches!(chunk, Chunk::FinishStep {} | Chunk::Finish { .. })
                    || self.ended == Some(Ended::Finished) =>
            {
                self.find(Rule::AfterFinish, chunk.kind().into_owned());
            }
            _ => {}
        }
    }

    fn handle_chunk(&mut self, chunk: &Chunk<'_>) {
        self.check_place(chunk);
        if is_shown(chunk) {
            self.calls.show();
        }
        match chunk {
            Chunk::Start { message_id, message_metadata } => {
                self.start(message_id.as_deref());
                self.merge(chunk, message_metadata.as_deref());
            }
            Chunk::StartStep {} => self.calls.start_step(),
            Chunk::TextStart { id, .. } => self.open(PartKind::Text, id),
            Chunk::TextDelta { id, .. } => self.needs_open(PartKind::Text, id, chunk),
            Chunk::TextEnd { id, .. } => {
                self.needs_open(PartKind::Text, id, chunk);
                self.texts.remove(&**id);
            }
            Chunk::ReasoningStart { id, .. } => self.open(PartKind::Reasoning, id),
            Chunk::ReasoningDelta { id, .. } => self.needs_open(PartKind::Reasoning, id, chunk),
            Chunk::ReasoningEnd { id, .. } => {
                self.needs_open(PartKind::Reasoning, id, chunk);
                self.reasoning.remove(&**id);
            }
            Chunk::FinishStep {} => {
                self.close_parts("the step");
                for id in self.calls.take_left_streaming_in_step() {
                    self.find(Rule::InputLeftOpen, format!("tool call {id:?} at finish-step"));
                }
            }
            Chunk::MessageMetadata { message_metadata } => {
                self.merge(chunk, message_metadata.as_deref());
            }
            Chunk::Finish { message_metadata, .. } => {
                self.merge(chunk, message_metadata.as_deref());
                self.ended.get_or_insert(Ended::Finished);
            }
            Chunk::Error { .. } => self.ended = Some(Ended::Failed),
            Chunk::Abort { .. } => {
                self.ended.get_or_insert(Ended::Aborted);
            }
            Chunk::SourceUrl { .. }
            | Chunk::SourceDocument { .. }
            | Chunk::File { .. }
            | Chunk::Data { .. } => {}
            call => self.calls.handle_chunk(call, &mut self.found),
        }
    }

    fn start(&mut self, message_id: Option<&str>) {
        let is_first = !std::mem::replace(&mut self.started, true);
        if !is_first {
            self.find(Rule::SecondStart, "start".to_owned());
        }
        if let Some(continued) = self.continued.as_deref() {
            match message_id {
                Some(id) if id != continued => {
                    self.find(Rule::OtherMessageId, format!("start with id {id:?}"));
                }
                // The client has made one up.
                None if self.message_id.is_none() => {
                    self.find(Rule::OtherMessageId, "start without an id".to_owned());
                }
                _ => {}
            }
        }
        let has_other_id = message_id.is_some() && message_id != self.message_id.as_deref();
        if self.reader.empties(is_first, has_other_id) {
            self.forget();
        }
        if let Some(id) = message_id {
            self.message_id = Some(id.to_owned());
        }
    }

    /// The client empties the message.
    fn forget(&mut self) {
        self.calls = Calls::default();
        self.texts.clear();
        self.reasoning.clear();
        self.metadata = Metadata::None;
    }

    /// The client spreads both sides into an object, and asks the old one for each new key.
    fn merge(&mut self, chunk: &Chunk<'_>, metadata: Option<&Json>) {
        let Some(metadata) = metadata.filter(|metadata| !metadata.is_null()) else {
            return;
        };
        if self.metadata == Metadata::Scalar && has_keys(metadata) {
            self.find(Rule::UnmergeableMetadata, format!("metadata of {}", chunk.kind()));
        }
        self.metadata = match self.metadata {
            Metadata::None => Metadata::of(metadata),
            _ => Metadata::Object,
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
            self.find(Rule::PartLeftOpen, format!("part {id:?}, opened anew"));
        }
    }

    fn needs_open(&mut self, kind: PartKind, id: &str, chunk: &Chunk<'_>) {
        if !self.parts(kind).contains(id) {
            self.find(Rule::PartNotOpen, format!("{} of part {id:?}", chunk.kind()));
        }
    }

    fn close_parts(&mut self, end_of: &str) {
        // Taken, not drained: that costs what the largest step has had.
        let texts = std::mem::take(&mut self.texts);
        let mut open: Vec<_> =
            texts.into_iter().chain(std::mem::take(&mut self.reasoning)).collect();
        open.sort_unstable();
        for id in open {
            self.find(Rule::PartLeftOpen, format!("part {id:?} at the end of {end_of}"));
        }
    }
}

/// Whether the client shows what it holds when it has read this chunk. Changes by other chunks wait
/// for the next one of these.
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

/// Whether the client's JSON reader refuses the chunk, whatever else is wrong with it.
fn has_prototype_key(data: &str) -> bool {
    let raw = serde_json::from_str::<&RawValue>(data).map(Json::received);
    matches!(raw, Ok(Err(JsonError::PrototypeKey)))
}

/// Whether a merge of this value would ask for a key.
fn has_keys(metadata: &Json) -> bool {
    if let Ok(object) = metadata.to::<BTreeMap<String, IgnoredAny>>() {
        // The client passes these over.
        return object.keys().any(|key| !matches!(&**key, "constructor" | "prototype"));
    }
    let text = metadata.as_str().trim();
    match text.as_bytes().first() {
        Some(b'{' | b'[') => text[1..text.len() - 1].trim() != "",
        Some(b'"') => text.len() > 2,
        _ => false,
    }
}

/// Which fields of a chunk an older client does not know.
fn newer_keys(chunk: &Chunk<'_>, known: &Chunk<'_>) -> String {
    let keys = |chunk: &Chunk<'_>| -> Vec<String> {
        let value = serde_json::to_value(chunk).unwrap_or_default();
        value.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default()
    };
    let known = keys(known);
    let newer: Vec<String> = keys(chunk).into_iter().filter(|key| !known.contains(key)).collect();
    format!("key `{}` of {}", newer.join("`, `"), chunk.kind())
}

/// The client that the rules were measured on: `ai@6.0.326`.
const NEWEST: u16 = 326;

/// The first client that lets keys pass that it does not know.
const LOOSE_SINCE: u16 = 231;
