//! The lengths of the ids and reasons in a request.

use super::limits::Limits;
use crate::json::FieldError;
use crate::message::{Part, Role, ToolState, UiMessage};

/// Refuses a message with an id or a reason that is too long.
pub(super) fn check_message(message: &UiMessage, limits: &Limits) -> Result<(), FieldError> {
    limits.check_id("id", &message.id)?;
    for (at, part) in message.parts.iter().enumerate() {
        check_part(part, message.role, limits)
            .map_err(|error| error.within(&format!("parts[{at}]")))?;
    }
    Ok(())
}

fn check_part(part: &Part, role: Role, limits: &Limits) -> Result<(), FieldError> {
    match part {
        Part::Tool(part) => {
            limits.check_id("toolCallId", &part.tool_call_id)?;
            if let Some(id) = part.approval_id() {
                limits.check_approval_id("approval.id", id)?;
            }
            match &part.state {
                ToolState::ApprovalResponded { approval, .. } => {
                    limits.check_reason("approval.reason", approval.reason.as_deref())
                }
                _ => Ok(()),
            }
        }
        // The server stores the data of a user, and not those of an assistant.
        Part::Data(part) if role == Role::User => match &part.id {
            Some(id) => limits.check_id("id", id),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}
