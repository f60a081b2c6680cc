//! [`TranslateError`]: the rule that an event breaks.

use crate::id::{ApprovalId, PartId, ToolCallId, log_text};

/// Why an event was not translated, or not completely.
///
/// The stream stays valid: the event is dropped, and the following events are translated as if it
/// had not occurred. Each variant is a fault of the agent or its adapter, and should be logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TranslateError {
    /// A result, a delta or an approval request for a call that neither this response nor the
    /// continued message announced. The client would throw.
    #[error("tool call {0:?} was never announced")]
    UnknownCall(ToolCallId),
    /// A call is announced again while it has no result.
    #[error("tool call {0:?} is announced again before it has a result")]
    CallOpen(ToolCallId),
    /// A second result, or an approval request, for a call that has its result.
    #[error("tool call {0:?} already has its result")]
    CallSettled(ToolCallId),
    /// A result or an approval request for a call whose input is still streaming and is not yet
    /// complete JSON.
    #[error("the input of tool call {0:?} is not complete")]
    InputOpen(ToolCallId),
    /// A delta for a call whose input is complete.
    #[error("the input of tool call {0:?} is already complete")]
    InputComplete(ToolCallId),
    /// A second approval request while the first is unanswered.
    #[error("tool call {0:?} already waits for an approval")]
    ApprovalOpen(ToolCallId),
    /// An approval id that another request in the message has: one click would answer both.
    #[error("approval id {0:?} is already in use in this message")]
    ApprovalIdUsed(ApprovalId),
    /// The answer to an approval request that no call of the message has. The client would throw.
    #[error("no call of this message has the approval id {0:?}")]
    UnknownApproval(ApprovalId),
    /// An approval request for a call that is already running.
    #[error("tool call {0:?} already runs and cannot ask for an approval")]
    AlreadyRunning(ToolCallId),
    /// An output of a call that the user denied.
    #[error("tool call {0:?} was denied and cannot have an output")]
    Denied(ToolCallId),
    /// The end of a part that is not open. `None`: the end of the current part.
    #[error("{} is not open and cannot end", part(.0.as_ref()))]
    UnknownPart(Option<PartId>),
    /// Metadata that is not an object, or metadata for a continued message whose own metadata is
    /// not an object. The client would throw while it merges them. A `Finish` with such metadata
    /// ends the run without it.
    #[error("message metadata is not an object")]
    Metadata,
    /// A source, by its id, whose URL is neither `https:` nor `http:`. A page would make it a link,
    /// and the link of a `javascript:` URL runs in the page.
    #[error("source \"{}\" has a URL that is neither `https:` nor `http:`", log_text(.0))]
    SourceUrl(String),
    /// A file whose URL is neither `https:` nor `http:` nor `data:`. A page may make it a link too.
    #[error("a file has a URL that is neither `https:` nor `http:` nor `data:`")]
    FileUrl,
    /// An event after the end.
    #[error("the run has already ended")]
    Ended,
}

fn part(id: Option<&PartId>) -> String {
    id.map_or_else(|| "the part being written".to_owned(), |id| format!("part {id:?}"))
}
