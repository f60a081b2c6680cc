//! [`Transcript`]: the chat and the events that the run has emitted so far, as messages for the
//! model.

use std::borrow::Cow;

use super::tool_set::ToolSet;
use ui_message_stream::approval::DeferredToolResults;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::message::{Part, Role, UiMessage};
use ui_message_stream::model::{ModelMessage, ToModelMessages};
use ui_message_stream_chat::{Chat, Recorder, Turn};

/// The conversation so far, including the message that the run is writing.
pub(super) struct Transcript {
    chat: Chat,
    /// The index of the current message in the chat.
    index: usize,
    recorder: Recorder,
    /// Text that the recorder does not hold yet. Deltas are recorded together.
    text: String,
}

impl Transcript {
    /// Creates a transcript of the chat at the start of this turn.
    pub(super) fn new(turn: &Turn) -> Self {
        let mut chat = Chat::clone(&turn.chat);
        let index = chat.messages.iter().rposition(|message| message.id == turn.message_id);
        let recorder = match index {
            Some(index) => Recorder::continuing(chat.messages[index].clone()),
            None => Recorder::new(turn.message_id.clone()),
        };
        let index = index.unwrap_or_else(|| {
            let id = turn.message_id.clone();
            chat.messages.push(UiMessage::new(id, Role::Assistant, Vec::new()));
            chat.messages.len() - 1
        });
        Transcript { chat, index, recorder, text: String::new() }
    }

    /// Applies an event of the run to the current message. A provider's result for a call in an
    /// earlier message is recorded there as well.
    pub(super) fn record(&mut self, event: &AgentEvent) {
        if let AgentEvent::TextDelta { id: None, delta } = event {
            return self.text.push_str(delta);
        }
        self.record_text();
        let forwarded = self.chat.result_of_forwarded_call(event, || Some(self.recorder.message()));
        if let Some(result) = forwarded {
            self.chat.record_result(&result, None);
        }
        self.recorder.handle_event(event);
    }

    fn record_text(&mut self) {
        if !self.text.is_empty() {
            self.recorder.handle_event(&AgentEvent::text(std::mem::take(&mut self.text)));
        }
    }

    /// Returns the message that the run is writing, with all events so far.
    pub(super) fn current_message(&mut self) -> &UiMessage {
        self.record_text();
        self.recorder.message()
    }

    /// Returns the chat, including the current message.
    pub(super) fn chat(&mut self) -> &Chat {
        let message = self.current_message().clone();
        self.chat.messages.replace(self.index, message);
        &self.chat
    }

    /// Returns the chat without the call that is being decided.
    pub(super) fn chat_without_call(&mut self, call: &ToolCallId) -> Chat {
        let mut chat = self.chat().clone();
        let is_call = |part: &Part| {
            part.as_tool().is_some_and(|part| part.tool_call_id == *call && !part.is_settled())
        };
        chat.messages.update(self.index, |message| message.parts.retain(|part| !is_call(part)));
        chat
    }
}

/// Returns the messages that the model reads in this step.
pub(super) fn model_messages(
    chat: &Chat,
    deferred: &DeferredToolResults,
    step: u32,
    tools: &ToolSet,
) -> Vec<ModelMessage> {
    let deferred = match step {
        1 => Cow::Borrowed(deferred),
        _ => Cow::Owned(deferred.after_provider_notified()),
    };
    ToModelMessages::new()
        .with_deferred(&deferred)
        .with_call_outcomes(&chat.call_outcomes)
        .with_unverified(|message, call| chat.is_unverified(message, call))
        .with_outputs(|tool, output| tools.model_output(tool, output))
        .model_messages(&chat.messages)
}
