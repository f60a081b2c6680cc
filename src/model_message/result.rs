//! [`ToolResult`]: what became of a tool call, and how a model is told.
//!
//! A model that is told of a denial in passing narrates success, or says that the call is waiting.
//! So each text says first whether the call was executed, and that nothing will follow.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::approval::TOOL_FAILED;
use crate::json::{Json, unescaped};

/// What became of a tool call.
///
/// ```
/// use ui_message_stream::model_message::ToolResult;
///
/// let denied = ToolResult::Denied { reason: Some("not that one".into()) };
/// assert!(denied.is_error());
/// assert_eq!(
///     denied.text(),
///     "This tool call was denied. It was not executed, and it is not queued. Reason: not that one"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolResult {
    /// What the tool returned.
    Output(#[serde(deserialize_with = "Json::deserialize_received")] Json),
    /// Why the tool failed.
    Error(String),
    /// The person said no: the tool did not run.
    Denied {
        /// Why, in the person's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The tool did not run.
    NotExecuted {
        /// Why.
        why: NotExecuted,
    },
    /// There is no result, and nobody knows whether the tool ran: it was interrupted, or is run by
    /// somebody who did not say.
    Unknown {
        /// What it reported last.
        #[serde(default, deserialize_with = "so_far", skip_serializing_if = "Option::is_none")]
        so_far: Option<Json>,
    },
}

/// Why a tool did not run. Written out, it is what the model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotExecuted {
    /// The person was asked and may still answer.
    AwaitsApproval,
    /// The client is to run it, and may still.
    AwaitsClient,
    /// Nobody answered: the person wrote on instead.
    Unanswered,
    /// Nobody answered in time.
    Expired,
    /// It is no longer permitted.
    Revoked,
    /// The answer did not count, and nobody is told why; or a server refused by itself.
    Refused,
}

impl ToolResult {
    /// What the model reads: of an output that is a string its text, else its JSON; of all the
    /// others a sentence that is never blank.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            ToolResult::Output(output) => text_of(output),
            ToolResult::Error(text) if text.trim().is_empty() => TOOL_FAILED.into(),
            ToolResult::Error(text) => text.into(),
            ToolResult::Denied { reason } => match reason.as_deref().map(str::trim) {
                None | Some("") => DENIED.into(),
                Some(reason) => format!("{DENIED} Reason: {reason}").into(),
            },
            ToolResult::NotExecuted { why } => why.text().into(),
            ToolResult::Unknown { so_far: None } => UNKNOWN.into(),
            ToolResult::Unknown { so_far: Some(output) } => {
                format!("{UNKNOWN} What it reported last: {}", text_of(output)).into()
            }
        }
    }

    /// Whether it is anything but an output.
    pub fn is_error(&self) -> bool {
        !matches!(self, ToolResult::Output(_))
    }
}

impl NotExecuted {
    fn text(self) -> &'static str {
        match self {
            NotExecuted::AwaitsApproval => {
                "This tool call was not executed. It waits for the person to approve it, and only \
                 runs then."
            }
            NotExecuted::AwaitsClient => {
                "This tool call was not executed yet. It waits for the client to run it."
            }
            NotExecuted::Unanswered => {
                "This tool call was not executed, and it is not queued: nobody answered it."
            }
            NotExecuted::Expired => {
                "This tool call was not executed, and it is not queued: nobody approved it in time."
            }
            NotExecuted::Revoked => {
                "This tool call was not executed, and it is not queued: it is no longer permitted."
            }
            NotExecuted::Refused => "This tool call was not executed, and it is not queued.",
        }
    }
}

impl fmt::Display for NotExecuted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<NotExecuted> for ToolResult {
    fn from(why: NotExecuted) -> Self {
        ToolResult::NotExecuted { why }
    }
}

fn text_of(output: &Json) -> Cow<'_, str> {
    let text = output.as_str().trim();
    if text.starts_with('"') { unescaped(text) } else { text.into() }
}

fn so_far<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize_received(deserializer).map(Some)
}

const DENIED: &str = "This tool call was denied. It was not executed, and it is not queued.";
const UNKNOWN: &str = "This tool call has no result: it was interrupted, or nobody answered it. \
                       Whether it had an effect is not known, and it is not queued. Verify before \
                       repeating it.";
