//! [`ToolError`]: the error of a tool for the model and the user.

use ui_message_stream::BoxError;
use ui_message_stream::UserText;

/// A tool error whose message is shown to the model and the user, up to 10 000 characters. All
/// other errors are logged and shown as "The tool failed."
///
/// In a handler that also returns other errors, the error type is
/// [`BoxError`](ui_message_stream::BoxError), to which `?` converts every error. Return a `ToolError`
/// there with `Err(ToolError("…".into()).into())`.
///
/// ```
/// use ui_message_stream_agent::ToolError;
///
/// fn check(amount: u64) -> Result<(), ToolError> {
///     match amount {
///         0 => Err(ToolError("The amount must be at least 1.".into())),
///         _ => Ok(()),
///     }
/// }
/// assert_eq!(check(0).unwrap_err().to_string(), "The amount must be at least 1.");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

/// Returns the error of a call for which the user cannot be asked: the call around it was approved itself,
/// and runs before the chat can ask again, or a provider executes it.
pub(super) fn cannot_ask() -> ToolError {
    ToolError(UserText::InnerCallNotAsked.to_string())
}

/// Returns the text of an error that the model and the user read.
pub(super) fn user_message(error: &BoxError) -> String {
    match error.downcast_ref::<ToolError>() {
        Some(ToolError(message)) => message.chars().take(MAX_USER_MESSAGE_CHARS).collect(),
        None => UserText::ToolFailed.to_string(),
    }
}

/// The maximum number of characters of an error message that are shown.
const MAX_USER_MESSAGE_CHARS: usize = 10_000;
