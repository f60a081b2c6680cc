//! [`ClientReader`]: the reader of the real client for which a stream is checked.

/// A reader of the real client. The readers differ in what a `start` and an `error` chunk do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ClientReader {
    /// `readUIMessageStream`: a `start` with another id than the message empties the message, and
    /// reading continues after an `error`.
    #[default]
    ReadUiMessageStream,
    /// `useChat` with the response to a POST: a `start` with another id changes the message's id,
    /// and an `error` ends the reading.
    Chat,
    /// `useChat` with a resumed stream: the first `start` empties the message, and so does a
    /// `start` with another id. An `error` ends the reading. The message on the page is continued
    /// only if it holds an incomplete tool input.
    ChatResume,
}

impl ClientReader {
    /// Returns whether a `start` chunk empties the message.
    pub(super) fn resets_message(self, is_first: bool, has_other_id: bool) -> bool {
        match self {
            ClientReader::ReadUiMessageStream => has_other_id,
            ClientReader::Chat => false,
            ClientReader::ChatResume => is_first || has_other_id,
        }
    }

    /// Returns whether the client reads nothing after an `error` chunk.
    pub(super) fn stops_at_error(self) -> bool {
        self != ClientReader::ReadUiMessageStream
    }
}
