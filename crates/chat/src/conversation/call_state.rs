//! The state of a tool call in a message: which part is a call, and the state of the part after an
//! outcome.

use serde::Deserialize;
use ui_message_stream::UserText;
use ui_message_stream::approval::{
    APPROVAL_DATA_NAME, ApprovalStatus, DeferredOutcome, DeferredToolResult, PendingToolCall,
    ToolOutcome,
};
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::message::{
    Part, RequestedApproval, SettledApproval, ToolKind, ToolPart, ToolState, UiMessage,
};

/// Whether the user approved a provider-executed call and the call has no result yet.
pub(super) fn is_approved_provider_call(part: &ToolPart) -> bool {
    let is_approved =
        matches!(&part.state, ToolState::ApprovalResponded { approval, .. } if approval.approved);
    is_approved && part.provider_executed == Some(true)
}

/// Returns what the data beside this call of a message says of its approval request.
pub(crate) fn approval_status(message: &UiMessage, call: &ToolPart) -> Option<ApprovalStatus> {
    #[derive(Deserialize)]
    struct Asked {
        state: ApprovalStatus,
    }
    let data = message.parts.iter().rev().find_map(|part| match part {
        Part::Data(data)
            if &*data.name == APPROVAL_DATA_NAME
                && data.id.as_deref() == Some(&*call.tool_call_id) =>
        {
            data.data.as_ref()
        }
        _ => None,
    });
    Some(data?.decode::<Asked>().ok()?.state)
}

/// Whether an approved call goes to the client that executes it.
pub(super) fn is_handing_over(outcome: &DeferredOutcome) -> bool {
    matches!(outcome, DeferredOutcome::Executed { outcome: ToolOutcome::HandedToClient(_) })
}

/// Whether this is the call of the result.
///
/// The output of a client belongs to a call of the same tool without an approval request, because
/// the ids of calls may recur.
pub(super) fn is_call_of(part: &ToolPart, result: &DeferredToolResult) -> bool {
    let has_id = is_call(part, result.approval_id.as_ref(), &result.tool_call_id);
    let is_client_output = matches!(
        result.outcome,
        DeferredOutcome::Output { .. } | DeferredOutcome::OutputError { .. }
    );
    let is_of_client = || part.approval_id().is_none() && part.tool_name == result.tool_name;
    has_id && (!is_client_output || is_of_client())
}

/// Whether this is the call that the client has to execute.
pub(super) fn is_client_call(part: &ToolPart, call: &PendingToolCall) -> bool {
    part.tool_call_id == call.tool_call_id
        && part.tool_name == call.tool_name
        && part.approval_id().is_none()
}

/// Whether this is the call with this approval id or, if there is none, with this tool call id.
///
/// Several calls may have the same tool call id.
pub(super) fn is_call(part: &ToolPart, approval_id: Option<&ApprovalId>, id: &ToolCallId) -> bool {
    match approval_id {
        Some(approval_id) => part.approval_id() == Some(approval_id),
        None => part.tool_call_id == *id,
    }
}

