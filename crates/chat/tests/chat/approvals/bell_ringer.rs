//! An agent that asks to ring the bell.

use async_stream::stream;
use futures::Stream;
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json};
use ui_message_stream_chat::Turn;

/// Asks to ring the bell. Says "You heard it." in the turn that has the answer.
pub(crate) fn ring(turn: Turn) -> impl Stream<Item = AgentEvent> + Send {
    stream! {
        if turn.deferred.is_empty() {
            let call = ToolCall::new("call", "ring");
            yield AgentEvent::tool_input(call.clone(), Json::null());
            yield turn.approvals.request_approval_of(&call, &Json::null()).await;
        } else {
            yield AgentEvent::text("You heard it.");
        }
    }
}
