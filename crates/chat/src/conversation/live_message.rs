//! The message of the live run, which is outside of the conversation while chunks are added to it.

use std::sync::Arc;

use super::call_state::{
    error_state, is_approved_provider_call, is_call_of, is_handing_over, no_result_state,
};
use super::recorder::call_outcome;
use super::{Chat, HistoryCompleteness, is_outcome_of, is_outcome_unknown};
use ui_message_stream::UserText;
use ui_message_stream::approval::{DeferredOutcome, DeferredToolResult, PendingToolCall};
use ui_message_stream::id::{MessageId, ToolCallId};
use ui_message_stream::message::{Part, Role, TextState, ToolPart, ToolState, UiMessage};

/// Takes the assistant message with this id out of the conversation. Its place stays.
pub(crate) fn lend_message(chat: &mut Chat, id: &MessageId) -> Option<UiMessage> {
    let place = chat.place_of(id, Role::Assistant)?;
    let empty = UiMessage::new(id.clone(), Role::Assistant, Vec::new());
    let message = chat.messages.replace(place, empty)?;
    Some(Arc::unwrap_or_clone(message))
}

/// Puts a message back, or adds it at the end if the conversation does not have it yet and it is not
/// empty.
pub(crate) fn return_message(chat: &mut Chat, message: UiMessage) {
    match chat.place_of(&message.id, Role::Assistant) {
        Some(place) => {
            chat.messages.replace(place, message);
        }
        None if message.parts.is_empty() => {}
        None => chat.messages.push(message),
    }
}

/// Adds a message without content, if the conversation does not have it.
pub(crate) fn add_message(chat: &mut Chat, id: &MessageId) {
    if chat.place_of(id, Role::Assistant).is_none() {
        chat.messages.push(UiMessage::new(id.clone(), Role::Assistant, Vec::new()));
    }
}

/// Adds a call that the client has to execute.
pub(crate) fn add_client_call(chat: &mut Chat, call: PendingToolCall) {
    if !chat.client_executed.contains(&call) {
        chat.client_executed.push(call);
    }
}

/// Records the outcome of calls of this message that were settled without an execution, or of which
/// it is unknown.
pub(crate) fn add_outcomes(
    chat: &mut Chat,
    id: &MessageId,
    calls: &[ToolCallId],
    outcome: &DeferredOutcome,
) {
    let message = chat.message(id);
    let settled = |call: &&ToolCallId| {
        let mut parts = message.into_iter().flat_map(UiMessage::tool_parts);
        parts.find(|part| part.tool_call_id == **call && part.is_settled())
    };
    let is_known =
        |call: &ToolCallId| chat.call_outcomes.iter().any(|known| is_outcome_of(known, id, call));
    let parts = calls.iter().filter(|call| !is_known(call)).filter_map(|call| settled(&call));
    let new: Vec<_> = parts.map(|part| call_outcome(id, part, outcome.clone())).collect();
    chat.call_outcomes.extend(new);
}

/// Begins this conversation, which is empty, with messages of a client.
pub(crate) fn begin_with_imported(chat: &mut Chat, messages: Vec<UiMessage>) {
    if !messages.is_empty() {
        chat.history = HistoryCompleteness::Imported;
    }
    for message in messages {
        chat.unverified_calls.add(&message);
        chat.messages.push(message);
    }
}

/// Adds a call that waits for an answer to this message, without anything else of the message.
pub(crate) fn add_waiting_call(chat: &mut Chat, id: &MessageId, call: &UiMessage) {
    let lent = lend_message(chat, id);
    let mut message =
        lent.unwrap_or_else(|| UiMessage::new(id.clone(), Role::Assistant, Vec::new()));
    message.parts.extend(call.parts.iter().cloned());
    return_message(chat, message);
}

/// Returns whether this call of a message may get its result: it has none, or the result says that it is
/// unknown whether the call was executed. This outcome is forgotten.
pub(crate) fn forget_unknown(chat: &mut Chat, id: &MessageId, call: &ToolCallId) -> bool {
    let is_unknown = is_outcome_unknown(&chat.call_outcomes, id, call);
    if is_unknown {
        chat.call_outcomes.retain(|known| !is_outcome_of(known, id, call));
    }
    let mut parts = chat.message(id).into_iter().flat_map(UiMessage::tool_parts);
    is_unknown || parts.any(|part| part.tool_call_id == *call && !part.is_settled())
}

