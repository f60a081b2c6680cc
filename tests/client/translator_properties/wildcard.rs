//! Wildcards: places of the expected message that the translator may fill, within limits.

use serde_json::{Value, json};

const KEY: &str = "?";

/// Any text that is not blank.
pub(crate) fn some_text() -> Value {
    json!({ KEY: "some text" })
}

/// Any value, or none.
pub(crate) fn anything() -> Value {
    json!({ KEY: "anything" })
}

/// The id of a new call: the agent's id, unless the message already holds it.
pub(crate) fn call_id(id: &str) -> Value {
    json!({ KEY: "call id", "agent_id": id })
}

/// The id of the call that this approval request belongs to.
pub(crate) fn id_of_call_asked(approval_id: &str) -> Value {
    json!({ KEY: "id of the call", "approval_id": approval_id })
}

/// A part unchanged from the continued message.
pub(crate) fn untouched(part: &Value) -> Value {
    json!({ KEY: "untouched", "part": part })
}

/// A part whose id another part has too, so that a result for one may reach the other.
pub(crate) fn twin(part: &Value) -> Value {
    json!({ KEY: "twin", "type": part["type"], "toolCallId": part["toolCallId"] })
}

/// The kind of this wildcard, if it is one.
pub(crate) fn kind(value: &Value) -> Option<&str> {
    value.get(KEY)?.as_str()
}
