//! [`ModelMessage`]: the messages that a model reads, independent of the provider.
//!
//! ```text
//! messages ──▶ ToModelMessages ──▶ model messages ──▶ an adapter ──▶ the provider
//!                ▲
//!        DeferredToolResults: what this turn knows beyond the history
//! ```
//!
//! Providers accept the output of [`ToModelMessages`] for every history:
//!
//! - Every tool call has exactly one result. If this side executes the tool, the result is in the
//!   tool message directly after the assistant message with the call. If the provider executes the
//!   tool, the result follows the call in the same message. If the provider waits for an approval
//!   response, that response ([`ToolApprovalResponseContent`]) in the next tool message is the
//!   result. No result lacks its call, and no two calls have the same id.
//! - The first message is a user message. No two user messages and no two assistant messages are
//!   adjacent, and a tool message follows the assistant message with the calls.
//! - No message is empty, no text is blank, and no assistant message ends with reasoning.
//!
//! The enums of this module are exhaustive: an adapter must handle each kind of message and
//! content, so a new kind is a breaking change.
//!
//! For a call that was not executed, the result tells the model so, and the reason
//! ([`ToolResult::text`]).
//!
//! Not included here: rules of a single provider, such as the ids of calls that it accepts ([`CallIdRule`]),
//! or that it accepts only objects as tool input ([`ToolCallContent::input_object`]); and
//! instructions, which the host puts before the other messages with [`ModelMessage::system`].

#[cfg(feature = "body")]
mod call;
mod call_ids;
mod call_updates;
mod content;
mod event;
pub mod files;
mod from_ui;
#[cfg(feature = "body")]
mod parameters;
mod tool_part;
mod tool_result;
mod transcript;

use serde::{Deserialize, Serialize};

#[cfg(feature = "body")]
pub use self::call::{Model, ModelRequest, ModelStream, OutputSchema, ToolDefinition};
pub use self::call_ids::CallIdRule;
pub use self::content::{
    AssistantContent, FileContent, FileSource, ReasoningContent, TextContent,
    ToolApprovalResponseContent, ToolCallContent, ToolContent, ToolResultContent, UserContent,
};
pub use self::event::{ModelEvent, Usage, UsageMetadata};
pub use self::from_ui::ToModelMessages;
#[cfg(feature = "body")]
pub use self::parameters::parameters;
pub use self::tool_part::sanitize_tool_name;
pub use self::tool_result::{NotExecutedReason, ToolResult};

/// A message that a model reads.
///
/// It is serialized as an object with one field, which is named after the role.
///
/// ```
/// use ui_message_stream::model::ModelMessage;
///
/// let messages = [ModelMessage::system("Be brief."), ModelMessage::user("Hi")];
/// let stored = serde_json::to_string(&messages)?;
/// assert_eq!(
///     stored,
///     r#"[{"system":{"text":"Be brief."}},{"user":{"content":[{"text":{"text":"Hi"}}]}}]"#
/// );
/// assert_eq!(serde_json::from_str::<Vec<ModelMessage>>(&stored)?, messages);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelMessage {
    /// Instructions of the host. They are never taken from a UI message.
    System {
        /// The instructions.
        text: String,
    },
    /// A message of the user.
    User {
        /// The contents in their original order.
        content: Vec<UserContent>,
    },
    /// A message of the model: text, reasoning, files and tool calls.
    Assistant {
        /// The contents in their original order.
        content: Vec<AssistantContent>,
    },
    /// The results of the calls in the preceding assistant message.
    Tool {
        /// The contents in the order of the calls.
        content: Vec<ToolContent>,
    },
}

impl ModelMessage {
    /// Creates a message with instructions of the host.
    pub fn system(text: impl Into<String>) -> Self {
        ModelMessage::System { text: text.into() }
    }

    /// Creates a user message with one text.
    pub fn user(text: impl Into<String>) -> Self {
        ModelMessage::User { content: vec![UserContent::Text(TextContent::new(text))] }
    }

    /// Creates an assistant message.
    pub fn assistant(content: Vec<AssistantContent>) -> Self {
        ModelMessage::Assistant { content }
    }

    /// Creates a tool message.
    pub fn tool(content: Vec<ToolContent>) -> Self {
        ModelMessage::Tool { content }
    }
}
