//! What a client shows of a message.

use super::approval::SettledApproval;
use super::part::Part;
use super::tool_part::ToolState;
use crate::UserText;
use crate::chunk::Version;

/// Returns the parts as a client of this version holds them, if they differ.
pub(super) fn parts_for(version: Version, parts: &[Part]) -> Option<Vec<Part>> {
    if version.is_v7() || !parts.iter().any(is_for_v7) {
        return None;
    }
    let is_shown = |part: &&Part| !matches!(part, Part::Custom(_) | Part::ReasoningFile(_));
    let mut shown: Vec<Part> = parts.iter().filter(is_shown).cloned().collect();
    for part in &mut shown {
        if let Part::Tool(part) = part {
            part.state.remove_refusal();
        }
    }
    Some(shown)
}

/// Whether only clients of `ai@7` show the whole part.
fn is_for_v7(part: &Part) -> bool {
    match part {
        Part::Custom(_) | Part::ReasoningFile(_) => true,
        Part::Tool(part) => part.state.approval_details().is_some_and(|details| {
            details.request_reason.is_some() || details.is_automatic.is_some()
        }),
        _ => false,
    }
}

impl ToolState {
    fn remove_refusal(&mut self) {
        if let ToolState::OutputDenied { input, approval: Some(approval) } = self
            && approval.is_automatic()
        {
            let SettledApproval { reason, .. } = &mut **approval;
            *self = ToolState::OutputError {
                input: input.take(),
                raw_input: None,
                error_text: reason.take().unwrap_or_else(|| UserText::Refused.to_string()),
                approval: None,
                result_provider_metadata: None,
            };
        }
        if let Some(details) = self.approval_details_mut() {
            (details.request_reason, details.is_automatic) = (None, None);
        }
    }
}
