//! [`PendingToolCall`]: a tool call without a result, in the host's own record.
//!
//! # A client reads the input of its call once the call is approved
//!
//! A client executes a call of its own when it reads `tool-input-available` (`onToolCall`). So a call that the
//! client is to execute is announced when it is decided, and one that needs an approval has only a streamed input
//! until then: the real client takes that, and shows the question with the input. The outcome of the approved call
//! in the ledger is `ToolOutcome::HandedToClient`: what runs on the server is nothing, and `tool-input-available`
//! goes out before the first `start-step`, where it changes the part of the call. From then on the call is one of
//! the client, in the stored message as well: its approval stays in `data-approval`, because validators refuse an
//! input with an answered approval. An output counts only then, so nothing that a client claims is one before the
//! approval. A page that repeats the approval is given the call again, and so is every page that reads the live
//! answer. A replay of a stored message writes `tool-input-available` only for a call that the message holds as
//! `input-available`: the input of every other call is written as a streamed one. A newer message ends a call that
//! waits for its client with an unknown outcome, because the client may have executed it. The tools that a request
//! defines are not those of a server, so the approval is bound to the name, and the request that answers does not
//! have to define the tool again. If the agent has a tool with that name by then, the approval is revoked.

use serde::{Deserialize, Serialize};

use super::{OnNewMessage, ToolOutcome};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::ToolPart;

/// A tool call that was still open when a response ended, taken from the host's own record.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::PendingToolCall;
///
/// let input = Json::from_serialize("notes.txt")?;
/// let needs_approval = PendingToolCall::awaiting_approval("ap_1", "call_1", "delete_file", input);
/// assert!(needs_approval.approval_id.is_some());
///
/// let on_client = PendingToolCall::client_executed("call_2", "get_location", Json::null());
/// assert!(on_client.approval_id.is_none());
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PendingToolCall {
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The tool input that the model produced.
    pub input: Json,
    /// The id of the approval request for this call. `None` if the client executes the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// Whether the provider executes the tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider_executed: bool,
    /// What the host has done with the call.
    #[serde(default, skip_serializing_if = "CallProgress::is_open")]
    pub progress: CallProgress,
    /// What happens to the approval request when the user sends a newer message. By default an
    /// approval that arrives with that message does not run the call.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_new_message: OnNewMessage,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a host has done with a call of its own record.
///
/// ```text
/// Open ──▶ HandedOut ──▶ Completed
///    └───▶ Denied, Superseded or Lapsed
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CallProgress {
    /// The call waits for the user or the client.
    #[default]
    Open,
    /// The user approved the call, and it was handed out for execution. Until it is completed, its
    /// outcome is unknown.
    HandedOut,
    /// The call was executed.
    Completed(ToolOutcome),
    /// The user denied the call.
    Denied,
    /// The user sent a newer message instead of a response.
    Superseded,
    /// The user approved the call, but only with or after a newer message.
    Lapsed,
}

impl CallProgress {
    /// Returns whether the call waits for the user or the client.
    pub fn is_open(&self) -> bool {
        *self == CallProgress::Open
    }
}

impl PendingToolCall {
    /// Creates a call that waits for a user's approval.
    pub fn awaiting_approval(
        approval_id: impl Into<ApprovalId>,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        PendingToolCall {
            approval_id: Some(approval_id.into()),
            ..Self::client_executed(tool_call_id, tool_name, input)
        }
    }

    /// Creates the call of a tool part, with its approval request if it has one.
    pub fn of_part(part: &ToolPart) -> Self {
        let id = part.tool_call_id.clone();
        let name = part.tool_name.clone();
        let input = part.input().cloned().unwrap_or_else(Json::null);
        PendingToolCall {
            approval_id: part.approval_id().cloned(),
            provider_executed: part.provider_executed == Some(true),
            ..Self::client_executed(id, name, input)
        }
    }

    /// Creates a call that the client executes.
    ///
    /// The call id must be unique in the chat. The client answers in the first message that holds
    /// the id. If an id is repeated within a message, the later call is sent under another id.
    pub fn client_executed(
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        PendingToolCall {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            input,
            approval_id: None,
            provider_executed: false,
            progress: CallProgress::Open,
            on_new_message: OnNewMessage::Lapse,
        }
    }

    /// Records the outcome of the call, after it was executed. A repeated approval gets it.
    pub fn complete(&mut self, outcome: ToolOutcome) {
        self.progress = CallProgress::Completed(outcome);
    }

    /// Returns the call that the client has to execute, if this one was approved and handed to it.
    pub(super) fn handed_to_client(&self) -> Option<PendingToolCall> {
        let CallProgress::Completed(ToolOutcome::HandedToClient(input)) = &self.progress else {
            return None;
        };
        let id = self.tool_call_id.clone();
        let name = self.tool_name.clone();
        Some(Self::client_executed(id, name, input.clone()))
    }

    /// Marks the tool as executed by the provider. The provider then receives the user's response.
    #[must_use]
    pub fn provider_executed(mut self) -> Self {
        self.provider_executed = true;
        self
    }
}
