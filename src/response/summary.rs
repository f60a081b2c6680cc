//! [`ResponseSummary`]: how a response ended, and the message to store.

use std::borrow::Cow;
use std::collections::HashSet;

use super::open_calls::OpenCalls;
use crate::approval::PendingToolCall;
use crate::chunk::{Chunk, FinishReason};
use crate::id::ToolCallId;
use crate::message::{AnswerEnd, Part, ToolState, UiMessage};
use crate::reducer::{AfterError, Reducer};

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResponseOutcome {
    /// The agent finished, or waits for the user or the client.
    Finished,
    /// The run was stopped.
    Aborted,
    /// The response was dropped before its end.
    Disconnected,
    /// The agent failed, and the response ended with an error.
    Failed,
}

words! {
    unlisted ResponseOutcome {
        Finished "finished" Aborted "aborted" Disconnected "disconnected" Failed "failed"
    }
}

impl ResponseOutcome {
    /// Returns what the message to store says of its end.
    fn answer_end(self) -> Option<AnswerEnd> {
        match self {
            ResponseOutcome::Finished => None,
            ResponseOutcome::Aborted => Some(AnswerEnd::Stopped),
            ResponseOutcome::Disconnected => Some(AnswerEnd::Interrupted),
            ResponseOutcome::Failed => Some(AnswerEnd::Failed),
        }
    }
}

/// A summary of a response that has ended.
#[non_exhaustive]
pub struct ResponseSummary {
    /// How the response ended.
    pub outcome: ResponseOutcome,
    /// The finish reason, if the agent gave one.
    pub finish_reason: Option<FinishReason>,
    /// The assistant message to store. `None` if the response does not fit the message that was passed to
    /// [`continuing`](crate::UiMessageStream::continuing).
    ///
    /// If the response has not finished, [`UiMessage::answer_end`] returns why, and no part of the message is
    /// `streaming`. After a disconnect the client may hold less than was sent.
    pub message: Option<FinishedMessage>,
    /// The calls of this response that wait for the user or the client, with the ids on the wire. A
    /// host with a record of its own stores them together with the message.
    ///
    /// Calls of the continued message are not among them: their inputs come from the client, and
    /// the host's record holds them already.
    pub open_calls: Vec<PendingToolCall>,
}

debug_without_content!(ResponseSummary { outcome, finish_reason; open_calls });

/// The message of a response that has ended, see [`ResponseSummary::message`].
#[derive(Debug, Clone, PartialEq)]
pub enum FinishedMessage {
    /// The whole message: one that the response began, or the one that was passed to
    /// [`continuing`](crate::UiMessageStream::continuing), with what the response added to it. Outcomes of
    /// calls that the passed message does not hold are left out, and logged.
    Whole(UiMessage),
    /// Only the parts that this response added to a message that the client has posted. The id is
    /// that of the posted message.
    ///
    /// It must not replace a stored message. The posted parts are not in it, because the client may
    /// have changed or invented them, and neither are the outcomes of their calls. Pass the stored
    /// message to [`continuing`](crate::UiMessageStream::continuing) to get the whole message.
    Added(UiMessage),
}

impl FinishedMessage {
    /// Returns the message if it is whole.
    pub fn whole(self) -> Option<UiMessage> {
        match self {
            FinishedMessage::Whole(message) => Some(message),
            FinishedMessage::Added(_) => None,
        }
    }
}

/// The message that a response continues.
#[derive(Default)]
pub(super) struct Continued {
    /// As the client has posted it.
    pub(super) posted: Option<UiMessage>,
    /// As the host has stored it.
    pub(super) stored: Option<UiMessage>,
}

/// What was sent, for the summary.
pub(super) struct Sent {
    /// `None` after a chunk that does not fit.
    reducer: Option<Reducer>,
    /// The message that the client has posted.
    posted: Option<UiMessage>,
    /// Whether the reducer has the whole message.
    is_whole: bool,
    /// The calls of the reducer's message.
    calls: HashSet<ToolCallId>,
    /// How many outcomes belong to none of these calls.
    left_out: usize,
    open_calls: OpenCalls,
}

