//! Which call or question of a conversation is meant by a name.

use std::fmt::Write as _;

use super::Conversation;
use crate::id::{ApprovalId, ToolCallId};
use crate::message::{ToolPart, ToolState, UiMessage};

impl Conversation<'_> {
    pub(super) fn calls(&self) -> impl Iterator<Item = &ToolPart> {
        self.messages.iter().flat_map(UiMessage::tool_parts)
    }

    /// The id of the question that is meant.
    pub(super) fn question(&self, named: &str) -> ApprovalId {
        let open = self.calls().filter_map(|part| match &part.state {
            ToolState::ApprovalRequested { approval, .. } => Some((part, &approval.id)),
            _ => None,
        });
        let open: Vec<_> = open.collect();
        let exact = open.iter().find(|(_, id)| &***id == named);
        let mut found: Vec<&ApprovalId> = match exact {
            Some((_, id)) => vec![id],
            None => open.iter().filter(|(p, _)| is_named(p, named)).map(|(_, id)| *id).collect(),
        };
        found.dedup();
        match found[..] {
            [id] => id.clone(),
            [] => panic!("nobody asks about {named:?}; {}", self.describe()),
            _ => panic!("more than one question about {named:?}; {}", self.describe()),
        }
    }

    /// The id of the call that is meant: any call by its id, or one without a result by its tool.
    pub(super) fn open_call(&self, named: &str) -> ToolCallId {
        if let Some(call) = self.calls().find(|part| &*part.tool_call_id == named) {
            return call.tool_call_id.clone();
        }
        let open = self.calls().filter(|part| is_named(part, named) && !part.is_settled());
        let mut found: Vec<&ToolCallId> = open.map(|part| &part.tool_call_id).collect();
        found.dedup();
        match found[..] {
            [id] => id.clone(),
            [] => panic!("no call of {named:?} waits for its output; {}", self.describe()),
            _ => panic!("more than one call of {named:?} waits; {}", self.describe()),
        }
    }

    /// How things stand, for a panic.
    pub(super) fn describe(&self) -> String {
        let mut text = match &self.error {
            Some(error) => format!("the last response failed: {error}\ntool calls:\n"),
            None => "tool calls:\n".to_owned(),
        };
        for part in self.calls() {
            let (name, id, state) = (&part.tool_name, &part.tool_call_id, part.state.as_str());
            // Writing to a string does not fail.
            let _ = write!(text, "  {name} ({id}): {state}");
            if let Some(approval) = part.approval_id() {
                let _ = write!(text, " ({approval})");
            }
            text.push('\n');
        }
        text
    }
}

/// Whether a call is meant by its id or the name of its tool.
pub(super) fn is_named(part: &ToolPart, name: &str) -> bool {
    &*part.tool_call_id == name || &*part.tool_name == name
}
