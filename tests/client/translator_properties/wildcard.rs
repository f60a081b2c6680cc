//! Places in what is meant that nobody filled in: the translator may, in certain ways.

use serde_json::{Value, json};

const KEY: &str = "?";

/// Some text that says something.
pub(crate) fn some_text() -> Value {
    json!({ KEY: "some text" })
}

/// Whatever it is, or nothing.
pub(crate) fn anything() -> Value {
    json!({ KEY: "anything" })
}

/// The id of a new call: the agent's own, unless the message has it already.
pub(crate) fn call_id(id: &str) -> Value {
    json!({ KEY: "call id", "said": id })
}

/// The id, whatever it is, of the call that this question is about.
pub(crate) fn id_of_call_asked(approval_id: &str) -> Value {
    json!({ KEY: "id of the call", "asked": approval_id })
}

/// A part exactly as the continued message held it.
pub(crate) fn untouched(part: &Value) -> Value {
    json!({ KEY: "untouched", "part": part })
}

/// A part whose id another part has too, so that a result for one may end up in the other.
pub(crate) fn twin(part: &Value) -> Value {
    json!({ KEY: "twin", "type": part["type"], "toolCallId": part["toolCallId"] })
}

/// What kind of wildcard this is, if it is one.
pub(crate) fn kind(value: &Value) -> Option<&str> {
    value.get(KEY)?.as_str()
}
