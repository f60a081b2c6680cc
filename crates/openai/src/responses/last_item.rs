//! [`LastItem`]: delays the events of the last item of a response until the id of the response is
//! known.
//!
//! A request can continue only from a completed response, so the id is stored when the response is
//! completed. The events of the last complete item are then emitted with the id. If another item
//! follows, the delayed item was not the last, and its events are emitted without the id.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::provider_state::ProviderState;
use ui_message_stream::chunk::Chunk;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::model::ModelEvent;

/// The events of the last complete item of a response.
#[derive(Debug, Default)]
pub(super) struct LastItem(VecDeque<ModelEvent>);

impl LastItem {
    /// Delays the events of an item that is complete. The previous item was not the last.
    pub(super) fn replace(
        &mut self,
        item: VecDeque<ModelEvent>,
        events: &mut VecDeque<ModelEvent>,
    ) {
        self.release(events);
        self.0 = item;
    }

    /// Emits the delayed events without the id: another item follows, or the response is
    /// incomplete.
    pub(super) fn release(&mut self, events: &mut VecDeque<ModelEvent>) {
        events.append(&mut self.0);
    }

    /// Emits the delayed events, and those of the rest of the response, with the id of the completed response.
    pub(super) fn end(
        &mut self,
        response_id: Option<&str>,
        mut rest: VecDeque<ModelEvent>,
        events: &mut VecDeque<ModelEvent>,
    ) {
        self.0.append(&mut rest);
        if let Some(id) = response_id {
            // Only the last event that can carry metadata gets the id.
            let _ = self.0.iter_mut().rev().any(|event| add_response_id(event, id));
        }
        self.release(events);
    }
}

/// Adds the id of the response to an event. Returns `false` if the event cannot carry metadata.
fn add_response_id(event: &mut ModelEvent, response_id: &str) -> bool {
    let with_id = |metadata: Option<&ProviderMetadata>| {
        ProviderState {
            response_id: Some(response_id.to_owned()),
            ..ProviderState::from_metadata(metadata)
        }
        .metadata()
    };
    match event {
        ModelEvent::ToolCall(call, _)
        | ModelEvent::ProviderApprovalRequest(call, _)
        | ModelEvent::Event(AgentEvent::ToolInput { call, .. }) => {
            call.provider_metadata = with_id(call.provider_metadata.as_ref());
        }
        ModelEvent::Event(AgentEvent::ReasoningEnd { provider_metadata, .. }) => {
            *provider_metadata = with_id(provider_metadata.as_ref());
        }
        ModelEvent::Event(AgentEvent::Chunk(chunk)) => {
            let Chunk::TextEnd { provider_metadata, .. } = &mut **chunk else { return false };
            *provider_metadata = with_id(provider_metadata.as_deref()).map(Cow::Owned);
        }
        ModelEvent::Event(event) => {
            let AgentEvent::TextEnd { id } = event else { return false };
            let id = Cow::Owned(id.to_string());
            let metadata = with_id(None);
            let provider_metadata = metadata.map(Cow::Owned);
            let end = Chunk::TextEnd { id, citations: None, provider_metadata };
            *event = AgentEvent::Chunk(Box::new(end));
        }
        _ => return false,
    }
    true
}
