//! [`ModelMessage`]: what a model reads, with no vendor in it.
//!
//! ```text
//! messages ──▶ FromUi ──▶ model messages ──▶ an adapter ──▶ the provider
//!                ▲
//!        DeferredToolResults: what this turn knows beyond the history
//! ```
//!
//! What [`FromUi`] gives, a provider takes, whatever the history looks like:
//!
//! - Every tool call has exactly one result: of a tool that this side runs, in the tool message
//!   directly after the assistant message that made the call; of one that the provider runs, behind
//!   the call in the same message. Where the provider waits for a person's answer, the answer
//!   ([`ProviderApprovalContent`]) in the next tool message is that result. No result lacks its call,
//!   and no two calls have the same id.
//! - The first message is a user's. Neither two of a user nor two of the assistant follow each
//!   other, and a tool message follows the assistant message that called.
//! - No message is empty, no text is blank, and no assistant message ends in reasoning.
//!
//! The enums of this room are exhaustive: an adapter has to decide about each kind of message and
//! content, so a new kind is a breaking change.
//!
//! A call that did not run says so to the model, and why ([`ToolResult::text`]).
//!
//! Left out here: what is one provider's own, as the alphabet of its call ids, or that it takes only
//! objects as tool input ([`ToolCallContent::input_object`]); and instructions, which the host puts
//! before the rest with [`ModelMessage::system`].

mod content;
mod from_ui;
mod news;
mod result;
mod tool_part;
mod transcript;

use serde::{Deserialize, Serialize};

pub use self::content::{
    AssistantContent, FileContent, FileSource, ProviderApprovalContent, ReasoningContent,
    TextContent, ToolCallContent, ToolContent, ToolResultContent, UserContent,
};
pub use self::from_ui::FromUi;
pub use self::result::{NotExecuted, ToolResult};
pub use self::tool_part::sanitize_tool_name;

/// What a model reads of one speaker.
///
/// It serializes, as an object named for the role.
///
/// ```
/// use ui_message_stream::model_message::ModelMessage;
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
    /// Instructions of the host. None is ever taken from a UI message.
    System {
        /// The instructions.
        text: String,
    },
    /// What the person says.
    User {
        /// In the order in which it was said.
        content: Vec<UserContent>,
    },
    /// What the model says and calls.
    Assistant {
        /// In the order in which it was said.
        content: Vec<AssistantContent>,
    },
    /// What became of the calls of the assistant message before.
    Tool {
        /// In the order of the calls.
        content: Vec<ToolContent>,
    },
}

impl ModelMessage {
    /// Instructions of the host.
    pub fn system(text: impl Into<String>) -> Self {
        ModelMessage::System { text: text.into() }
    }

    /// A text of the person.
    pub fn user(text: impl Into<String>) -> Self {
        ModelMessage::User { content: vec![UserContent::Text(TextContent::new(text))] }
    }

    /// What the model says and calls.
    pub fn assistant(content: Vec<AssistantContent>) -> Self {
        ModelMessage::Assistant { content }
    }

    /// What became of calls.
    pub fn tool(content: Vec<ToolContent>) -> Self {
        ModelMessage::Tool { content }
    }
}
