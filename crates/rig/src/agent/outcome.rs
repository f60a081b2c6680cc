//! The outcome of a rig tool: an output or an error message.

use rig_core::error::{ErrorKind, ErrorReport};
use rig_core::message::ToolResultContent;
use rig_core::tool::{ToolOutput, ToolResult};

use ui_message_stream::UserText;
use ui_message_stream::approval::ToolOutcome;
use ui_message_stream::json::Json;

/// Returns the outcome of a call as the user sees it.
///
/// A failure has the text that the model reads: the message with which the tool created its error.
/// An error that the tool passed on unchanged is logged, and a general message is shown.
pub(super) fn from_result(result: &ToolResult, max_bytes: usize) -> ToolOutcome {
    match result.is_success() {
        true => output(result.output().as_content(), max_bytes),
        false if has_public_message(result) => ToolOutcome::Failed(message(result.output())),
        false => {
            tracing::error!(error = ?result.error(), "a tool call has no outcome");
            ToolOutcome::Failed(UserText::ToolFailed.to_string())
        }
    }
}

/// Whether the call failed with a message that may be shown.
pub(super) fn has_public_message(result: &ToolResult) -> bool {
    let report = result.error().and_then(|error| error.downcast_ref::<ErrorReport>());
    !result.is_success() && !report.is_some_and(|report| is_internal(report.kind))
}

/// Whether an error comes neither from the tool itself nor from a policy or a hook.
pub(super) fn is_internal(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Tool(_)
            | ErrorKind::Denied
            // These errors end the run.
            | ErrorKind::Cancelled
            | ErrorKind::BusClosed
            | ErrorKind::HandlerUnavailable
            | ErrorKind::Divergence
    )
}

/// Returns the output: a single text as a JSON string, a single JSON value as that value, and any
/// other content as a JSON array of its pieces. An output that is too large is a failure.
pub(super) fn output(content: &[ToolResultContent], max_bytes: usize) -> ToolOutcome {
    let output = match content {
        [ToolResultContent::Text(text)] => Ok(Json::string(&text.text)),
        [ToolResultContent::Json { value }] => Json::from_serialize(value),
        content => Json::from_serialize(content),
    };
    match output {
        Ok(output) if output.as_str().len() > max_bytes => {
            ToolOutcome::Failed(UserText::OutputTooLarge.to_string())
        }
        Ok(output) => ToolOutcome::Output(output),
        Err(error) => {
            tracing::error!(%error, "the output of a tool cannot be shown");
            ToolOutcome::Failed(UserText::OutputNotShown.to_string())
        }
    }
}

/// Returns the beginning of an error message.
pub(super) fn error_text(content: &[ToolResultContent]) -> String {
    let texts = content.iter().filter_map(ToolResultContent::as_text);
    let text = texts.collect::<Vec<_>>().join("\n");
    match text.trim() {
        "" => UserText::ToolFailed.to_string(),
        text => text.chars().take(MAX_ERROR_CHARS).collect(),
    }
}

fn message(output: &ToolOutput) -> String {
    error_text(output.as_content())
}

/// The maximum length of an error message in characters.
const MAX_ERROR_CHARS: usize = 2000;
