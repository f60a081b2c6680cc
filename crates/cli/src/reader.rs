//! Whose reading of a stream it is.

use clap::ValueEnum;
use ui_message_stream::UiMessage;
use ui_message_stream::checker::{self, Checker};
use ui_message_stream::message::{ToolPart, ToolState};
use ui_message_stream::reducer::{AfterError, Reducer, ResetOn};

/// A reader of the real client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reader {
    /// `readUIMessageStream`: another id empties the message, an error is passed over.
    ReadUiMessageStream,
    /// `useChat`, the response to a POST: another id renames, an error is the end.
    Chat,
    /// `useChat`, a resumed stream: the first start empties the message, an error is the end.
    ChatResume,
}

impl Reader {
    /// Reduces a stream that goes on with this message, if with any.
    pub(crate) fn reducer(self, message: Option<UiMessage>) -> Reducer {
        // A chat that resumes goes on with a message only for the sake of an input that was cut off.
        let is_cut_off = |part: &ToolPart| matches!(part.state, ToolState::InputStreaming { .. });
        let message = message
            .filter(|message| self != Reader::ChatResume || message.tool_parts().any(is_cut_off));
        let reducer = message.map_or_else(Reducer::new, Reducer::continuing);
        match self {
            Reader::ReadUiMessageStream => {
                reducer.with_reset_on(ResetOn::OtherId).with_after_error(AfterError::ReadOn)
            }
            Reader::Chat => reducer,
            Reader::ChatResume => reducer.with_reset_on(ResetOn::FirstStart),
        }
    }

    /// Checks a stream that goes on with this message, if with any.
    pub(crate) fn checker(self, message: Option<&UiMessage>) -> Checker {
        message.map_or_else(Checker::new, Checker::continuing).with_reader(match self {
            Reader::ReadUiMessageStream => checker::Reader::ReadUiMessageStream,
            Reader::Chat => checker::Reader::Chat,
            Reader::ChatResume => checker::Reader::ChatResume,
        })
    }
}
