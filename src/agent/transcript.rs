//! [`Transcript`]: the chat and what the run has said so far, for the model to read.

use std::borrow::Cow;

use super::tools::Tools;
use crate::chat::Turn;
use crate::event::AgentEvent;
use crate::history::{Chat, Recorder};
use crate::id::ToolCallId;
use crate::message::{Part, Role, UiMessage};
use crate::model_message::{FromUi, ModelMessage};

/// What has been said, for the model to read.
pub(super) struct Transcript {
    chat: Chat,
    /// Where the message that is being written stands in it.
    place: usize,
    now: Recorder,
}

impl Transcript {
    pub(super) fn of(turn: &Turn) -> Self {
        let mut chat = Chat::clone(&turn.chat);
        let place = chat.messages.iter().rposition(|message| message.id == turn.message_id);
        let now = match place {
            Some(place) => Recorder::continuing(chat.messages[place].clone()),
            None => Recorder::new(turn.message_id.clone()),
        };
        let place = place.unwrap_or_else(|| {
            let id = turn.message_id.clone();
            chat.messages.push(UiMessage::new(id, Role::Assistant, Vec::new()));
            chat.messages.len() - 1
        });
        Transcript { chat, place, now }
    }

    pub(super) fn hear(&mut self, event: &AgentEvent) {
        if let Some(ran) = self.chat.ran_elsewhere(event, &mut self.now) {
            self.chat.settle(&ran, None);
        }
        self.now.handle_event(event);
    }

    /// The message that is being written, as far as it is.
    pub(super) fn now(&mut self) -> &UiMessage {
        self.now.message()
    }

    /// The chat as it is now, with that message.
    pub(super) fn chat(&mut self) -> &Chat {
        self.chat.messages[self.place].clone_from(self.now.message());
        &self.chat
    }

    /// The same without this call, which is being decided about.
    pub(super) fn chat_before(&mut self, call: &ToolCallId) -> Chat {
        let mut chat = self.chat().clone();
        let is_it = |part: &Part| {
            part.as_tool().is_some_and(|part| part.tool_call_id == *call && !part.is_settled())
        };
        chat.messages[self.place].parts.retain(|part| !is_it(part));
        chat
    }

    pub(super) fn messages(&mut self, turn: &Turn, step: u32, tools: &Tools) -> Vec<ModelMessage> {
        let deferred = match step {
            1 => Cow::Borrowed(&turn.deferred),
            _ => Cow::Owned(turn.deferred.once_told()),
        };
        let from_ui = FromUi::new().with_deferred(&deferred);
        let from_ui = from_ui.with_outputs(|tool, output| tools.model_output(tool, output));
        from_ui.model_messages(&self.chat().messages)
    }
}
