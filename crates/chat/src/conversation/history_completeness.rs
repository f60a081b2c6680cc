//! [`HistoryCompleteness`]: whether a chat holds everything that happened in its conversation.

use serde::{Deserialize, Serialize};

/// Whether a [`Chat`](super::Chat) holds everything that happened in its conversation.
///
/// An approval predicate that reads an incomplete history cannot know which tools ran. So a call
/// needs approval if its predicate reads such a history; see `agent::ApprovalContext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum HistoryCompleteness {
    /// The chat holds everything that happened in the conversation.
    Complete,
    /// The chat was imported from the messages of a client, without tool calls and results, or with
    /// those that the client claims. See
    /// [`Chat::from_client_history`](super::Chat::from_client_history).
    Imported,
    /// Messages with tool calls were removed from the chat: the user edited an earlier message or
    /// requested another response, or the host stores only a part of the messages.
    Truncated,
}

impl HistoryCompleteness {
    /// Returns whether the chat holds everything that happened in the conversation.
    pub fn is_complete(&self) -> bool {
        *self == HistoryCompleteness::Complete
    }
}
