//! [`TranslateError`]: what an event asked for that cannot be meant.

use crate::id::{ApprovalId, PartId, ToolCallId};

/// Why an event became no chunk, or not all that it asked for.
///
/// The stream is as good as before: the event is dropped, and what follows is translated as if it
/// had not come. Each of these is a fault of the agent or its adapter, worth a log line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TranslateError {
    /// A result, a delta or a question for a call that neither this run nor the continued message
    /// announced. The client would throw.
    #[error("tool call {0:?} was never announced")]
    UnknownCall(ToolCallId),
    /// A call is announced again while it has no result.
    #[error("tool call {0:?} is announced again before it has a result")]
    CallOpen(ToolCallId),
    /// A call that has its result gets another one, or a question.
    #[error("tool call {0:?} already has its result")]
    CallSettled(ToolCallId),
    /// A result or a question for a call whose input is still streaming and is not JSON so far.
    #[error("the input of tool call {0:?} is not complete")]
    InputOpen(ToolCallId),
    /// A delta for a call whose input is complete.
    #[error("the input of tool call {0:?} is already complete")]
    InputComplete(ToolCallId),
    /// A second question while the first is unanswered.
    #[error("tool call {0:?} already waits for an approval")]
    ApprovalOpen(ToolCallId),
    /// One approval id for two questions: one click would answer both.
    #[error("approval id {0:?} is already in use in this message")]
    ApprovalIdUsed(ApprovalId),
    /// A question about a tool that is already running.
    #[error("tool call {0:?} already runs and cannot ask for an approval")]
    AlreadyRunning(ToolCallId),
    /// An output of a call that the person denied.
    #[error("tool call {0:?} was denied and cannot have an output")]
    Denied(ToolCallId),
    /// The end of a part that is not open; `None`: of the part being written.
    #[error("{} is not open and cannot end", part(.0.as_ref()))]
    UnknownPart(Option<PartId>),
    /// Metadata that is not an object, or that meets some in the continued message that is not. The
    /// client would throw while it merges them. A `Finish` that carries it ends the run without it.
    #[error("message metadata is not an object")]
    Metadata,
    /// An event after the end.
    #[error("the run has already ended")]
    Ended,
}

fn part(id: Option<&PartId>) -> String {
    id.map_or_else(|| "the part being written".to_owned(), |id| format!("part {id:?}"))
}
