//! What a tool of rig returned: an output, or why it failed.

use rig_core::message::ToolResultContent;
use rig_core::tool::{ToolOutput, ToolResult};

use crate::agent::TOO_LARGE;
use crate::approval::{TOOL_FAILED, ToolOutcome};
use crate::json::Json;

/// What came of a call, as the person sees it. Of a failure that is what the model reads: the words
/// that the tool made its error of, and of an error that it passed on as it came none.
pub(super) fn of(result: &ToolResult) -> ToolOutcome {
    match result.is_success() {
        true => output(result.output().as_content()),
        false => ToolOutcome::Failed(words(result.output())),
    }
}

/// The text, if there is one text and nothing else; the value, if there is one; else what there is
/// as it stands.
pub(super) fn output(content: &[ToolResultContent]) -> ToolOutcome {
    let output = match content {
        [ToolResultContent::Text(text)] => Ok(Json::string(&text.text)),
        [ToolResultContent::Json { value }] => Json::of(value),
        content => Json::of(content),
    };
    match output {
        Ok(output) if output.as_str().len() > MOST_OUTPUT_BYTES => {
            ToolOutcome::Failed(TOO_LARGE.to_owned())
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

/// How long an output may be. The client sends it back with every request.
const MOST_OUTPUT_BYTES: usize = 1024 * 1024;

/// How many characters of a failure are told.
const MOST_TOLD: usize = 2000;

const NOT_SHOWN: &str = "The tool returned what cannot be shown.";
