//! The open text and reasoning parts, by the id in their deltas, and the rules that open and close
//! them.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::TranslateError;
use super::out::Out;
use crate::chunk::{Chunk, Citations};
use crate::id::PartId;
use crate::metadata::ProviderMetadata;

/// The open parts of the message.
#[derive(Debug)]
pub(super) struct OpenParts {
    text: PartsOfKind,
    reasoning: PartsOfKind,
}

impl OpenParts {
    pub(super) fn new() -> Self {
        OpenParts { text: PartsOfKind::new("text"), reasoning: PartsOfKind::new("reasoning") }
    }

    /// Returns the id of the text part that receives deltas without an id.
    #[inline]
    pub(super) fn unnamed_text(&self) -> Option<&str> {
        self.text.unnamed.as_deref()
    }

    /// Returns whether a part with an id of the agent is open.
    pub(super) fn has_named(&self) -> bool {
        !self.text.named.is_empty() || !self.reasoning.named.is_empty()
    }

    /// Returns whether the part is open that receives deltas with this id, or without an id.
    pub(super) fn is_open(&self, kind: Kind, id: Option<&PartId>) -> bool {
        let parts = match kind {
            Kind::Text => &self.text,
            Kind::Reasoning => &self.reasoning,
        };
        match id {
            Some(id) => parts.is_named(id),
            None => parts.unnamed.is_some(),
        }
    }

    /// Closes the part that is being written, because content of another kind follows.
    pub(super) fn close_unnamed(&mut self, out: &mut Out<'_>) {
        for kind in [Kind::Reasoning, Kind::Text] {
            if let Some(id) = self.of_kind(kind).unnamed.take() {
                out.emit(kind.end(&id, PartEnd::default()));
            }
        }
    }

    /// Closes the text without an id of the agent.
    pub(super) fn close_unnamed_text(&mut self, out: &mut Out<'_>) {
        if let Some(id) = self.text.unnamed.take() {
            out.emit(Kind::Text.end(&id, PartEnd::default()));
        }
    }

    /// Closes all parts: of each kind those with an id of the agent, oldest first, then the one
    /// without.
    pub(super) fn close_all(&mut self, out: &mut Out<'_>) {
        for kind in [Kind::Reasoning, Kind::Text] {
            let parts = self.of_kind(kind);
            let open = std::mem::take(&mut parts.named).into_iter().chain(parts.unnamed.take());
            for id in open {
                out.emit(kind.end(&id, PartEnd::default()));
            }
        }
    }

    /// Opens the part with this id of the agent. The step must be open.
    pub(super) fn start(
        &mut self,
        kind: Kind,
        id: &PartId,
        metadata: Option<&ProviderMetadata>,
        out: &mut Out<'_>,
    ) {
        self.close_unnamed(out);
        // Otherwise the client would never close the first part with this id.
        if self.of_kind(kind).close(id) {
            out.emit(kind.end(id, PartEnd::default()));
        }
        self.of_kind(kind).named.push(id.to_string());
        out.emit(kind.start(id, metadata));
    }

    /// Adds a delta to a part, and opens the part before if it is not open. The step must be open.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        id: Option<&PartId>,
        delta: &str,
        metadata: Option<&ProviderMetadata>,
        out: &mut Out<'_>,
    ) {
        let is_open = self.is_open(kind, id);
        match id {
            Some(id) => {
                if !is_open {
                    self.start(kind, id, None, out);
                }
                out.emit(kind.delta(id, delta, metadata));
            }
            None => {
                if !is_open {
                    self.close_unnamed(out);
                    let id = self.of_kind(kind).open_unnamed();
                    out.emit(kind.start(id, None));
                }
                if let Some(id) = &self.of_kind(kind).unnamed {
                    out.emit(kind.delta(id, delta, metadata));
                }
            }
        }
    }

    /// Closes a part: the one with this id or, without an id, the one that is being written.
    pub(super) fn end(
        &mut self,
        kind: Kind,
        id: Option<&PartId>,
        end: PartEnd<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let parts = self.of_kind(kind);
        let closed = match id {
            Some(id) => parts.close(id).then(|| id.to_string()),
            None => parts.unnamed.take(),
        };
        let Some(closed) = closed else {
            return Err(TranslateError::UnknownPart(id.cloned()));
        };
        out.emit(kind.end(&closed, end));
        Ok(())
    }

    fn of_kind(&mut self, kind: Kind) -> &mut PartsOfKind {
        match kind {
            Kind::Text => &mut self.text,
            Kind::Reasoning => &mut self.reasoning,
        }
    }
}

