//! [`ChatResponse`]: the complete response to a request.

use super::conversation::{Chat, StopReason};
use super::error::ChatError;
use super::inner::Inner;
use ui_message_stream::approval::{PendingApproval, PendingToolCall};
use ui_message_stream::chunk::{Chunk, FinishReason};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::MessageId;
use ui_message_stream::json::Json;
use ui_message_stream::message::UiMessage;
use ui_message_stream::response::ResponseOutcome;

/// The complete response to a request, for clients that do not read a stream.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ChatResponse {
    /// The assistant message as the server stores it. `None` if the agent emitted no events.
    pub message: Option<UiMessage>,
    /// The structured output of the message. `None` if the agent does not produce structured
    /// output, if the run has not ended with [`ResponseOutcome::Finished`] and
    /// [`StopReason::Stop`], or if the message does not contain valid output.
    pub output: Option<Json>,
    /// Why the message ends, and what has to happen before it continues.
    pub stop_reason: StopReason,
    /// The approval requests of this conversation that wait for the user.
    pub approvals: Vec<PendingApproval>,
    /// The tool calls that the client has to execute.
    pub client_executed: Vec<PendingToolCall>,
    /// How the run ended. It is [`ResponseOutcome::Failed`] too if the agent produces structured
    /// output and the finished message does not contain valid output.
    pub outcome: ResponseOutcome,
}

debug_without_content!(ChatResponse { stop_reason, outcome; approvals, client_executed });

/// How a run has ended.
pub(super) struct ResponseEnd {
    outcome: ResponseOutcome,
    pub(super) reason: Option<FinishReason>,
}

impl ResponseEnd {
    /// Returns the end of a run whose message is stored, and has this end if it did not finish.
    pub(super) fn of_stored(end: Option<&AgentEvent>) -> Self {
        let outcome = match end {
            None => ResponseOutcome::Finished,
            Some(AgentEvent::Error { .. }) => ResponseOutcome::Failed,
            Some(_) => ResponseOutcome::Aborted,
        };
        ResponseEnd { outcome, reason: None }
    }

    /// Returns the end that this chunk tells the client, if it tells one.
    pub(super) fn of_chunk(chunk: &Chunk<'_>) -> Option<Self> {
        let (outcome, reason) = match chunk {
            Chunk::Finish { finish_reason: Some(FinishReason::Interrupted), .. } => {
                (ResponseOutcome::Failed, None)
            }
            Chunk::Finish { finish_reason, .. } => (ResponseOutcome::Finished, *finish_reason),
            Chunk::Abort { .. } => (ResponseOutcome::Aborted, None),
            Chunk::Error { .. } => (ResponseOutcome::Failed, None),
            _ => return None,
        };
        Some(ResponseEnd { outcome, reason })
    }

    /// Whether the run has finished, and its frames do not say why its model has stopped.
    pub(super) fn lacks_reason(&self) -> bool {
        self.outcome == ResponseOutcome::Finished && self.reason.is_none()
    }

    /// Returns the response of a run that has written this message of the stored conversation.
    pub(super) async fn into_response(
        self,
        chats: &Inner,
        chat: Chat,
        message_id: &MessageId,
    ) -> Result<ChatResponse, ChatError> {
        let ResponseEnd { outcome, reason } = self;
        let pending = chats.approvals.for_chat(&chat.owner, &chat.id).pending().await?;
        let stop_reason = chat.stop_reason(message_id).with_finish_reason(reason);
        let message = chat.message(message_id).cloned();
        let is_answered = outcome == ResponseOutcome::Finished && stop_reason == StopReason::Stop;
        let answer = message.as_ref().filter(|_| is_answered);
        let (output, outcome) =
            match answer.and_then(|message| chats.agent.structured_output(message)) {
                Some(Ok(output)) => (Some(output), outcome),
                // A repeated request gets the stored message, and the chat holds only the end of its
                // last run: this one may have failed, or was cut off.
                Some(Err(_)) => (None, ResponseOutcome::Failed),
                None => (None, outcome),
            };
        Ok(ChatResponse {
            output,
            message,
            stop_reason,
            approvals: pending,
            client_executed: chat.client_executed,
            outcome,
        })
    }
}
