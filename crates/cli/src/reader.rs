//! The readers of the real client.

use clap::ValueEnum;
use ui_message_stream::UiMessage;
use ui_message_stream::checker::{self, Checker};
use ui_message_stream::message::{ToolPart, ToolState};
use ui_message_stream::reducer::{AfterError, Reducer, ResetOn};

/// A reader of the real client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reader {
    /// `readUIMessageStream`: a `start` with another id empties the message. Reading continues after
    /// an `error`.
    ReadUiMessageStream,
    /// `useChat`, the response to a POST: a `start` with another id renames the message. Reading
    /// ends at an `error`.
    Chat,
    /// `useChat`, a resumed stream: the first `start` empties the message. Reading ends at an
    /// `error`.
    ChatResume,
}

impl Reader {
    /// Returns the reader of a stream if the arguments name none.
    pub(crate) fn default_for(is_response: bool) -> Self {
        if is_response { Reader::Chat } else { Reader::ReadUiMessageStream }
    }

    /// Creates a reducer for a stream that continues this message, if there is one.
    pub(crate) fn reducer(self, message: Option<UiMessage>) -> Reducer {
        // A resumed chat continues a message only if the message holds an incomplete tool input.
        let is_cut_off = |part: &ToolPart| matches!(part.state, ToolState::InputStreaming { .. });
        let message = message
            .filter(|message| self != Reader::ChatResume || message.tool_parts().any(is_cut_off));
        let reducer = message.map_or_else(Reducer::new, Reducer::continuing);
        match self {
            Reader::ReadUiMessageStream => {
                reducer.with_reset_on(ResetOn::OtherId).with_after_error(AfterError::Continue)
            }
            Reader::Chat => reducer,
            Reader::ChatResume => reducer.with_reset_on(ResetOn::FirstStart),
        }
    }

    /// Creates a checker for a stream that continues this message, if there is one.
    pub(crate) fn checker(self, message: Option<&UiMessage>) -> Checker {
        message.map_or_else(Checker::new, Checker::continuing).with_reader(match self {
            Reader::ReadUiMessageStream => checker::ClientReader::ReadUiMessageStream,
            Reader::Chat => checker::ClientReader::Chat,
            Reader::ChatResume => checker::ClientReader::ChatResume,
        })
    }
}
