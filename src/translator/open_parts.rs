//! The open text and reasoning parts, by the id in their deltas, and the rules that open and close
//! them.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::{Out, TranslateError, Translator};
use crate::chunk::Chunk;
use crate::id::PartId;
use crate::metadata::ProviderMetadata;

/// The open parts of one kind. There is rarely more than one.
#[derive(Debug)]
pub(super) struct OpenParts {
    /// The id of the part that receives deltas without an id.
    unnamed: Option<String>,
    /// The ids that the agent gave, in the order in which the parts were opened.
    named: Vec<String>,
    prefix: &'static str,
    next: u32,
}

impl OpenParts {
    /// Creates an empty set. Generated ids, for parts without an id of the agent, begin with
    /// `prefix`.
    pub(super) fn new(prefix: &'static str) -> Self {
        OpenParts { unnamed: None, named: Vec::new(), prefix, next: 0 }
    }

    /// Returns the id of the part that receives deltas without an id.
    #[inline]
    pub(super) fn unnamed(&self) -> Option<&str> {
        self.unnamed.as_deref()
    }

    /// Opens the part that receives deltas without an id, under an id that no open part has.
    pub(super) fn open_unnamed(&mut self) -> &str {
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

    fn close_unnamed(&mut self) -> Option<String> {
        self.unnamed.take()
    }

    pub(super) fn has_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Returns whether a part with this id of the agent is open.
    fn is_named(&self, id: &str) -> bool {
        self.named.iter().any(|open| open == id)
    }

    pub(super) fn open(&mut self, id: &str) {
        self.named.push(id.to_owned());
    }

    /// Closes the part with this id of the agent. Returns whether one was open.
    pub(super) fn close(&mut self, id: &str) -> bool {
        match self.named.iter().position(|open| open == id) {
            Some(index) => {
                self.named.remove(index);
                true
            }
            None => false,
        }
    }

    /// Closes all parts: those with an id of the agent, oldest first, then the one without.
    pub(super) fn close_all(&mut self) -> impl Iterator<Item = String> {
        std::mem::take(&mut self.named).into_iter().chain(self.unnamed.take())
    }
}

impl Translator {
    fn parts(&mut self, kind: Kind) -> &mut OpenParts {
        match kind {
            Kind::Text => &mut self.texts,
            Kind::Reasoning => &mut self.reasoning,
        }
    }

    /// Closes the part that is being written, because content of another kind follows.
    pub(super) fn close_unnamed(&mut self, out: Out<'_>) {
        for kind in [Kind::Reasoning, Kind::Text] {
            if let Some(id) = self.parts(kind).close_unnamed() {
                self.emit(kind.end(&id, None), out);
            }
        }
    }

    pub(super) fn close_parts(&mut self, out: Out<'_>) {
        for kind in [Kind::Reasoning, Kind::Text] {
            let open: Vec<String> = self.parts(kind).close_all().collect();
            for id in open {
                self.emit(kind.end(&id, None), out);
            }
        }
    }

    pub(super) fn start_part(
        &mut self,
        kind: Kind,
        id: &PartId,
        metadata: Option<&ProviderMetadata>,
        out: Out<'_>,
    ) {
        self.open_step(out);
        self.close_unnamed(out);
        // Otherwise the client would never close the first part with this id.
        if self.parts(kind).close(id) {
            self.emit(kind.end(id, None), out);
        }
        self.parts(kind).open(id);
        self.emit(kind.start(id, metadata), out);
    }

    pub(super) fn add_to_part(
        &mut self,
        kind: Kind,
        id: Option<&PartId>,
        delta: &str,
        metadata: Option<&ProviderMetadata>,
        out: Out<'_>,
    ) {
        if delta.is_empty() && metadata.is_none() {
            return;
        }
        match id {
            Some(id) => {
                if !self.parts(kind).is_named(id) {
                    self.start_part(kind, id, None, out);
                }
                self.emit(kind.delta(id, delta, metadata), out);
            }
            None => {
                if self.parts(kind).unnamed().is_none() {
                    self.open_step(out);
                    self.close_unnamed(out);
                    let id = self.parts(kind).open_unnamed().to_owned();
                    self.emit(kind.start(&id, None), out);
                }
                let parts = match kind {
                    Kind::Text => &self.texts,
                    Kind::Reasoning => &self.reasoning,
                };
                if let Some(id) = parts.unnamed() {
                    self.emit(kind.delta(id, delta, metadata), out);
                }
            }
        }
    }

    pub(super) fn end_part(
        &mut self,
        kind: Kind,
        id: Option<&PartId>,
        metadata: Option<&ProviderMetadata>,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        let parts = self.parts(kind);
        let closed = match id {
            Some(id) => parts.close(id).then(|| id.to_string()),
            None => parts.close_unnamed(),
        };
        let Some(closed) = closed else {
            return Err(TranslateError::UnknownPart(id.cloned()));
        };
        self.emit(kind.end(&closed, metadata), out);
        Ok(())
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
        let (id, provider_metadata) = (Cow::Borrowed(id), metadata.map(Cow::Borrowed));
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
        let (id, delta) = (Cow::Borrowed(id), Cow::Borrowed(delta));
        let provider_metadata = metadata.map(Cow::Borrowed);
        match self {
            Kind::Text => Chunk::TextDelta { id, delta, provider_metadata },
            Kind::Reasoning => Chunk::ReasoningDelta { id, delta, provider_metadata },
        }
    }

    fn end<'a>(self, id: &'a str, metadata: Option<&'a ProviderMetadata>) -> Chunk<'a> {
        let (id, provider_metadata) = (Cow::Borrowed(id), metadata.map(Cow::Borrowed));
        match self {
            Kind::Text => Chunk::TextEnd { id, provider_metadata },
            Kind::Reasoning => Chunk::ReasoningEnd { id, provider_metadata },
        }
    }
}
