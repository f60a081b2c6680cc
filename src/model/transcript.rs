//! [`Transcript`]: collects model messages in an order that providers accept.

use std::collections::HashMap;

use super::{AssistantContent, ModelMessage, ToolContent, UserContent};
use crate::id::ToolCallId;

/// The model messages collected so far.
///
/// Only complete steps are added, so that a tool call and its result are never separated.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    messages: Vec<ModelMessage>,
    /// The call ids in use, each with the last number that was appended to make a duplicate of the
    /// id unique.
    call_ids: HashMap<ToolCallId, usize>,
}

/// The content that the model produced in one step, and the results of the tool calls in it.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) content: Vec<AssistantContent>,
    pub(super) results: Vec<ToolContent>,
}

impl Transcript {
    /// Adds the content of a user message. Consecutive user messages are merged.
    pub(super) fn push_user(&mut self, mut content: Vec<UserContent>) {
        if content.is_empty() {
            content.push(UserContent::Text(super::TextContent::new(UNREADABLE_USER_MESSAGE)));
        }
        match self.messages.last_mut() {
            Some(ModelMessage::User { content: before }) => before.append(&mut content),
            _ => self.messages.push(ModelMessage::User { content }),
        }
    }

    /// Adds a step. Consecutive assistant messages are merged.
    pub(super) fn push_step(&mut self, step: Step) {
        let Step { mut content, results } = step;
        // Providers reject reasoning that nothing follows, which remains if the model was
        // interrupted.
        while let Some(AssistantContent::Reasoning(_)) = content.last() {
            content.pop();
        }
        if content.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            // This message has no tool calls, because a tool message would follow it otherwise.
            Some(ModelMessage::Assistant { content: before }) => before.append(&mut content),
            before => {
                if before.is_none() {
                    self.messages.push(ModelMessage::user(CONVERSATION_START));
                }
                self.messages.push(ModelMessage::assistant(content));
            }
        }
        if !results.is_empty() {
            self.messages.push(ModelMessage::tool(results));
        }
    }

    /// Returns the id of a call, or a new id if an earlier call already has it.
    pub(super) fn unique_id(&mut self, id: &ToolCallId) -> ToolCallId {
        let wanted = if id.is_empty() { ToolCallId::new("call") } else { id.clone() };
        let Some(&last) = self.call_ids.get(&wanted) else {
            self.call_ids.insert(wanted.clone(), 1);
            return wanted;
        };
        let mut number = last + 1;
        let mut other = ToolCallId::from(format!("{wanted}_{number}"));
        while self.call_ids.contains_key(&other) {
            number += 1;
            other = ToolCallId::from(format!("{wanted}_{number}"));
        }
        self.call_ids.insert(wanted, number);
        self.call_ids.insert(other.clone(), 1);
        other
    }

    pub(super) fn into_messages(self) -> Vec<ModelMessage> {
        self.messages
    }
}

/// The user message that precedes an assistant message at the beginning. Providers require that the
/// user speaks first.
const CONVERSATION_START: &str = "(The conversation begins here.)";

/// The text that replaces a user message without any content that a model can read.
const UNREADABLE_USER_MESSAGE: &str = "(Nothing of this message can be shown.)";
