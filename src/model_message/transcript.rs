//! [`Transcript`]: model messages one after the other, so that a provider takes them.

use std::collections::HashMap;

use super::{AssistantContent, ModelMessage, ToolContent, UserContent};
use crate::id::ToolCallId;

/// Model messages one after the other.
///
/// Only whole steps go in, so that a call and its result cannot come apart.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    messages: Vec<ModelMessage>,
    /// The ids that are taken, and the number that was given last to another call of the same id.
    call_ids: HashMap<ToolCallId, usize>,
}

/// What the model said and called in one step, and what became of the calls.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) said: Vec<AssistantContent>,
    pub(super) results: Vec<ToolContent>,
}

impl Transcript {
    /// Adds what a person said.
    pub(super) fn push_user(&mut self, mut content: Vec<UserContent>) {
        if content.is_empty() {
            content.push(UserContent::Text(super::TextContent::new(NOTHING_TO_SHOW)));
        }
        match self.messages.last_mut() {
            Some(ModelMessage::User { content: before }) => before.append(&mut content),
            _ => self.messages.push(ModelMessage::User { content }),
        }
    }

    /// Adds a step.
    pub(super) fn push_step(&mut self, step: Step) {
        let Step { mut said, results } = step;
        // A provider refuses thoughts that nothing came of: the model was stopped over them.
        while let Some(AssistantContent::Reasoning(_)) = said.last() {
            said.pop();
        }
        if said.is_empty() {
            return;
        }
        match self.messages.last_mut() {
            // If it called there would be a tool message behind it.
            Some(ModelMessage::Assistant { content: before }) => before.append(&mut said),
            before => {
                if before.is_none() {
                    self.messages.push(ModelMessage::user(BEGINS_HERE));
                }
                self.messages.push(ModelMessage::assistant(said));
            }
        }
        if !results.is_empty() {
            self.messages.push(ModelMessage::tool(results));
        }
    }

    /// The id of a call, or another one if an earlier call has it.
    pub(super) fn unique(&mut self, id: &ToolCallId) -> ToolCallId {
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

/// Stands before an assistant that speaks first: a provider wants the person to.
const BEGINS_HERE: &str = "(The conversation begins here.)";

/// Stands for a message of which a model can read nothing.
const NOTHING_TO_SHOW: &str = "(Nothing of this message can be shown.)";
