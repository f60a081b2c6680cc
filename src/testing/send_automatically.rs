//! The client's two helpers for `sendAutomaticallyWhen`, under the same names.

use crate::message::{Part, Role, TextState, ToolPart, ToolState, UiMessage};

/// Returns whether every call of the last step has an approval response or a result, and at least
/// one has an approval response without a result.
///
/// Decides as the client's helper of this name does. Provider-executed calls count too.
///
/// Wire: [approval](https://ai-sdk.dev/docs/ai-sdk-ui/chatbot-tool-usage#tool-execution-approval)
#[must_use]
pub fn last_assistant_message_is_complete_with_approval_responses(messages: &[UiMessage]) -> bool {
    let calls = || last_step(messages).iter().filter_map(Part::as_tool);
    let is_answered = |call: &ToolPart| matches!(call.state, ToolState::ApprovalResponded { .. });
    calls().any(is_answered) && calls().all(|call| is_answered(call) || call.is_settled())
}

/// Returns whether every call of the last step has an output or an error, and no text after the
/// calls is incomplete.
///
/// Decides as the client's helper of this name does. Provider-executed calls are ignored, and a
/// denied call is not complete.
///
/// Wire: [client-side tools](https://ai-sdk.dev/docs/ai-sdk-ui/chatbot-tool-usage)
#[must_use]
pub fn last_assistant_message_is_complete_with_tool_calls(messages: &[UiMessage]) -> bool {
    let step = last_step(messages);
    let own = |part: &Part| part.as_tool().is_some_and(|call| call.provider_executed != Some(true));
    let Some(last) = step.iter().rposition(own) else {
        return false;
    };
    let is_complete = |call: &ToolPart| {
        call.is_settled() && !matches!(call.state, ToolState::OutputDenied { .. })
    };
    let is_unfinished =
        |part: &Part| matches!(part, Part::Text(text) if text.state != Some(TextState::Done));
    step.iter().filter(|part| own(part)).filter_map(Part::as_tool).all(is_complete)
        && !step.iter().skip(last + 1).any(is_unfinished)
}

/// Returns the parts of the last step of the last message, if that is an assistant message.
fn last_step(messages: &[UiMessage]) -> &[Part] {
    let last = messages.last().filter(|message| message.role == Role::Assistant);
    let parts = last.map_or(&[][..], |message| &message.parts);
    let start = parts.iter().rposition(|part| matches!(part, Part::StepStart { .. }));
    parts.get(start.map_or(0, |at| at + 1)..).unwrap_or_default()
}
