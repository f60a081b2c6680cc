//! [`ReduceError`]: what the client throws at, by chunk and id.

/// Why the client throws at a chunk. The message stays as it was before. (So it does in the client,
/// but for the id that a `start` gave it whose metadata cannot be merged.)
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// A delta or an end of a text or reasoning part that is not open: it never began, it has
    /// ended, or the step has.
    #[error("`{kind}` names part {id:?}, which is not open")]
    PartNotOpen {
        /// The chunk's `type`.
        kind: &'static str,
        /// The part's id.
        id: Box<str>,
    },
    /// A piece of an input that did not begin: neither with `tool-input-start`, nor in a message
    /// that is continued.
    #[error("`tool-input-delta` names tool call {tool_call_id:?}, whose input did not begin")]
    InputNotBegun {
        /// The call.
        tool_call_id: Box<str>,
    },
    /// An approval request or an output of a call that the message does not hold.
    #[error("`{kind}` names tool call {tool_call_id:?}, which the message does not hold")]
    UnknownToolCall {
        /// The chunk's `type`.
        kind: &'static str,
        /// The call.
        tool_call_id: Box<str>,
    },
    /// Metadata with fields, while the message's is a text, a number or a boolean.
    #[error("`{kind}` brings metadata with fields, and the message's is a text, number or boolean")]
    MetadataNotMergeable {
        /// The chunk's `type`.
        kind: &'static str,
    },
    /// Metadata that is to be merged nests deeper than 1 000 levels. A browser's stack ends at
    /// some more.
    #[error("`{kind}` brings metadata that nests deeper than 1000 levels")]
    MetadataTooDeep {
        /// The chunk's `type`.
        kind: &'static str,
    },
    /// A kind that no `ai@6` knows.
    #[error("{kind:?} is no kind of chunk")]
    UnknownKind {
        /// The chunk's `type`.
        kind: Box<str>,
    },
    /// An earlier chunk failed, and the client reads nothing after it.
    #[error("an earlier chunk of the stream failed")]
    AlreadyFailed,
}

impl ReduceError {
    /// The `type` of the chunk that failed.
    pub fn kind(&self) -> Option<&str> {
        match self {
            ReduceError::PartNotOpen { kind, .. }
            | ReduceError::UnknownToolCall { kind, .. }
            | ReduceError::MetadataNotMergeable { kind }
            | ReduceError::MetadataTooDeep { kind } => Some(kind),
            ReduceError::InputNotBegun { .. } => Some("tool-input-delta"),
            ReduceError::UnknownKind { kind } => Some(kind),
            ReduceError::AlreadyFailed => None,
        }
    }

    /// The id of the part or tool call that the chunk named, if that is what is wrong.
    pub fn id(&self) -> Option<&str> {
        match self {
            ReduceError::PartNotOpen { id, .. } => Some(id),
            ReduceError::InputNotBegun { tool_call_id }
            | ReduceError::UnknownToolCall { tool_call_id, .. } => Some(tool_call_id),
            _ => None,
        }
    }
}
