//! [`LastPiece`]: the last whole piece of a response, which waits for the id of the response.
//!
//! Only a response that ended can be gone on from. So its id comes with its end, and what was whole
//! last is said then, with the id; if more comes before the end, that was not the last.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::provider_state::Kept;
use ui_message_stream::chunk::Chunk;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::run::ModelEvent;

/// The last whole piece of a response.
#[derive(Debug, Default)]
pub(super) struct LastPiece(VecDeque<ModelEvent>);

impl LastPiece {
    /// A piece is whole; the one before was not the last.
    pub(super) fn replace(&mut self, piece: VecDeque<ModelEvent>, said: &mut VecDeque<ModelEvent>) {
        self.release(said);
        self.0 = piece;
    }

    /// More comes, or nothing does any more, and the response did not end.
    pub(super) fn release(&mut self, said: &mut VecDeque<ModelEvent>) {
        said.append(&mut self.0);
    }

    /// The response ended.
    pub(super) fn end(&mut self, response_id: Option<&str>, said: &mut VecDeque<ModelEvent>) {
        if let Some(id) = response_id {
            // The last event that can say it.
            let _ = self.0.iter_mut().rev().any(|event| tell(event, id));
        }
        self.release(said);
    }
}

/// Adds the id of its response to an event, if it is one that can say it.
fn tell(event: &mut ModelEvent, response_id: &str) -> bool {
    let with_id = |metadata: Option<&ProviderMetadata>| {
        Kept { response_id: Some(response_id.to_owned()), ..Kept::of(metadata) }.metadata()
    };
    match event {
        ModelEvent::Call(call, _)
        | ModelEvent::ProviderAsks(call, _)
        | ModelEvent::Said(AgentEvent::ToolInput { call, .. }) => {
            call.provider_metadata = with_id(call.provider_metadata.as_ref());
        }
        ModelEvent::Said(AgentEvent::ReasoningEnd { provider_metadata, .. }) => {
            *provider_metadata = with_id(provider_metadata.as_ref());
        }
        ModelEvent::Said(said) => {
            let AgentEvent::TextEnd { id } = said else { return false };
            let (id, metadata) = (Cow::Owned(id.to_string()), with_id(None));
            let end = Chunk::TextEnd { id, provider_metadata: metadata.map(Cow::Owned) };
            *said = AgentEvent::Chunk(Box::new(end));
        }
        _ => return false,
    }
    true
}
