//! [`StopReason`]: why an assistant message ends, for clients that do not read a stream.

use std::fmt;

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
    /// Returns the word for it, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Stop => "stop",
            StopReason::RequiresApproval => "requires_approval",
            StopReason::RequiresClientTool => "requires_client_tool",
            StopReason::ToolCalls => "tool_calls",
            StopReason::Length => "length",
            StopReason::ContentFilter => "content_filter",
        }
    }

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

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_the_one_of_json() {
        for reason in [
            StopReason::Stop,
            StopReason::RequiresApproval,
            StopReason::RequiresClientTool,
            StopReason::ToolCalls,
            StopReason::Length,
            StopReason::ContentFilter,
        ] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.to_string());
        }
    }
}
