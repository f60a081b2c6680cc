//! Approval requests of the user `ada` in the chat `chat`.

use serde::Serialize;
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::approval::{Approvals, ChatApprovals, IssuedApproval};
use ui_message_stream::id::ApprovalId;

use crate::requests::{ada, respond, user_message};

/// Returns the approvals of the chat.
pub fn adas_chat(approvals: &Approvals) -> ChatApprovals {
    approvals.for_chat(&ada(), &"chat".into())
}

/// Requests approval of a call of this tool, in the message `m2`.
///
/// # Panics
/// If the approval cannot be requested.
pub async fn ask(
    approvals: &Approvals,
    call: &str,
    tool: &str,
    input: impl Serialize,
) -> IssuedApproval {
    let (message, input) = ("m2".into(), Json::from_serialize(&input).unwrap());
    let asked = adas_chat(approvals);
    asked.request_approval(&message, &call.into(), tool, &input, None).await.unwrap()
}

/// Returns the tool part of a call that waits for the user's decision.
pub fn unanswered(tool: &str, call: &str, input: Value, approval: &ApprovalId) -> Value {
    json!({"type": format!("tool-{tool}"), "toolCallId": call, "state": "approval-requested",
           "input": input, "approval": {"id": approval}})
}

/// Returns the tool part after the user's decision.
pub fn answered(part: &Value, approved: bool) -> Value {
    let mut part = part.clone();
    respond(&mut part, approved);
    part
}

/// Returns a request whose last message `m2` holds these calls.
pub fn body(calls: impl Serialize) -> Value {
    json!({"id": "chat", "messageId": "m2", "trigger": "submit-message", "messages": [
        user_message("m1", "Delete my notes"),
        {"id": "m2", "role": "assistant", "parts": calls},
    ]})
}

/// Returns the request after the user has sent a new message, `m3`.
pub fn with_new_message(body: Value) -> Value {
    with_message(body, "m3")
}

/// Returns the request after the user has sent a message with this id.
pub fn with_message(mut body: Value, id: &str) -> Value {
    body["messageId"].take();
    body["messages"].as_array_mut().unwrap().push(user_message(id, "Never mind"));
    body
}
