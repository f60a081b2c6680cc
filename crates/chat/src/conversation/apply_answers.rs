//! Applies answers that name their calls and approvals by id to the last message, as a browser
//! would.

use super::ClientAnswers;
use super::call_state::{error_state, is_client_call, output_state};
use super::client_answers::output_path;
use ui_message_stream::approval::{
    ApprovalDecision, ClientToolResult, PendingToolCall, UnverifiedToolOutput,
};
use ui_message_stream::json::FieldError;
use ui_message_stream::message::{Part, ToolPart, ToolState, UiMessage};

/// Applies the answers to the last message, and removes what the client has not seen of it.
///
/// # Errors
/// As [`Chat::request_from_answers`](super::Chat::request_from_answers).
pub(super) fn apply_answers(
    mut message: Option<UiMessage>,
    client_executed: &[PendingToolCall],
    answers: &ClientAnswers,
) -> Result<UiMessage, FieldError> {
    let parts = message.as_mut().map_or(&mut [][..], |message| &mut message.parts);
    let mut answered_places = Vec::new();
    for (at, output) in answers.tool_outputs.iter().enumerate() {
        let place = apply_output(output, client_executed, parts).ok_or_else(|| {
            FieldError::new("toolCallId", NOT_A_CLIENT_CALL).within(&output_path(at))
        })?;
        answered_places.push(place);
    }
    let decided = answers.decisions.iter();
    answered_places.extend(decided.filter_map(|decision| apply_decision(decision, parts)));
    match (message, answered_places.into_iter().max()) {
        (Some(mut message), Some(place)) => {
            truncate_after_step_of(&mut message, place);
            Ok(message)
        }
        _ => Err(FieldError::new("decisions", NOTHING_ANSWERED)),
    }
}

/// Sets the result of the call that the output names. Returns the index of its part. Returns
/// `None` if there is no such call, or if the client does not have to execute it.
///
/// A call that has a result keeps it.
fn apply_output(
    output: &UnverifiedToolOutput,
    client_executed: &[PendingToolCall],
    parts: &mut [Part],
) -> Option<usize> {
    let id = &output.tool_call_id;
    let (place, part) = find(parts, |part| part.tool_call_id == *id)?;
    if !part.is_settled() {
        client_executed.iter().find(|call| is_client_call(part, call))?;
        let input = part.input().cloned();
        part.state = match &output.result {
            ClientToolResult::Output(output) => output_state(input, None, output.clone()),
            ClientToolResult::ErrorText(text) => error_state(input, None, text.clone()),
        };
    }
    Some(place)
}

/// Sets the approval response of the call whose approval request the decision names, if the call
/// still waits for it. Returns the index of its part, or `None` if there is no such approval
/// request.
fn apply_decision(decision: &ApprovalDecision, parts: &mut [Part]) -> Option<usize> {
    let (place, part) = find(parts, |part| part.approval_id() == Some(&decision.approval_id))?;
    if let ToolState::ApprovalRequested { approval, .. } = &part.state {
        let request = (**approval).clone();
        let input = part.input().cloned();
        let approval = Box::new(request.respond(decision.approved, decision.reason.clone()));
        part.state = ToolState::ApprovalResponded { input, approval };
    }
    Some(place)
}

/// Returns the last tool part that matches, and its index.
fn find(
    parts: &mut [Part],
    is_match: impl Fn(&ToolPart) -> bool,
) -> Option<(usize, &mut ToolPart)> {
    let tools = parts.iter_mut().enumerate().filter_map(|(place, part)| match part {
        Part::Tool(part) => Some((place, &mut **part)),
        _ => None,
    });
    tools.filter(|(_, part)| is_match(part)).last()
}

/// Removes the parts after the step of this part.
///
/// The client that answers has not seen later steps. If an earlier request already brought the same
/// answers, the response has to send these steps to the client.
fn truncate_after_step_of(message: &mut UiMessage, place: usize) {
    let mut after = message.parts.iter().skip(place);
    if let Some(steps) = after.position(|part| matches!(part, Part::StepStart { .. })) {
        message.parts.truncate(place + steps);
    }
}

const NOT_A_CLIENT_CALL: &str = "names no call of the last message that the client is to run";

const NOTHING_ANSWERED: &str = "answers nothing that the last message asks";
