//! [`ToolResult`]: the result of a tool call, and its text for the model.
//!
//! If a denial is only mentioned in passing, models claim success or say that the call is waiting.
//! Therefore each text first says whether the call was executed, and that it is not queued.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::UserText;
use crate::approval::{DeferredOutcome, DeferredToolResult, ToolOutcome};
use crate::json::{Json, unescaped};

/// The result of a tool call.
///
/// ```
/// use ui_message_stream::model::ToolResult;
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
    /// The output that the tool returned.
    Output(#[serde(deserialize_with = "Json::deserialize_received")] Json),
    /// The tool failed, with this message.
    Error(String),
    /// The user denied the call. The tool did not run.
    Denied {
        /// The reason that the user gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The tool is running: the user approved the call before another message. A later model call reads the
    /// result.
    Executing,
    /// The tool did not run.
    NotExecuted {
        /// The reason.
        why: NotExecutedReason,
    },
    /// There is no result, and it is unknown whether the tool ran: the call was interrupted, the
    /// component that executes the tool reported no result, or a host without records cannot know
    /// whether an earlier request executed it.
    OutcomeUnknown {
        /// The last preliminary output.
        #[serde(default, deserialize_with = "so_far", skip_serializing_if = "Option::is_none")]
        so_far: Option<Json>,
    },
}

/// The reason why a tool did not run. Its `Display` text is what the model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotExecutedReason {
    /// The user was asked for approval and can still respond.
    AwaitsApproval,
    /// The client must execute the call and can still do so.
    AwaitsClient,
    /// The approval request has no response: the user sent another message instead.
    Unanswered,
    /// The user approved the call, but the approval arrived with or after a newer message.
    Lapsed,
    /// The approval request expired without a response.
    Expired,
    /// The call is no longer permitted.
    Revoked,
    /// The approval response was rejected, for a reason that is not disclosed, or a server refused
    /// the call.
    Rejected,
}

impl ToolResult {
    /// Returns the text that the model reads.
    ///
    /// For an output that is a JSON string, this is the string; for any other output, its JSON
    /// text. For all other results it is a sentence, which is never blank.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            ToolResult::Output(output) => output_text(output),
            ToolResult::Error(text) if text.trim().is_empty() => UserText::ToolFailed.text().into(),
            ToolResult::Error(text) => text.into(),
            ToolResult::Denied { reason } => match reason.as_deref().map(str::trim) {
                None | Some("") => DENIED.into(),
                Some(reason) => format!("{DENIED} Reason: {reason}").into(),
            },
            ToolResult::Executing => EXECUTING.into(),
            ToolResult::NotExecuted { why } => why.text().into(),
            ToolResult::OutcomeUnknown { so_far: None } => UNKNOWN.into(),
            ToolResult::OutcomeUnknown { so_far: Some(output) } => {
                format!("{UNKNOWN} What it reported last: {}", output_text(output)).into()
            }
        }
    }

    /// Returns a result that only the client claims, with the sentence that says so to the model.
    pub(super) fn unverified(self) -> Self {
        let text = format!("{UNVERIFIED} {}", self.text());
        match self {
            ToolResult::Output(_) => ToolResult::Output(Json::string(&text)),
            ToolResult::Error(_) => ToolResult::Error(text),
            other => other,
        }
    }

    /// Returns a result with the sentence that tells the model that the call ran with another input.
    pub(super) fn of_changed_input(self, input: &Json) -> Self {
        let text = format!("{CHANGED} {input}\nThe result is: {}", self.text());
        match self {
            ToolResult::Output(_) => ToolResult::Output(Json::string(&text)),
            // The call may have failed before it ran.
            ToolResult::Error(_) | ToolResult::Executing | ToolResult::OutcomeUnknown { .. } => {
                ToolResult::Error(format!("{} {CHANGED_BEFORE} {input}", self.text()))
            }
            other => other,
        }
    }

    /// Whether the result is anything but an output.
    pub fn is_error(&self) -> bool {
        !matches!(self, ToolResult::Output(_))
    }
}

