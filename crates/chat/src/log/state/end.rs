//! What the end of a run adds to its message.

use std::borrow::Cow;

use super::super::end_message::end_message;
use crate::conversation::Chat;
use crate::conversation::live_message;
use ui_message_stream::chunk::{Chunk, Version};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::MessageId;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream::reducer::Reducer;

/// Lets a message say how it has ended, or that it is continued.
pub(crate) fn note_end(chat: &mut Chat, id: &MessageId, end: Option<AnswerEnd>) {
    let metadata = chat.message(id).and_then(|message| message.end_metadata(end));
    if let Some(metadata) = metadata
        && let Some(message) = live_message::lend_message(chat, id)
    {
        let mut reducer = Reducer::continuing(message);
        let message_metadata = Some(Cow::Owned(metadata));
        // Both are objects.
        let _ = reducer.push_chunk(&Chunk::MessageMetadata { message_metadata });
        live_message::return_message(chat, reducer.into_message());
    }
}

/// Adds the step that readers of a run without an end get. A page that loads the message would else send
/// its answers again.
pub(super) fn add_last_step(chat: &mut Chat, id: &MessageId) {
    let Some(message) = live_message::lend_message(chat, id) else { return };
    let mut reducer = Reducer::continuing(message.clone());
    let event = AgentEvent::Abort { reason: None };
    end_message(&message, &[], &event, Version::V6, |chunk| {
        if matches!(chunk, Chunk::StartStep {} | Chunk::Data { .. } | Chunk::FinishStep {}) {
            // The translator emits no chunk that the reducer refuses.
            let _ = reducer.push_chunk(&chunk);
        }
    });
    live_message::return_message(chat, reducer.into_message());
}