/// What the end of a part adds to it.
#[derive(Clone, Copy, Default)]
pub(super) struct PartEnd<'a> {
    /// What a text rests on.
    pub(super) citations: Option<&'a Citations>,
    pub(super) metadata: Option<&'a ProviderMetadata>,
}

/// The open parts of one kind. There is rarely more than one.
#[derive(Debug)]
struct PartsOfKind {
    /// The id of the part that receives deltas without an id.
    unnamed: Option<String>,
    /// The ids that the agent gave, in the order in which the parts were opened.
    named: Vec<String>,
    prefix: &'static str,
    next: u32,
}

impl PartsOfKind {
    /// Creates an empty set. Generated ids, for parts without an id of the agent, begin with
    /// `prefix`.
    fn new(prefix: &'static str) -> Self {
        PartsOfKind { unnamed: None, named: Vec::new(), prefix, next: 0 }
    }

    /// Opens the part that receives deltas without an id, under an id that no open part has.
    fn open_unnamed(&mut self) -> &str {
        let mut id = String::new();
        loop {
            self.next += 1;
            id.clear();
            // Writing to a `String` does not fail.
            let _ = write!(id, "{}-{}", self.prefix, self.next);
            if !self.is_named(&id) {
                return self.unnamed.insert(id);
            }
        }
    }

    /// Returns whether a part with this id of the agent is open.
    fn is_named(&self, id: &str) -> bool {
        self.named.iter().any(|open| open == id)
    }

    /// Closes the part with this id of the agent. Returns whether one was open.
    fn close(&mut self, id: &str) -> bool {
        match self.named.iter().position(|open| open == id) {
            Some(index) => {
                self.named.remove(index);
                true
            }
            None => false,
        }
    }
}

/// The kind of a part. Text and reasoning differ only in the names of their chunks.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    Reasoning,
}

impl Kind {
    fn start<'a>(self, id: &'a str, metadata: Option<&'a ProviderMetadata>) -> Chunk<'a> {
        let id = Cow::Borrowed(id);
        let provider_metadata = metadata.map(Cow::Borrowed);
        match self {
            Kind::Text => Chunk::TextStart { id, provider_metadata },
            Kind::Reasoning => Chunk::ReasoningStart { id, provider_metadata },
        }
    }

    fn delta<'a>(
        self,
        id: &'a str,
        delta: &'a str,
        metadata: Option<&'a ProviderMetadata>,
    ) -> Chunk<'a> {
        let id = Cow::Borrowed(id);
        let delta = Cow::Borrowed(delta);
        let provider_metadata = metadata.map(Cow::Borrowed);
        match self {
            Kind::Text => Chunk::TextDelta { id, delta, provider_metadata },
            Kind::Reasoning => Chunk::ReasoningDelta { id, delta, provider_metadata },
        }
    }

    fn end<'a>(self, id: &'a str, end: PartEnd<'a>) -> Chunk<'a> {
        let id = Cow::Borrowed(id);
        let provider_metadata = end.metadata.map(Cow::Borrowed);
        let citations = end.citations.map(Cow::Borrowed);
        match self {
            Kind::Text => Chunk::TextEnd { id, citations, provider_metadata },
            Kind::Reasoning => Chunk::ReasoningEnd { id, provider_metadata },
        }
    }
}
