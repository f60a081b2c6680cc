//! [`StopReason`]: why an assistant message ends, for clients that do not read a stream.

use serde::{Deserialize, Serialize};

use ui_message_stream::chunk::FinishReason;

/// The reason why an assistant message ends, and with it what has to happen before the message
/// continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The agent has finished its answer. Nothing has to happen.
    Stop,
    /// The user has to respond to an approval request.
    RequiresApproval,
    /// The client has to execute a tool call.
    RequiresClientTool,
    /// The model called tools and was not called again with their results, for example because the
    /// maximum number of steps was reached.
    ToolCalls,
    /// The model reached its token limit.
    Length,
    /// A content filter stopped the model.
    ContentFilter,
}

impl StopReason {
    /// Returns the more precise reason that the agent's finish reason gives, if `self` is
    /// [`StopReason::Stop`]. Returns `self` otherwise.
    pub(crate) fn with_finish_reason(self, reason: Option<FinishReason>) -> Self {
        match (self, reason) {
            (StopReason::Stop, Some(FinishReason::ToolCalls)) => StopReason::ToolCalls,
            (StopReason::Stop, Some(FinishReason::Length)) => StopReason::Length,
            (StopReason::Stop, Some(FinishReason::ContentFilter)) => StopReason::ContentFilter,
            _ => self,
        }
    }
}
