//! What a client's history says about its tool calls: approval requests, approval responses and
//! results. None of it is verified.
//!
//! # What a client says has no accessor for an input
//!
//! An adapter that reads the history finds a tool part with an approval and an input, and the shortest program
//! executes the input. So the types of what a client says (`UnverifiedApprovalResponse` and its siblings) have no
//! such accessor, and the input is on the claim. The history serializes as before, because tools that only show it
//! need it.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

#[cfg(feature = "approvals")]
use super::{ChangedInput, canonical_json::is_same_value};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::Json;
use crate::message::{
    Part, RequestedApproval, RespondedApproval, Role, ToolPart, ToolState, UiMessage,
};

/// An approval request without a response, as the client's history holds it. Nothing of it is
/// verified.
///
/// It has no accessor for the input: a tool may only be executed with the input of the server's own
/// record.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UnverifiedApprovalRequest {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The tool input, as the client holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<Json>,
    /// Whether the provider executes the tool.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub provider_executed: bool,
}

/// A user's response to an approval request, as the client's history holds it. Nothing of it is
/// verified: a client can write a response to a request that the server never made.
///
/// It has no accessor for the input: a tool may only be executed with the input of the server's own
/// record. `Approvals::redeem` returns the calls to execute.
///
/// ```compile_fail,E0616
/// use ui_message_stream::approval::ResumePlan;
///
/// fn inputs(plan: &ResumePlan) {
///     for response in plan.unverified_responses() {
///         println!("{:?}", response.input);
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UnverifiedApprovalResponse {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The tool input, as the client holds it. It is only compared with the input of the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<Json>,
    /// Whether the user approved the call (`true`) or denied it (`false`).
    pub approved: bool,
    /// The input that the user sent in place of the one of the record.
    #[serde(skip)]
    pub(super) changed_input: Option<Json>,
    /// The reason that the user gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the provider executes the tool.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub provider_executed: bool,
}

#[cfg(feature = "approvals")]
impl UnverifiedApprovalResponse {
    /// Whether the client names this call, as the stored message holds it. A page may still hold the input
    /// from before the approver changed it.
    pub fn is_of(&self, part: &ToolPart, message: &UiMessage) -> bool {
        let is_same_input = match (&self.input, part.input()) {
            (Some(sent), Some(stored)) => {
                let is_original = |input: ChangedInput| is_same_value(sent, &input.original);
                is_same_value(sent, stored)
                    || ChangedInput::of_call(message, part).is_some_and(is_original)
            }
            (sent, _) => sent.is_none(),
        };
        part.approval_id() == Some(&self.approval_id)
            && part.tool_call_id == self.tool_call_id
            && part.tool_name == self.tool_name
            && is_same_input
    }
}

/// A tool result that the client's history holds. Nothing of it is verified: the client may have
/// executed the tool, or only written that it did.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UnverifiedToolOutput {
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool; `None` if the client sent only the id of the call.
    #[serde(skip)]
    pub tool_name: Option<Box<str>>,
    /// The output or the error of the call.
    #[serde(flatten)]
    pub result: ClientToolResult,
}

impl UnverifiedToolOutput {
    /// Creates the result of a call whose tool the client does not name.
    pub fn new(tool_call_id: ToolCallId, result: ClientToolResult) -> Self {
        UnverifiedToolOutput { tool_call_id, tool_name: None, result }
    }
}

/// The result of a tool call that a client executed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientToolResult {
    /// The value that the tool returned.
    Output(Json),
    /// The error text of a tool that failed.
    ErrorText(String),
}

/// The data of the history that is compared with the host's record.
#[derive(Debug, Clone)]
pub(super) struct History {
    pub(super) message_ids: Vec<MessageId>,
    /// The index of the last user message.
    pub(super) last_user: Option<usize>,
    /// For each call id, the index of the last message that holds the call.
    pub(super) message_by_call: HashMap<ToolCallId, usize>,
    pub(super) requests: HashMap<ApprovalId, HistoryRequest>,
}

/// An approval request in the history.
#[derive(Debug, Clone)]
pub(super) struct HistoryRequest {
    pub(super) message: usize,
    /// The id of the call on the wire. The host may know the call by another id.
    pub(super) tool_call_id: ToolCallId,
    pub(super) has_result: bool,
}

impl History {
    pub(super) fn new(messages: &[UiMessage]) -> Self {
        let mut history = History {
            message_ids: messages.iter().map(|message| message.id.clone()).collect(),
            last_user: messages.iter().rposition(|message| message.role == Role::User),
            message_by_call: HashMap::new(),
            requests: HashMap::new(),
        };
        for (message, part) in assistants(messages)
            .flat_map(|(at, message)| message.tool_parts().map(move |part| (at, part)))
        {
            history.message_by_call.insert(part.tool_call_id.clone(), message);
            let Some(id) = part.approval_id() else { continue };
            let has_result = part.is_settled();
            if has_result || !history.requests.get(id).is_some_and(|known| known.has_result) {
                let tool_call_id = part.tool_call_id.clone();
                let request = HistoryRequest { message, tool_call_id, has_result };
                history.requests.insert(id.clone(), request);
            }
        }
        history
    }

    /// Returns whether a user message follows the message at this index.
    pub(super) fn has_later_user_message(&self, message_at: usize) -> bool {
        self.last_user > Some(message_at)
    }

    /// Returns whether a user message follows a call.
    ///
    /// For a call that is not in the history, returns whether the history ends with a user message.
    pub(super) fn is_followed_by_user_message(&self, message_at: Option<usize>) -> bool {
        match message_at {
            Some(message_at) => self.has_later_user_message(message_at),
            None => self.ends_with_user(),
        }
    }

