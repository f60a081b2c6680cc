//! [`PreviousResponse`]: the last stored response that a request can continue from.
//!
//! A request can continue only from a completed response. The id of a completed response is stored
//! with its last part, and an incomplete response has no stored id. The provider knows the
//! conversation up to that part; the request sends what follows.

use std::ops::RangeInclusive;

use super::provider_state::ProviderState;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::model::{AssistantContent, ModelMessage, ToolCallContent, ToolResult};

/// The last stored response that a request can continue from.
pub(super) struct PreviousResponse {
    pub(super) response_id: String,
    /// The index of the message that contains the response.
    message: usize,
    /// The parts of that message that may belong to the response.
    parts: RangeInclusive<usize>,
}

impl PreviousResponse {
    /// Finds the last response that a request can continue from.
    pub(super) fn find(messages: &[ModelMessage]) -> Option<Self> {
        let contents = messages.iter().enumerate().filter_map(|(at, message)| match message {
            ModelMessage::Assistant { content } => Some((at, content)),
            _ => None,
        });
        contents.rev().find_map(|(message, content)| {
            let ids = content.iter().enumerate();
            let ids = ids.filter_map(|(at, content)| Some((at, response_id(content)?)));
            let ids: Vec<(usize, String)> = ids.collect();
            ids.iter().enumerate().rev().find_map(|(number, (last, response_id))| {
                let others = ids.iter().take(number).rev();
                let before = others.clone().find(|(_, other)| other != response_id);
                let first = before.map_or(0, |(at, _)| at + 1);
                let previous = PreviousResponse {
                    response_id: response_id.clone(),
                    message,
                    parts: first..=*last,
                };
                (!previous.has_resolved_approval_request(content)).then_some(previous)
            })
        })
    }

    /// Whether the provider already knows this part of a message.
    pub(super) fn covers(&self, message: usize, part: usize) -> bool {
        message < self.message || message == self.message && part <= *self.parts.end()
    }

    /// Whether this part belongs to the response that the request continues from.
    pub(super) fn is_in_response(&self, message: usize, part: usize) -> bool {
        message == self.message && self.parts.contains(&part)
    }

    /// Whether an approval request of this response has an output, or was approved with an unknown
    /// outcome.
    ///
    /// In both cases another response, which was never completed, contained the outcome. A request
    /// that continues from here would have to answer the approval request, and an approval would
    /// execute the tool again.
    fn has_resolved_approval_request(&self, content: &[AssistantContent]) -> bool {
        let is_resolved = |call: &ToolCallContent| {
            let result = content.iter().find_map(|content| match content {
                AssistantContent::ToolResult(result)
                    if result.tool_call_id == call.tool_call_id =>
                {
                    Some(&result.result)
                }
                _ => None,
            });
            ProviderState::from_metadata(call.provider_metadata.as_ref()).is_approval_request()
                && matches!(result, Some(ToolResult::Output(_) | ToolResult::OutcomeUnknown { .. }))
        };
        content.iter().enumerate().any(|(at, content)| match content {
            AssistantContent::ToolCall(call) => self.parts.contains(&at) && is_resolved(call),
            _ => false,
        })
    }
}

fn response_id(content: &AssistantContent) -> Option<String> {
    ProviderState::from_metadata(metadata(content)).response_id
}

fn metadata(content: &AssistantContent) -> Option<&ProviderMetadata> {
    match content {
        AssistantContent::Text(text) => text.provider_metadata.as_ref(),
        AssistantContent::Reasoning(thought) => thought.provider_metadata.as_ref(),
        AssistantContent::ToolCall(call) => call.provider_metadata.as_ref(),
        AssistantContent::File(_) | AssistantContent::ToolResult(_) => None,
    }
}
