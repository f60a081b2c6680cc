//! Converts one tool part: the call, and its result or approval response.

use super::call_updates::CallUpdate;
use super::content::{ToolCallContent, object_with};
use super::{NotExecutedReason, ToolResult};
use crate::approval::{DeferredOutcome, DeferredToolResult};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::{SettledApproval, ToolKind, ToolPart, ToolState};
use crate::metadata::ProviderMetadata;

/// What the model messages contain for a call besides the call itself.
pub(super) enum CallContent {
    /// The result of the call.
    Result(ToolResult),
    /// The response to the provider, which waits for it.
    ApprovalResponse { approval_id: ApprovalId, approved: bool, reason: Option<String> },
}

impl CallContent {
    /// Converts the part, or returns `None` if the model messages do not contain the call.
    ///
    /// An input that was still streaming is not a call: the partial input may read as a different
    /// input, and nothing was executed with it. The meaning of a state of a later version is not
    /// guessed. `outcome` is the recorded outcome of a call with an error result.
    pub(super) fn new(
        part: &ToolPart,
        outcome: Option<&DeferredOutcome>,
        update: Option<CallUpdate<'_>>,
        has_later_user_message: bool,
    ) -> Option<Self> {
        if matches!(part.state, ToolState::InputStreaming { .. } | ToolState::Unknown { .. }) {
            return None;
        }
        if part.provider_executed == Some(true)
            && let Some(response) = approval_response(part, update, has_later_user_message)
        {
            return Some(response);
        }
        let result = result_from_update(update)
            .or_else(|| result_in_part(part, outcome))
            .unwrap_or_else(|| match &part.state {
                ToolState::ApprovalRequested { .. } => {
                    unanswered_reason(update, has_later_user_message).into()
                }
                ToolState::InputAvailable { .. } if matches!(update, Some(CallUpdate::Pending)) => {
                    NotExecutedReason::AwaitsClient.into()
                }
                ToolState::OutputAvailable { output, .. } => {
                    ToolResult::OutcomeUnknown { so_far: output.clone() }
                }
                _ => ToolResult::OutcomeUnknown { so_far: None },
            });
        Some(CallContent::Result(result))
    }
}

/// Returns the id that the model gave to the call.
pub(super) fn model_id(part: &ToolPart) -> ToolCallId {
    let model_id = part.call_provider_metadata.as_ref().and_then(ProviderMetadata::model_id);
    model_id.unwrap_or_else(|| part.tool_call_id.clone())
}

/// Returns the call of a part.
pub(super) fn call(part: &ToolPart, tool_call_id: ToolCallId) -> ToolCallContent {
    let fallback = match &part.state {
        ToolState::OutputError { raw_input, result_provider_metadata, .. } => {
            (raw_input.as_ref(), result_provider_metadata.as_ref())
        }
        _ => (None, None),
    };
    let input = part.input().filter(|input| !input.is_null() || fallback.0.is_none());
    ToolCallContent {
        tool_call_id,
        tool_name: sanitize_tool_name(&part.tool_name),
        input: input.or(fallback.0).cloned().unwrap_or_else(|| object_with("")),
        provider_executed: part.provider_executed == Some(true),
        provider_metadata: part.call_provider_metadata.as_ref().or(fallback.1).cloned(),
    }
}

/// Returns the provider metadata that is sent back with the result.
pub(super) fn result_metadata(part: &ToolPart) -> Option<ProviderMetadata> {
    let own = match &part.state {
        ToolState::OutputAvailable { result_provider_metadata, .. }
        | ToolState::OutputError { result_provider_metadata, .. } => {
            // If the provider did not execute the tool, it knows only the call.
            result_provider_metadata.as_ref().filter(|_| part.provider_executed == Some(true))
        }
        _ => None,
    };
    own.or(part.call_provider_metadata.as_ref()).cloned()
}

/// Returns the response to a provider that requested approval of a call it executes, while the call
/// has no result. Returns `None` if the provider already received an approval in an earlier turn.
fn approval_response(
    part: &ToolPart,
    update: Option<CallUpdate<'_>>,
    has_later_user_message: bool,
) -> Option<CallContent> {
    if let Some(CallUpdate::Result(result)) = update
        && matches!(
            result.outcome,
            DeferredOutcome::ForwardedToProvider | DeferredOutcome::OutcomeUnknown
        )
    {
        return None;
    }
    let (approval_id, denied, unanswered) = match &part.state {
        ToolState::ApprovalRequested { approval, .. } => {
            (&approval.id, None, unanswered_reason(update, has_later_user_message))
        }
        ToolState::ApprovalResponded { approval, .. } => {
            let denied = (!approval.approved).then(|| approval.reason.clone());
            (&approval.id, denied, NotExecutedReason::Rejected)
        }
        ToolState::OutputDenied { approval: Some(approval), .. } => {
            let denied = is_denied_by_user(approval).then(|| approval.reason.clone());
            (&approval.id, denied, NotExecutedReason::Rejected)
        }
        _ => return None,
    };
    let (approved, reason) = match update {
        // Forwarded once: only an approval that was verified and redeemed in this turn.
        Some(CallUpdate::Result(DeferredToolResult {
            outcome: DeferredOutcome::ForwardToProvider { approved: true, reason, .. },
            approval_id: Some(redeemed),
            is_final: true,
            ..
        })) if redeemed == approval_id => (true, reason.clone()),
        _ => (false, denial_reason(result_from_update(update), denied, unanswered)),
    };
    Some(CallContent::ApprovalResponse { approval_id: approval_id.clone(), approved, reason })
}