impl Sent {
    /// `begins_message` is whether the response begins a message.
    pub(super) fn new(continued: Continued, begins_message: bool) -> Self {
        let Continued { posted, stored } = continued;
        let is_whole = stored.is_some() || begins_message;
        let calls = stored.iter().flat_map(UiMessage::tool_parts);
        let calls = calls.map(|part| part.tool_call_id.clone()).collect();
        let reducer = stored.map_or_else(Reducer::new, Reducer::continuing);
        // How the response has ended comes after its error.
        let reducer = Some(reducer.with_after_error(AfterError::Continue));
        Sent { reducer, posted, is_whole, calls, left_out: 0, open_calls: OpenCalls::default() }
    }

    pub(super) fn push_chunk(&mut self, chunk: &Chunk<'_>) {
        self.open_calls.push_chunk(chunk);
        match chunk {
            Chunk::ToolInputStart { tool_call_id, .. }
            | Chunk::ToolInputAvailable { tool_call_id, .. }
            | Chunk::ToolInputError { tool_call_id, .. } => {
                self.calls.insert((&**tool_call_id).into());
            }
            // The client has posted a call that the host has not stored, or not yet.
            Chunk::ToolOutputAvailable { tool_call_id, .. }
            | Chunk::ToolOutputError { tool_call_id, .. }
            | Chunk::ToolOutputDenied { tool_call_id, .. }
            | Chunk::ToolApprovalRequest { tool_call_id, .. }
                if !self.calls.contains(&**tool_call_id) =>
            {
                self.left_out += 1;
                return;
            }
            _ => {}
        }
        if let Some(Err(error)) = self.reducer.as_mut().map(|reducer| reducer.push_chunk(chunk)) {
            tracing::error!(%error, "the response does not fit the message to store");
            self.reducer = None;
        }
    }

    /// Returns the message, which says how the response has ended, and the calls that wait.
    pub(super) fn finish(
        self,
        outcome: ResponseOutcome,
    ) -> (Option<FinishedMessage>, Vec<PendingToolCall>) {
        let Sent { reducer, posted, is_whole, left_out, open_calls, .. } = self;
        if is_whole && left_out > 0 {
            tracing::warn!(
                left_out,
                "outcomes are not in the message to store, because the message that was passed to \
                 `continuing` does not hold their calls"
            );
        }
        let message = reducer.map(|mut reducer| {
            let end = outcome.answer_end();
            let end = end.and_then(|end| reducer.message().end_metadata(Some(end)));
            if let Some(end) = end {
                let chunk = Chunk::MessageMetadata { message_metadata: Some(Cow::Owned(end)) };
                // `end_metadata` returns only what can be merged.
                let _ = reducer.push_chunk(&chunk);
            }
            let mut message = reducer.into_message();
            if let Some(posted) = &posted {
                take_decisions(&mut message, posted);
            }
            if is_whole { FinishedMessage::Whole(message) } else { FinishedMessage::Added(message) }
        });
        (message, open_calls.into_calls(outcome == ResponseOutcome::Finished))
    }
}

/// Adds the user's decisions to the calls that got an outcome from this response which fits them.
fn take_decisions(message: &mut UiMessage, posted: &UiMessage) {
    let decisions = posted.tool_parts().filter_map(|part| match &part.state {
        ToolState::ApprovalResponded { approval, .. } => Some(approval),
        _ => None,
    });
    for decision in decisions {
        let states = message.parts.iter_mut().filter_map(|part| match part {
            Part::Tool(part) => Some(&mut part.state),
            _ => None,
        });
        for state in states {
            let is_denied = matches!(state, ToolState::OutputDenied { .. });
            let (ToolState::OutputAvailable { approval: Some(approval), .. }
            | ToolState::OutputError { approval: Some(approval), .. }
            | ToolState::OutputDenied { approval: Some(approval), .. }) = state
            else {
                continue;
            };
            if approval.id == decision.id
                && approval.approved.is_none()
                && is_denied != decision.approved
            {
                approval.approved = Some(decision.approved);
                approval.reason.clone_from(&decision.reason);
            }
        }
    }
}
