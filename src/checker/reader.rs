//! [`Reader`]: which of the real client's readers a stream is held against.

/// A reader of the real client. They differ in what a `start` and an `error` chunk do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Reader {
    /// `readUIMessageStream`: a `start` with another id than the message empties it, and reading
    /// goes on behind an `error`.
    #[default]
    ReadUiMessageStream,
    /// `useChat`, the response to a POST: another id renames the message, an `error` is the end.
    Chat,
    /// `useChat`, a resumed stream: the first `start` empties the message, another id does so too,
    /// and an `error` is the end. What the page shows is gone on with only if it holds a tool
    /// input that was cut off.
    ChatResume,
}

impl Reader {
    /// Whether a `start` chunk empties the message.
    pub(super) fn empties(self, is_first: bool, has_other_id: bool) -> bool {
        match self {
            Reader::ReadUiMessageStream => has_other_id,
            Reader::Chat => false,
            Reader::ChatResume => is_first || has_other_id,
        }
    }

    /// Whether nothing is read behind an `error` chunk.
    pub(super) fn stops_at_error(self) -> bool {
        self != Reader::ReadUiMessageStream
    }
}
