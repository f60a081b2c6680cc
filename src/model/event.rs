//! [`ModelEvent`]: an event of a model's response.

use serde::{Deserialize, Serialize};

use crate::chunk::FinishReason;
use crate::event::{AgentEvent, ToolCall};

/// An event of a model's response.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// Content that needs no decision of the agent: text, reasoning, sources, files, a tool input
    /// while it streams, and a call that the provider executes. The agent's tool loop ignores step
    /// events and results of calls that it decides about, because it emits these itself.
    Event(AgentEvent),
    /// A tool call with the complete text of its input as the model wrote it. A call that repeats
    /// the id of another call gets a new id. The call begins when the response has ended with
    /// [`FinishReason::Stop`] or [`FinishReason::ToolCalls`]. After every other end it does not run: the response may
    /// have been cut off in its input.
    ToolCall(Box<ToolCall>, String),
    /// A call that the provider executes once the user approves it, with the complete text of its
    /// input. The next request sends the approval response to the provider. Nothing is executed
    /// here.
    ProviderApprovalRequest(Box<ToolCall>, String),
    /// The tokens that the model call used, as far as they are known.
    Usage(Usage),
    /// The response is complete.
    Finished(FinishReason),
}

/// The number of tokens used by all model calls of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Tokens that the model read.
    pub input_tokens: u64,
    /// Tokens that the model wrote.
    pub output_tokens: u64,
}

impl Usage {
    /// Returns the sum of both. Each sum stops at the largest number.
    #[must_use]
    pub fn saturating_add(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
        }
    }
}

/// The metadata of a message in which an agent records its token usage:
/// `{"usage":{"inputTokens":…,"outputTokens":…}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageMetadata {
    /// The tokens of all model calls that produced the message.
    pub usage: Usage,
}