/// Returns the reason of a denial that is sent to the provider.
fn denial_reason(
    update: Option<ToolResult>,
    denied: Option<Option<String>>,
    unanswered: NotExecutedReason,
) -> Option<String> {
    match (update, denied) {
        (Some(ToolResult::Denied { reason }), _) => reason,
        (Some(ToolResult::NotExecuted { why }), _) => Some(why.to_string()),
        (_, Some(reason)) => reason,
        (_, None) => Some(unanswered.to_string()),
    }
}

/// Returns the reason of an approval request without a response: it still waits, or the user sent
/// another message.
fn unanswered_reason(
    update: Option<CallUpdate<'_>>,
    has_later_user_message: bool,
) -> NotExecutedReason {
    match update {
        Some(CallUpdate::Pending) => NotExecutedReason::AwaitsApproval,
        _ if has_later_user_message => NotExecutedReason::Unanswered,
        _ => NotExecutedReason::AwaitsApproval,
    }
}

fn result_from_update(update: Option<CallUpdate<'_>>) -> Option<ToolResult> {
    match update? {
        CallUpdate::Result(result) => Some(ToolResult::from(&result.outcome)),
        CallUpdate::Pending => None,
        CallUpdate::Superseded => Some(NotExecutedReason::Unanswered.into()),
    }
}

/// Returns the result that the part itself contains.
fn result_in_part(part: &ToolPart, outcome: Option<&DeferredOutcome>) -> Option<ToolResult> {
    Some(match &part.state {
        ToolState::OutputAvailable { .. } if !part.is_settled() => return None,
        ToolState::OutputAvailable { .. } if part.kind == ToolKind::Unregistered => {
            ToolResult::Output(Json::string(UNREGISTERED_TOOL_OUTPUT))
        }
        ToolState::OutputAvailable { output, .. } => {
            ToolResult::Output(output.clone().unwrap_or_else(Json::null))
        }
        ToolState::OutputError { error_text, .. } => {
            outcome.map_or_else(|| ToolResult::Error(error_text.clone()), ToolResult::from)
        }
        ToolState::OutputDenied { approval: Some(approval), .. } if is_denied_by_user(approval) => {
            ToolResult::Denied { reason: approval.reason.clone() }
        }
        ToolState::OutputDenied { approval, .. } => {
            let refusal = approval.as_ref().filter(|approval| approval.is_automatic());
            match refusal.and_then(|refusal| refusal.reason.clone()) {
                Some(reason) => ToolResult::Error(reason),
                None => NotExecutedReason::Rejected.into(),
            }
        }
        ToolState::ApprovalResponded { approval, .. } if !approval.approved => {
            ToolResult::Denied { reason: approval.reason.clone() }
        }
        _ => return None,
    })
}

/// Whether the user denied the call. A part in the state `output-denied` whose approval was granted,
/// has no decision or was decided by a policy was refused by a server.
fn is_denied_by_user(approval: &SettledApproval) -> bool {
    approval.approved == Some(false) && !approval.is_automatic()
}

/// Replaces each character of a tool's name that providers do not accept with `_`, and truncates
/// the name to 64 characters. A model may call a tool that does not exist, by any name.
///
/// OpenAI and Anthropic accept ASCII letters, digits, `_` and `-`.
///
/// ```
/// use ui_message_stream::model::sanitize_tool_name;
///
/// assert_eq!(&*sanitize_tool_name("files.read"), "files_read");
/// assert_eq!(&*sanitize_tool_name(""), "unnamed");
/// ```
pub fn sanitize_tool_name(name: &str) -> Box<str> {
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() {
        return UNNAMED_TOOL.into();
    }
    let accepted = name.chars().map(|c| if is_accepted(c) { c } else { '_' });
    accepted.take(MAX_NAME_CHARS).collect::<String>().into()
}

/// The text that replaces the output of a tool that is no longer registered. The server cannot
/// verify such an output, and the client could have invented it.
const UNREGISTERED_TOOL_OUTPUT: &str = "The output is left out: this tool is no longer available.";

/// The name of a call without a name.
const UNNAMED_TOOL: &str = "unnamed";

/// The maximum length of a tool name in characters, as OpenAI and Anthropic define it.
const MAX_NAME_CHARS: usize = 64;