impl NotExecutedReason {
    fn text(self) -> &'static str {
        match self {
            NotExecutedReason::AwaitsApproval => {
                "This tool call was not executed. It waits for the person to approve it, and only \
                 runs then."
            }
            NotExecutedReason::AwaitsClient => {
                "This tool call was not executed yet. It waits for the client to run it."
            }
            NotExecutedReason::Unanswered => {
                "This tool call was not executed, and it is not queued: nobody answered it."
            }
            NotExecutedReason::Lapsed => {
                "This tool call was not executed, and it is not queued. The person approved it, but \
                 sent a new message before the approval arrived, so the approval lapsed. Read that \
                 message first, and ask again if the call is still wanted."
            }
            NotExecutedReason::Expired => {
                "This tool call was not executed, and it is not queued: nobody approved it in time."
            }
            NotExecutedReason::Revoked => {
                "This tool call was not executed, and it is not queued: it is no longer permitted."
            }
            NotExecutedReason::Rejected => "This tool call was not executed, and it is not queued.",
        }
    }
}

impl fmt::Display for NotExecutedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<NotExecutedReason> for ToolResult {
    fn from(why: NotExecutedReason) -> Self {
        ToolResult::NotExecuted { why }
    }
}

/// The result that the model must get for a deferred call. If the approver changed the input, it says so.
impl From<&DeferredToolResult> for ToolResult {
    fn from(result: &DeferredToolResult) -> Self {
        let read = ToolResult::from(&result.outcome);
        match &result.changed_input {
            Some(input) => read.of_changed_input(&input.changed),
            None => read,
        }
    }
}

/// The result that the model must get for the outcome of a deferred call.
impl From<&DeferredOutcome> for ToolResult {
    fn from(outcome: &DeferredOutcome) -> Self {
        match outcome {
            DeferredOutcome::Executed { outcome: ToolOutcome::Output(output) }
            | DeferredOutcome::Output { output } => ToolResult::Output(output.clone()),
            DeferredOutcome::Executed { outcome: ToolOutcome::Failed(error) }
            | DeferredOutcome::OutputError { error_text: error } => {
                ToolResult::Error(error.clone())
            }
            DeferredOutcome::Executed { outcome: ToolOutcome::HandedToClient(_) } => {
                NotExecutedReason::AwaitsClient.into()
            }
            DeferredOutcome::Executing { .. } => ToolResult::Executing,
            // The caller has not said whether it executes the call.
            DeferredOutcome::Approved { .. }
            | DeferredOutcome::OutcomeUnknown
            | DeferredOutcome::ForwardedToProvider
            | DeferredOutcome::ForwardToProvider { approved: true, .. } => {
                ToolResult::OutcomeUnknown { so_far: None }
            }
            DeferredOutcome::Denied { reason }
            | DeferredOutcome::ForwardToProvider { approved: false, reason, .. } => {
                ToolResult::Denied { reason: reason.clone() }
            }
            DeferredOutcome::Expired => NotExecutedReason::Expired.into(),
            DeferredOutcome::Superseded => NotExecutedReason::Unanswered.into(),
            DeferredOutcome::Lapsed => NotExecutedReason::Lapsed.into(),
            DeferredOutcome::Revoked => NotExecutedReason::Revoked.into(),
            DeferredOutcome::Rejected | DeferredOutcome::Forgotten => {
                NotExecutedReason::Rejected.into()
            }
        }
    }
}

fn output_text(output: &Json) -> Cow<'_, str> {
    let text = output.as_str().trim();
    if text.starts_with('"') { unescaped(text) } else { text.into() }
}

fn so_far<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize_received(deserializer).map(Some)
}

const DENIED: &str = "This tool call was denied. It was not executed, and it is not queued.";
const EXECUTING: &str = "This tool call is running, and has no result yet. When it has ended, you read its result \
                         here in place of this text. Do not repeat the call.";
const UNVERIFIED: &str = "The client sent this result. The server has no record of this tool call, \
                          so the call and its result may be invented. The result is:";
const CHANGED: &str = "The person changed the input of this call and approved it. It ran with this \
                       input:";
const CHANGED_BEFORE: &str = "The person had changed the input of this call to:";
const UNKNOWN: &str = "This tool call has no result here. It is not known whether it was executed, \
                       and it is not queued. Verify before repeating it.";
