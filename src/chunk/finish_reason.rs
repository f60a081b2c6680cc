//! [`FinishReason`]: why the model stopped, in the words of the wire.

use serde::{Deserialize, Serialize};

/// Why the model stopped. The client refuses any other word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FinishReason {
    /// It completed its answer.
    Stop,
    /// It reached the token limit.
    Length,
    /// A filter stopped it.
    ContentFilter,
    /// It called tools. Also the reason of a turn that waits for the user or for the client.
    ToolCalls,
    /// It failed.
    Error,
    /// Anything else; unknown reasons of a provider belong here.
    Other,
}

impl FinishReason {
    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ContentFilter => "content-filter",
            FinishReason::ToolCalls => "tool-calls",
            FinishReason::Error => "error",
            FinishReason::Other => "other",
        }
    }

    pub(crate) fn from_wire(word: &str) -> Option<Self> {
        Some(match word {
            "stop" => FinishReason::Stop,
            "length" => FinishReason::Length,
            "content-filter" => FinishReason::ContentFilter,
            "tool-calls" => FinishReason::ToolCalls,
            "error" => FinishReason::Error,
            "other" => FinishReason::Other,
            _ => return None,
        })
    }
}
