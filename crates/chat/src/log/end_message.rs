//! [`end_message`]: how a message ends whose run was cut off.

use crate::conversation::approval_status;
use ui_message_stream::approval::ApprovalStatus;
use ui_message_stream::chunk::{Chunk, Version};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::message::{ToolPart, ToolState, UiMessage};
use ui_message_stream::translator::Translator;

/// Writes the chunks that end a message with this event. These calls get a result, because their run has
/// ended. There is one more step if the page would otherwise send the same answers again.
pub(crate) fn end_message(
    message: &UiMessage,
    calls: &[ToolCallId],
    event: &AgentEvent,
    version: Version,
    mut out: impl FnMut(Chunk<'_>),
) {
    let mut translator = Translator::continuing(message).with_version(version);
    translator.require_results(calls);
    // The page that has sent the answers shows them.
    translator.set_answered(&approved_calls(message));
    translator.start(&mut |_| {});
    let mut out = |chunk: Chunk<'_>| out(chunk.for_version(version));
    let _ = translator.handle_event(event, &mut out);
    translator.finish(&mut out);
}

/// Returns the calls without a result whose data says that they are approved.
fn approved_calls(message: &UiMessage) -> Vec<ToolCallId> {
    let is_approved =
        |call: &&ToolPart| approval_status(message, call) == Some(ApprovalStatus::Approved);
    let is_asked = |call: &&ToolPart| matches!(call.state, ToolState::ApprovalRequested { .. });
    let calls = message.tool_parts().filter(is_asked).filter(is_approved);
    calls.map(|call| call.tool_call_id.clone()).collect()
}
