//! [`Transcript`]: the chat and what the run has said so far, for the model to read.

use std::borrow::Cow;

use super::tools::Tools;
use crate::chat::Turn;
use crate::event::AgentEvent;
use crate::history::{Chat, Recorder};
use crate::message::{Role, UiMessage};
use crate::model_message::{FromUi, ModelMessage};

/// What has been said, for the model to read.
pub(super) struct Transcript {
    messages: Vec<UiMessage>,
    /// Where the message that is being written stands among them.
    place: usize,
    now: Recorder,
}

impl Transcript {
    pub(super) fn of(turn: &Turn) -> Self {
        let mut messages = turn.chat.messages.clone();
        let place = messages.iter().rposition(|message| message.id == turn.message_id);
        let now = match place {
            Some(place) => Recorder::continuing(messages[place].clone()),
            None => Recorder::new(turn.message_id.clone()),
        };
        let place = place.unwrap_or_else(|| {
            let id = turn.message_id.clone();
            messages.push(UiMessage::new(id, Role::Assistant, Vec::new()));
            messages.len() - 1
        });
        Transcript { messages, place, now }
    }

    pub(super) fn hear(&mut self, event: &AgentEvent) {
        self.now.handle_event(event);
    }

    /// The message that is being written, as far as it is.
    pub(super) fn now(&mut self) -> &UiMessage {
        self.now.message()
    }

    /// The chat as it is now, with that message.
    pub(super) fn chat(&mut self, turn: &Turn) -> Chat {
        self.messages[self.place].clone_from(self.now.message());
        let mut chat = Chat::clone(&turn.chat);
        chat.messages.clone_from(&self.messages);
        chat
    }

    pub(super) fn messages(&mut self, turn: &Turn, step: u32, tools: &Tools) -> Vec<ModelMessage> {
        self.messages[self.place].clone_from(self.now.message());
        let deferred = match step {
            1 => Cow::Borrowed(&turn.deferred),
            _ => Cow::Owned(turn.deferred.once_told()),
        };
        let from_ui = FromUi::new().with_deferred(&deferred);
        let from_ui = from_ui.with_outputs(|tool, output| tools.model_output(tool, output));
        from_ui.model_messages(&self.messages)
    }
}
