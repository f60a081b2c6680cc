//! The ids that the model gave to its calls.

use ui_message_stream::message::{ToolPart, UiMessage};

/// Returns a stored message without the ids that the model gave to its calls, which no client needs. Returns `None` if it holds none.
pub(crate) fn without_model_ids(message: &UiMessage) -> Option<UiMessage> {
    let without = |part: &ToolPart| part.call_provider_metadata.as_ref()?.without_model_id();
    message.tool_parts().find_map(without)?;
    let mut message = message.clone();
    for part in message.tool_parts_mut() {
        if let Some(metadata) = without(part) {
            part.call_provider_metadata = metadata;
        }
    }
    Some(message)
}
