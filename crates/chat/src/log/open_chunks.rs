//! [`OpenChunks`]: what the chunks of a run have begun and not ended.

use std::borrow::Cow;

use ui_message_stream::chunk::{Chunk, ReceivedChunk};
use ui_message_stream::sse::Decoder;

/// The chunks that need an end.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenChunks {
    text: Vec<String>,
    reasoning: Vec<String>,
    step: bool,
}

impl OpenChunks {
    /// Returns whether a text or a reasoning is open.
    pub(crate) fn has_text(&self) -> bool {
        !self.text.is_empty() || !self.reasoning.is_empty()
    }

    pub(crate) fn has_step(&self) -> bool {
        self.step
    }

    /// Returns the chunks that end what is open.
    pub(crate) fn ends(&self) -> Vec<Chunk<'static>> {
        let id = |id: &String| Cow::Owned(id.clone());
        let text = self.text.iter().map(|open| Chunk::TextEnd {
            id: id(open),
            citations: None,
            provider_metadata: None,
        });
        let reasoning = self
            .reasoning
            .iter()
            .map(|open| Chunk::ReasoningEnd { id: id(open), provider_metadata: None });
        let step = self.step.then_some(Chunk::FinishStep {});
        text.chain(reasoning).chain(step).collect()
    }

    pub(crate) fn push(&mut self, chunk: &Chunk<'_>) {
        match chunk {
            Chunk::TextStart { id, .. } => self.text.push(id.to_string()),
            Chunk::TextEnd { id, .. } => self.text.retain(|open| *open != **id),
            Chunk::ReasoningStart { id, .. } => self.reasoning.push(id.to_string()),
            Chunk::ReasoningEnd { id, .. } => self.reasoning.retain(|open| *open != **id),
            Chunk::ResetStep {} => {
                self.text.clear();
                self.reasoning.clear();
            }
            Chunk::StartStep {} => self.step = true,
            Chunk::FinishStep {} => self.step = false,
            _ => {}
        }
    }
}

/// Passes on the chunks of frames. One that this version cannot read is left out.
pub(crate) fn each_chunk(bytes: &[u8], mut handle: impl FnMut(&Chunk<'_>)) {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    while let Some(event) = decoder.poll() {
        if let Ok(ReceivedChunk::Known { chunk, .. }) = ReceivedChunk::parse(&event.data) {
            handle(&chunk);
        }
    }
}
