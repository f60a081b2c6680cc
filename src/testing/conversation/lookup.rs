//! Finds the tool call or approval request that a test names.

use std::fmt::Write as _;

use crate::id::{ApprovalId, ToolCallId};
use crate::message::{ToolPart, ToolState, UiMessage};

/// The state of a conversation in which a call is found.
#[derive(Clone, Copy)]
pub(super) struct Page<'p> {
    pub(super) messages: &'p [UiMessage],
    /// The error of the last response.
    pub(super) error: Option<&'p str>,
}

impl<'p> Page<'p> {
    fn calls(self) -> impl Iterator<Item = &'p ToolPart> {
        self.messages.iter().flat_map(UiMessage::tool_parts)
    }

    /// Returns the id of the approval request that `name` fits.
    pub(super) fn open_approval(self, name: &str) -> ApprovalId {
        let open = self.calls().filter_map(|part| match &part.state {
            ToolState::ApprovalRequested { approval, .. } => Some((part, &approval.id)),
            _ => None,
        });
        let open: Vec<_> = open.collect();
        let exact = open.iter().find(|(_, id)| &***id == name);
        let mut found: Vec<&ApprovalId> = match exact {
            Some((_, id)) => vec![id],
            None => open.iter().filter(|(p, _)| matches_name(p, name)).map(|(_, id)| *id).collect(),
        };
        found.dedup();
        match found[..] {
            [id] => id.clone(),
            [] => panic!("nobody asks about {name:?}; {}", self.describe()),
            _ => panic!("more than one question about {name:?}; {}", self.describe()),
        }
    }

    /// Returns the id of the call that `name` fits: any call by its id, or a call without a result
    /// by the name of its tool.
    pub(super) fn open_call(self, name: &str) -> ToolCallId {
        if let Some(call) = self.calls().find(|part| &*part.tool_call_id == name) {
            return call.tool_call_id.clone();
        }
        let open = self.calls().filter(|part| matches_name(part, name) && !part.is_settled());
        let mut found: Vec<&ToolCallId> = open.map(|part| &part.tool_call_id).collect();
        found.dedup();
        match found[..] {
            [id] => id.clone(),
            [] => panic!("no call of {name:?} waits for its output; {}", self.describe()),
            _ => panic!("more than one call of {name:?} waits; {}", self.describe()),
        }
    }

    /// Returns the last call with this id or with this tool name.
    pub(super) fn last_call(self, name: &str) -> &'p ToolPart {
        let found = self.calls().filter(|part| matches_name(part, name)).last();
        found.unwrap_or_else(|| panic!("no tool call {name:?}; {}", self.describe()))
    }

    /// Describes the state of the conversation for a panic message.
    pub(super) fn describe(self) -> String {
        let mut text = match self.error {
            Some(error) => format!("the last response failed: {error}\ntool calls:\n"),
            None => "tool calls:\n".to_owned(),
        };
        for part in self.calls() {
            let tool_name = &part.tool_name;
            let id = &part.tool_call_id;
            let state = part.state.as_str();
            // Writing to a string does not fail.
            let _ = write!(text, "  {tool_name} ({id}): {state}");
            if let Some(approval) = part.approval_id() {
                let _ = write!(text, " ({approval})");
            }
            text.push('\n');
        }
        text
    }
}

/// Returns whether `name` is the id of the call or the name of its tool.
fn matches_name(part: &ToolPart, name: &str) -> bool {
    &*part.tool_call_id == name || &*part.tool_name == name
}
