//! [`ReduceError`]: the errors at which the client throws, by chunk type and id.

/// The reason why the client throws at a chunk. The message stays as it was before the chunk. There
/// is one exception, which the client has too: a `start` whose metadata cannot be merged has
/// already changed the message's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// A delta or an end of a text or reasoning part that is not open. The part never began, it has
    /// ended, or its step has ended.
    #[error("`{kind}` names part {id:?}, which is not open")]
    PartNotOpen {
        /// The `type` of the chunk.
        kind: &'static str,
        /// The id of the part.
        id: Box<str>,
    },
    /// An input delta for a tool call whose input did not begin, neither with `tool-input-start`
    /// nor in the message that the stream continues.
    #[error("`tool-input-delta` names tool call {tool_call_id:?}, whose input did not begin")]
    InputNotBegun {
        /// The id of the tool call.
        tool_call_id: Box<str>,
    },
    /// An approval request or an output for a call that the message does not hold.
    #[error("`{kind}` names tool call {tool_call_id:?}, which the message does not hold")]
    UnknownToolCall {
        /// The `type` of the chunk.
        kind: &'static str,
        /// The id of the tool call.
        tool_call_id: Box<str>,
    },
    /// An answer to an approval request that the message does not hold.
    #[error("`tool-approval-response` answers a request that the message does not hold")]
    UnknownApproval {
        /// The id of the approval request.
        approval_id: Box<str>,
    },
    /// Metadata with fields, while the message's metadata is a string, a number or a boolean.
    #[error("`{kind}` brings metadata with fields, and the message's is a text, number or boolean")]
    MetadataNotMergeable {
        /// The `type` of the chunk.
        kind: &'static str,
    },
    /// Metadata to be merged that nests deeper than 1 000 levels.
    #[error("`{kind}` brings metadata that nests deeper than 1000 levels")]
    MetadataTooDeep {
        /// The `type` of the chunk.
        kind: &'static str,
    },
    /// A chunk type that the client does not know, or a `finish` with such a reason.
    #[error("{kind:?} is no kind of chunk")]
    UnknownKind {
        /// The `type` of the chunk.
        kind: Box<str>,
    },
    /// An earlier chunk failed. The client reads nothing after it.
    #[error("an earlier chunk of the stream failed")]
    AlreadyFailed,
}

impl ReduceError {
    /// Returns the `type` of the chunk that failed. `None` for
    /// [`AlreadyFailed`](Self::AlreadyFailed).
    pub fn kind(&self) -> Option<&str> {
        match self {
            ReduceError::PartNotOpen { kind, .. }
            | ReduceError::UnknownToolCall { kind, .. }
            | ReduceError::MetadataNotMergeable { kind }
            | ReduceError::MetadataTooDeep { kind } => Some(kind),
            ReduceError::InputNotBegun { .. } => Some("tool-input-delta"),
            ReduceError::UnknownApproval { .. } => Some("tool-approval-response"),
            ReduceError::UnknownKind { kind } => Some(kind),
            ReduceError::AlreadyFailed => None,
        }
    }

    /// Returns the id of the part or tool call that the chunk named, if the id caused the error.
    pub fn id(&self) -> Option<&str> {
        match self {
            ReduceError::PartNotOpen { id, .. } => Some(id),
            ReduceError::InputNotBegun { tool_call_id }
            | ReduceError::UnknownToolCall { tool_call_id, .. } => Some(tool_call_id),
            ReduceError::UnknownApproval { approval_id } => Some(approval_id),
            _ => None,
        }
    }
}
