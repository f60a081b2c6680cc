//! [`StopReason`]: why an assistant message ends, for clients that do not read a stream.

use serde::{Deserialize, Serialize};

use super::Chat;
#[cfg(feature = "approvals")]
use crate::chunk::FinishReason;
use crate::id::MessageId;
use crate::message::ToolState;

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
    #[cfg(feature = "approvals")]
    pub(crate) fn with_finish_reason(self, reason: Option<FinishReason>) -> Self {
        match (self, reason) {
            (StopReason::Stop, Some(FinishReason::ToolCalls)) => StopReason::ToolCalls,
            (StopReason::Stop, Some(FinishReason::Length)) => StopReason::Length,
            (StopReason::Stop, Some(FinishReason::ContentFilter)) => StopReason::ContentFilter,
            _ => self,
        }
    }
}

impl Chat {
    /// Returns why a message of this conversation ends, as far as the stored conversation shows it.
    ///
    /// The result is [`StopReason::RequiresApproval`], [`StopReason::RequiresClientTool`] or
    /// [`StopReason::Stop`]. If the message waits for both the user and the client, it is
    /// `RequiresApproval`. It is `Stop` also if the conversation has no message with this id.
    ///
    /// ```
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::chat::{Chat, StopReason};
    ///
    /// let chat = Chat::new("c", Principal::anonymous());
    /// assert_eq!(chat.stop_reason(&"m1".into()), StopReason::Stop);
    /// ```
    pub fn stop_reason(&self, message: &MessageId) -> StopReason {
        let parts = || self.message(message).into_iter().flat_map(|message| message.tool_parts());
        let is_asked = |state: &ToolState| matches!(state, ToolState::ApprovalRequested { .. });
        if parts().any(|part| is_asked(&part.state)) {
            return StopReason::RequiresApproval;
        }
        let is_left_to_client =
            |id: &_| self.left_to_client.iter().any(|call| call.tool_call_id == *id);
        match parts().any(|part| !part.is_settled() && is_left_to_client(&part.tool_call_id)) {
            true => StopReason::RequiresClientTool,
            false => StopReason::Stop,
        }
    }
}
