//! What a user or a front end writes into a message: approval responses and tool outputs.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::id::ApprovalId;
use crate::message::{ToolPart, ToolState, UiMessage};

/// Returns whether this part requests the approval with this id.
pub(super) fn requests_approval(part: &ToolPart, id: &ApprovalId) -> bool {
    matches!(&part.state, ToolState::ApprovalRequested { approval, .. } if approval.id == *id)
}

/// Writes the response to an approval request into every part that holds the request, as
/// `addToolApprovalResponse` does.
pub(super) fn respond(
    message: &mut UiMessage,
    id: &ApprovalId,
    approved: bool,
    reason: Option<&str>,
) {
    for part in message.tool_parts_mut().filter(|part| requests_approval(part, id)) {
        part.respond(approved, reason).expect("the part requests an approval");
    }
}

/// Sets the result in every part of the call, in any state, as `addToolOutput` does:
/// `{ ...part, state, output, errorText }`.
pub(super) fn set_result(
    message: &UiMessage,
    tool_call_id: &str,
    result: &Result<Box<RawValue>, String>,
) -> UiMessage {
    let mut message_fields = Fields::new(message);
    let parts = message.parts.iter().map(|part| {
        let mut fields = Fields::new(part);
        if part.as_tool().is_some_and(|part| &*part.tool_call_id == tool_call_id) {
            let (state, output, error_text) = match result {
                Ok(output) => ("output-available", Some(output.clone()), None),
                Err(text) => ("output-error", None, Some(raw(text))),
            };
            fields.set("state", Some(raw(state)));
            fields.set("output", output);
            fields.set("errorText", error_text);
        }
        fields.0
    });
    let parts: Vec<_> = parts.collect();
    message_fields.set("parts", Some(raw(&parts)));
    UiMessage::parse(raw(&message_fields.0).get()).unwrap_or_else(|error| {
        panic!("a message of the client, with the output of {tool_call_id:?}: {error}")
    })
}

/// The fields of an object, each with its original text.
struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    fn new(object: &impl serde::Serialize) -> Self {
        Fields(serde_json::from_str(raw(object).get()).expect("a message or a part is an object"))
    }

    fn set(&mut self, key: &str, value: Option<Box<RawValue>>) {
        match value {
            Some(value) => drop(self.0.insert(key.to_owned(), value)),
            None => drop(self.0.remove(key)),
        }
    }
}

fn raw(value: &(impl serde::Serialize + ?Sized)) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("messages and texts serialize")
}