/// Returns the state of a call after this result, with the input that its approver changed. Returns
/// `None` if the outcome does not change the state.
pub(super) fn state_of_result(part: &ToolPart, result: &DeferredToolResult) -> Option<ToolState> {
    let outcome = &result.outcome;
    let changed = result.changed_input.as_ref().filter(|_| outcome.matches_decision(true));
    let input = changed.map(|input| input.changed.clone()).or_else(|| part.input().cloned());
    let approved = || match &part.state {
        ToolState::OutputError { approval, .. } => approval.clone(),
        _ => open_approval(part).map(|approval| Box::new(approval.settle(true, None))),
    };
    Some(match outcome {
        DeferredOutcome::Denied { reason }
        | DeferredOutcome::ForwardToProvider { approved: false, reason, .. } => {
            denied_state(input, open_approval(part)?, reason.clone())
        }
        DeferredOutcome::ForwardToProvider { approved: true, reason, .. } => {
            let approval = Box::new(open_approval(part)?.respond(true, reason.clone()));
            ToolState::ApprovalResponded { input, approval }
        }
        DeferredOutcome::Executed { outcome: ToolOutcome::Output(output) } => {
            output_state(input, approved(), output.clone())
        }
        DeferredOutcome::Executed { outcome: ToolOutcome::Failed(error) } => {
            error_state(input, approved(), error.clone())
        }
        // Without the approval, as every call of the client: validators refuse an input with an answered
        // approval and without an output. The `data-approval` part keeps the decision.
        DeferredOutcome::Executed { outcome: ToolOutcome::HandedToClient(input) } => {
            ToolState::InputAvailable { input: Some(input.clone()) }
        }
        DeferredOutcome::OutcomeUnknown => {
            error_state(input, approved(), UserText::OutcomeUnknown.to_string())
        }
        DeferredOutcome::Output { output } => output_state(input, None, output.clone()),
        DeferredOutcome::OutputError { error_text } => error_state(input, None, error_text.clone()),
        // The approval is omitted: validators reject an error with an approval request that has no
        // response.
        DeferredOutcome::Superseded => not_executed_state(part, UserText::Superseded.text())
            // The call was to be executed by the client.
            .unwrap_or_else(|| error_state(input, None, UserText::Superseded.to_string())),
        DeferredOutcome::Lapsed if part.provider_executed == Some(true) => {
            not_executed_state(part, UserText::Lapsed.text())?
        }
        DeferredOutcome::Lapsed => error_state(input, approved(), UserText::Lapsed.to_string()),
        DeferredOutcome::Expired => error_state(input, None, UserText::Expired.to_string()),
        DeferredOutcome::Revoked => error_state(input, None, UserText::Revoked.to_string()),
        DeferredOutcome::Approved { .. }
        | DeferredOutcome::Executing { .. }
        | DeferredOutcome::ForwardedToProvider
        | DeferredOutcome::Rejected
        | DeferredOutcome::Forgotten
        | _ => return None,
    })
}

/// Returns the state of a call that was not executed because the user sent another message.
///
/// A provider that requested the approval must get a response, so its call keeps the approval and
/// has been denied. The user did not deny any other call.
fn not_executed_state(part: &ToolPart, text: &str) -> Option<ToolState> {
    let input = part.input().cloned();
    let approval = open_approval(part)?;
    Some(match part.provider_executed {
        Some(true) => denied_state(input, approval, Some(text.to_owned())),
        _ => error_state(input, None, text.to_owned()),
    })
}

/// Returns the approval request of a call that has no result.
fn open_approval(part: &ToolPart) -> Option<RequestedApproval> {
    match &part.state {
        ToolState::ApprovalRequested { approval, .. } => Some((**approval).clone()),
        ToolState::ApprovalResponded { approval, .. } => Some(approval.request()),
        _ => None,
    }
}

fn denied_state(
    input: Option<Json>,
    approval: RequestedApproval,
    reason: Option<String>,
) -> ToolState {
    ToolState::OutputDenied { input, approval: Some(Box::new(approval.settle(false, reason))) }
}

/// Returns the state of a call whose run has ended without its result, as clients of `ai@6` read it from the
/// translator.
pub(super) fn no_result_state(part: &ToolPart) -> ToolState {
    let ToolState::InputStreaming { raw_input, .. } = &part.state else {
        return error_state(part.input().cloned(), None, UserText::NoResult.to_string());
    };
    let text = Some(Json::string(raw_input.as_deref().unwrap_or_default()));
    let (input, raw_input) = match part.kind {
        ToolKind::Static => (None, text),
        _ => (text, None),
    };
    ToolState::OutputError {
        input,
        raw_input,
        error_text: UserText::InputCutOff.to_string(),
        approval: None,
        result_provider_metadata: None,
    }
}

pub(super) fn output_state(
    input: Option<Json>,
    approval: Option<Box<SettledApproval>>,
    output: Json,
) -> ToolState {
    ToolState::OutputAvailable {
        input,
        output: Some(output),
        preliminary: None,
        approval,
        result_provider_metadata: None,
    }
}

pub(super) fn error_state(
    input: Option<Json>,
    approval: Option<Box<SettledApproval>>,
    error_text: String,
) -> ToolState {
    ToolState::OutputError {
        input,
        raw_input: None,
        error_text,
        approval,
        result_provider_metadata: None,
    }
}