/// Makes a call wait for its result again.
pub(crate) fn reopen(message: &mut UiMessage, call: &ToolCallId) {
    for part in &mut message.parts {
        if let Part::Tool(part) = part
            && part.tool_call_id == *call
        {
            part.state = ToolState::InputAvailable { input: part.input().cloned() };
        }
    }
}

/// Gives a call of this message an error as its result.
pub(crate) fn settle_call(chat: &mut Chat, id: &MessageId, call: &ToolCallId) {
    let Some(mut message) = lend_message(chat, id) else { return };
    let parts = message.parts.iter_mut().rev().filter_map(|part| match part {
        Part::Tool(part) if part.tool_call_id == *call => Some(part),
        _ => None,
    });
    for part in parts.take(1) {
        part.state = error_state(part.input().cloned(), None, UserText::NoResult.to_string());
    }
    return_message(chat, message);
}

/// Whether this call of a message has no result, and waits for the user, the client or its provider.
pub(crate) fn is_waiting(chat: &Chat, message: &UiMessage, call: &ToolCallId) -> bool {
    let mut parts = message.tool_parts();
    parts.any(|part| part.tool_call_id == *call && !part.is_settled() && waits(chat, part))
}

/// Ends the texts of this message, and its calls that have no result and wait for none. `is_in_step` is
/// whether the agent was called: it may have gone on with calls that have waited for calls inside them.
pub(crate) fn close_message(chat: &mut Chat, id: &MessageId, is_in_step: bool) {
    let Some(mut message) = lend_message(chat, id) else { return };
    let waiting = waiting_outer_calls(&message, is_in_step);
    for part in &mut message.parts {
        match part {
            Part::Text(text) if text.state == Some(TextState::Streaming) => {
                text.state = Some(TextState::Done);
            }
            Part::Reasoning(text) if text.state == Some(TextState::Streaming) => {
                text.state = Some(TextState::Done);
            }
            Part::Tool(part)
                if !part.is_settled()
                    && !waits(chat, part)
                    && !waiting.contains(&part.tool_call_id) =>
            {
                part.state = no_result_state(part);
            }
            _ => {}
        }
    }
    return_message(chat, message);
}

/// Returns the calls of the message of a run that wait for calls inside them: for their approvals or, before the
/// agent is called, for the step that reads their results.
pub(crate) fn waiting_outer_calls(message: &UiMessage, is_in_step: bool) -> Vec<ToolCallId> {
    let inner = message
        .tool_parts()
        .filter(|part| matches!(part.state, ToolState::ApprovalRequested { .. }) || !is_in_step);
    inner.filter_map(ToolPart::outer_call).collect()
}

/// Whether this call waits for the user, for the client that executes it, or for its provider.
fn waits(chat: &Chat, part: &ToolPart) -> bool {
    let mut of_client = chat.client_executed.iter();
    part.approval_id().is_some() || of_client.any(|call| call.tool_call_id == part.tool_call_id)
}

/// Returns the call of this result, with its message.
pub(crate) fn call_of_result<'c>(
    chat: &'c Chat,
    result: &DeferredToolResult,
) -> Option<(&'c UiMessage, &'c ToolPart)> {
    chat.find_call(result)
}

/// Whether the conversation holds the call of this result, and the result changes it.
pub(crate) fn accepts_result(chat: &Chat, result: &DeferredToolResult) -> bool {
    let Some((message, part)) = chat.find_call(result) else { return false };
    let is_executed = matches!(result.outcome, DeferredOutcome::Executed { .. });
    let is_unknown = || is_outcome_unknown(&chat.call_outcomes, &message.id, &part.tool_call_id);
    let is_granted = matches!(result.outcome, DeferredOutcome::ForwardToProvider { .. })
        && is_approved_provider_call(part);
    let is_handed = is_handing_over(&result.outcome) && chat.is_with_client(result);
    let can_be_recorded = result.is_final
        && (result.approval_id.is_some() || is_call_of(part, result))
        && !matches!(
            result.outcome,
            DeferredOutcome::Approved { .. }
                | DeferredOutcome::Executing { .. }
                | DeferredOutcome::ForwardedToProvider
                | DeferredOutcome::Rejected
                | DeferredOutcome::Forgotten
        );
    can_be_recorded
        && !is_granted
        && !is_handed
        && (!part.is_settled() || is_executed && is_unknown())
}