    fn ends_with_user(&self) -> bool {
        self.last_user.is_some_and(|at| at + 1 == self.message_ids.len())
    }
}

pub(super) fn approval_response(
    part: &ToolPart,
    approval: &RespondedApproval,
) -> UnverifiedApprovalResponse {
    UnverifiedApprovalResponse {
        approval_id: approval.id.clone(),
        tool_call_id: part.tool_call_id.clone(),
        tool_name: part.tool_name.clone(),
        input: part.input().cloned(),
        approved: approval.approved,
        changed_input: None,
        reason: approval.reason.clone(),
        provider_executed: part.provider_executed == Some(true),
    }
}

pub(super) fn approval_request(
    part: &ToolPart,
    approval: &RequestedApproval,
) -> UnverifiedApprovalRequest {
    UnverifiedApprovalRequest {
        approval_id: approval.id.clone(),
        tool_call_id: part.tool_call_id.clone(),
        tool_name: part.tool_name.clone(),
        input: part.input().cloned(),
        provider_executed: part.provider_executed == Some(true),
    }
}

/// Returns the ids of the approvals that have a result, and of those that are denied in any
/// message.
pub(super) fn settled_and_denied(
    messages: &[UiMessage],
) -> (HashSet<&ApprovalId>, HashSet<&ApprovalId>) {
    let mut settled = HashSet::new();
    let mut denied = HashSet::new();
    for part in assistants(messages).flat_map(|(_, message)| message.tool_parts()) {
        match &part.state {
            ToolState::ApprovalResponded { approval, .. } if !approval.approved => {
                denied.insert(&approval.id);
            }
            _ if part.is_settled() => settled.extend(part.approval_id()),
            _ => {}
        }
    }
    (settled, denied)
}

/// Returns the tool parts to read, each with its message index and its part index.
pub(super) fn tool_parts(
    messages: &[UiMessage],
) -> impl Iterator<Item = ((usize, usize), &ToolPart)> {
    assistants(messages).flat_map(|(message_at, message)| {
        let overruled = message.overruled_tool_parts();
        message.parts.iter().enumerate().filter_map(move |(part_at, part)| {
            let part = part.as_tool().filter(|_| overruled.binary_search(&part_at).is_err());
            Some(((message_at, part_at), part?))
        })
    })
}

/// Returns the final result in a part, unless the provider executed the tool.
pub(super) fn client_output(part: &ToolPart) -> Option<UnverifiedToolOutput> {
    if part.provider_executed == Some(true) || !part.is_settled() {
        return None;
    }
    let result = match &part.state {
        ToolState::OutputAvailable { output, .. } => {
            ClientToolResult::Output(output.clone().unwrap_or_else(Json::null))
        }
        ToolState::OutputError { error_text, .. } => {
            ClientToolResult::ErrorText(error_text.clone())
        }
        _ => return None,
    };
    let tool_call_id = part.tool_call_id.clone();
    let tool_name = Some(part.tool_name.clone());
    Some(UnverifiedToolOutput { tool_call_id, tool_name, result })
}

/// Returns the indices of the message and of the part from which results are new to the model.
pub(super) fn first_new_result(
    messages: &[UiMessage],
    continued: Option<&UiMessage>,
) -> Option<(usize, usize)> {
    let (at, message) = match continued {
        Some(continued) => assistant_index(messages, continued).map(|at| (at, &messages[at])),
        None => assistants(messages).next_back(),
    }?;
    let last_step = message.parts.iter().rposition(|part| matches!(part, Part::StepStart { .. }));
    Some((at, last_step.unwrap_or(0)))
}

/// Returns the index of an assistant message.
pub(super) fn assistant_index(messages: &[UiMessage], message: &UiMessage) -> Option<usize> {
    assistants(messages).rfind(|(_, other)| other.id == message.id).map(|(at, _)| at)
}

fn assistants(messages: &[UiMessage]) -> impl DoubleEndedIterator<Item = (usize, &UiMessage)> {
    messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant)
}

#[cfg(all(test, feature = "approvals"))]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_response_is_of_a_call_if_id_approval_tool_and_input_are_the_same() {
        let message = |part: Value| {
            let message = json!({"id": "m", "role": "assistant", "parts": [part, {
                "type": "data-approval", "id": "call",
                "data": {"originalInput": {"n": 0}, "changedInput": {"n": 1}},
            }, {
                "type": "data-other", "id": "call", "data": {"originalInput": {"n": 7}, "changedInput": {"n": 1}},
            }]});
            UiMessage::parse(&message.to_string()).unwrap()
        };
        let call = json!({
            "type": "tool-send", "toolCallId": "call", "state": "approval-responded",
            "input": {"n": 1}, "approval": {"id": "approval", "approved": true},
        });
        let with = |field: &str, value: Value| {
            let mut call = call.clone();
            call[field] = value;
            call
        };
        let sent = |part: Value| {
            let message = message(part);
            let part = message.tool_parts().next().unwrap();
            let ToolState::ApprovalResponded { approval, .. } = &part.state else {
                panic!("{part:?}")
            };
            approval_response(part, approval)
        };
        let stored = message(call.clone());
        let part = stored.tool_parts().next().unwrap();
        for (part_sent, is_of) in [
            (call.clone(), true),
            // A page may hold the input from before it was changed.
            (with("input", json!({"n": 0})), true),
            (with("input", json!({"n": 7})), false),
            (with("input", json!({"n": 2})), false),
            (with("toolCallId", json!("other")), false),
            (with("type", json!("tool-other")), false),
            (with("approval", json!({"id": "other", "approved": true})), false),
        ] {
            assert_eq!(sent(part_sent.clone()).is_of(part, &stored), is_of, "{part_sent}");
        }
    }
}
