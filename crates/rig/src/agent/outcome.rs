//! What a tool of rig returned: an output, or why it failed.

use rig_core::error::{ErrorKind, ErrorReport};
use rig_core::message::ToolResultContent;
use rig_core::tool::{ToolOutput, ToolResult};

use ui_message_stream::adapter::tools::OUTPUT_TOO_LARGE;
use ui_message_stream::approval::{TOOL_FAILED, ToolOutcome};
use ui_message_stream::json::Json;

/// What came of a call, as the person sees it. Of a failure that is what the model reads: the words
/// that the tool made its error of, and of an error that it passed on as it came none.
pub(super) fn of(result: &ToolResult, most_bytes: usize) -> ToolOutcome {
    match result.is_success() {
        true => output(result.output().as_content(), most_bytes),
        false if is_worded(result) => ToolOutcome::Failed(words(result.output())),
        false => {
            tracing::error!(error = ?result.error(), "a tool call has no outcome");
            ToolOutcome::Failed(TOOL_FAILED.to_owned())
        }
    }
}

/// Whether it is a failure in words that are meant to be read.
pub(super) fn is_worded(result: &ToolResult) -> bool {
    let report = result.error().and_then(|error| error.downcast_ref::<ErrorReport>());
    !result.is_success() && !report.is_some_and(|report| is_internal(report.kind))
}

/// Whether a failure is none of a tool's own, and of no policy and no hook.
pub(super) fn is_internal(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Tool(_)
            | ErrorKind::Denied
            // These end the run.
            | ErrorKind::Cancelled
            | ErrorKind::BusClosed
            | ErrorKind::HandlerUnavailable
            | ErrorKind::Divergence
    )
}

/// The text, if there is one text and nothing else; the value, if there is one; else what there is
/// as it stands.
pub(super) fn output(content: &[ToolResultContent], most_bytes: usize) -> ToolOutcome {
    let output = match content {
        [ToolResultContent::Text(text)] => Ok(Json::string(&text.text)),
        [ToolResultContent::Json { value }] => Json::of(value),
        content => Json::of(content),
    };
    match output {
        Ok(output) if output.as_str().len() > most_bytes => {
            ToolOutcome::Failed(OUTPUT_TOO_LARGE.to_owned())
        }
        Ok(output) => ToolOutcome::Output(output),
        Err(error) => {
            tracing::error!(%error, "the output of a tool cannot be shown");
            ToolOutcome::Failed(NOT_SHOWN.to_owned())
        }
    }
}

/// What is said of a failure, in its first words.
pub(super) fn text_of(content: &[ToolResultContent]) -> String {
    let texts = content.iter().filter_map(ToolResultContent::as_text);
    let text = texts.collect::<Vec<_>>().join("\n");
    match text.trim() {
        "" => TOOL_FAILED.to_owned(),
        text => text.chars().take(MOST_TOLD).collect(),
    }
}

fn words(output: &ToolOutput) -> String {
    text_of(output.as_content())
}

/// How many characters of a failure are told.
const MOST_TOLD: usize = 2000;

const NOT_SHOWN: &str = "The tool returned what cannot be shown.";
