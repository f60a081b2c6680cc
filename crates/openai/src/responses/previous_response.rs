//! [`Known`]: how far the provider knows the conversation, where it stores its responses.
//!
//! A response is gone on from if it ended: its id is with its last piece, and with none if it did
//! not. What stands before that piece is known, and what follows is news.

use std::ops::RangeInclusive;

use super::provider_state::Kept;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::model_message::{
    AssistantContent, ModelMessage, ToolCallContent, ToolResult,
};

/// How far the provider knows the conversation.
pub(super) struct Known {
    pub(super) response_id: String,
    /// The message of the last response that it knows.
    message: usize,
    /// The pieces of that message that may be of that response.
    pieces: RangeInclusive<usize>,
}

impl Known {
    /// Up to the last response that can be gone on from.
    pub(super) fn of(messages: &[ModelMessage]) -> Option<Self> {
        let contents = messages.iter().enumerate().filter_map(|(at, message)| match message {
            ModelMessage::Assistant { content } => Some((at, content)),
            _ => None,
        });
        contents.rev().find_map(|(message, content)| {
            let ids = content.iter().enumerate();
            let ids = ids.filter_map(|(at, said)| Some((at, response_id(said)?)));
            let ids: Vec<(usize, String)> = ids.collect();
            ids.iter().enumerate().rev().find_map(|(number, (last, response_id))| {
                let others = ids.iter().take(number).rev();
                let before = others.clone().find(|(_, other)| other != response_id);
                let first = before.map_or(0, |(at, _)| at + 1);
                let known =
                    Known { response_id: response_id.clone(), message, pieces: first..=*last };
                (!known.asked_what_was_answered(content)).then_some(known)
            })
        })
    }

    /// Whether the provider knows this piece of a message.
    pub(super) fn covers(&self, message: usize, piece: usize) -> bool {
        message < self.message || message == self.message && piece <= *self.pieces.end()
    }

    /// Whether the last response that the provider knows said this.
    pub(super) fn is_said_last(&self, message: usize, piece: usize) -> bool {
        message == self.message && self.pieces.contains(&piece)
    }

    /// Whether a question of this response has an output, or was told yes and nobody knows what came
    /// of it: that was in another response, which never ended. To go on from here is to answer the question, and a yes would run it again.
    fn asked_what_was_answered(&self, content: &[AssistantContent]) -> bool {
        let asked = |call: &ToolCallContent| {
            let result = content.iter().find_map(|content| match content {
                AssistantContent::ToolResult(result)
                    if result.tool_call_id == call.tool_call_id =>
                {
                    Some(&result.result)
                }
                _ => None,
            });
            Kept::of(call.provider_metadata.as_ref()).is_question()
                && matches!(result, Some(ToolResult::Output(_) | ToolResult::Unknown { .. }))
        };
        content.iter().enumerate().any(|(at, content)| match content {
            AssistantContent::ToolCall(call) => self.pieces.contains(&at) && asked(call),
            _ => false,
        })
    }
}

fn response_id(content: &AssistantContent) -> Option<String> {
    Kept::of(metadata(content)).response_id
}

fn metadata(content: &AssistantContent) -> Option<&ProviderMetadata> {
    match content {
        AssistantContent::Text(text) => text.provider_metadata.as_ref(),
        AssistantContent::Reasoning(thought) => thought.provider_metadata.as_ref(),
        AssistantContent::ToolCall(call) => call.provider_metadata.as_ref(),
        AssistantContent::File(_) | AssistantContent::ToolResult(_) => None,
    }
}
