//! [`StopReason`]: why a message ends where it does, for those who do not read it as a stream.

use serde::{Deserialize, Serialize};

use super::Chat;
#[cfg(feature = "approvals")]
use crate::chunk::FinishReason;
use crate::id::MessageId;
use crate::message::ToolState;

/// Why a message ends where it does: what has to happen before it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// Nothing: the agent said all it had to say.
    Stop,
    /// A person has to answer.
    RequiresApproval,
    /// The client has to run a tool.
    RequiresClientTool,
    /// Tools were called, and the model was not called with what came of them: it may not go on, as at
    /// the limit of steps.
    ToolCalls,
    /// The model came to its limit of tokens.
    Length,
    /// A filter stopped the model.
    ContentFilter,
}

impl StopReason {
    /// Why, given what the agent said of it.
    #[cfg(feature = "approvals")]
    pub(crate) fn told(self, reason: Option<FinishReason>) -> Self {
        match (self, reason) {
            (StopReason::Stop, Some(FinishReason::ToolCalls)) => StopReason::ToolCalls,
            (StopReason::Stop, Some(FinishReason::Length)) => StopReason::Length,
            (StopReason::Stop, Some(FinishReason::ContentFilter)) => StopReason::ContentFilter,
            _ => self,
        }
    }
}

impl Chat {
    /// Why a message of this conversation ends where it does, as far as the conversation says it. Where
    /// a person and the client are waited for, it is the person.
    ///
    /// ```
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::history::{Chat, StopReason};
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
        let left = |id: &_| self.left_to_client.iter().any(|call| call.tool_call_id == *id);
        match parts().any(|part| !part.is_settled() && left(&part.tool_call_id)) {
            true => StopReason::RequiresClientTool,
            false => StopReason::Stop,
        }
    }
}
