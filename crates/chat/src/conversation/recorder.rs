//! [`Recorder`]: builds the assistant message that the server stores from the events of an agent.

use std::borrow::Cow;

use ui_message_stream::approval::{DeferredOutcome, DeferredToolResult, PendingToolCall};
use ui_message_stream::chunk::{Chunk, Version};
use ui_message_stream::event::{AgentEvent, Executor};
use ui_message_stream::id::{MessageId, ToolCallId};
use ui_message_stream::message::{ToolPart, ToolState, UiMessage};
use ui_message_stream::reducer::Reducer;
use ui_message_stream::translator::{ResultKind, Translator};

/// Builds an assistant message from the events of an agent.
///
/// The message is the one that a client holds after it has read the whole response. The server
/// builds the message itself, because a client may have read less, and can forge the message that
/// it sends back.
///
/// ```
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream_chat::Recorder;
///
/// let mut recorder = Recorder::new("m2");
/// recorder.handle_event(&AgentEvent::text("Hello"));
/// let recorded = recorder.finish().expect("the recorder got an event");
/// assert_eq!(recorded.message.id.as_str(), "m2");
/// assert!(recorded.client_executed.is_empty());
/// ```
#[doc(alias = "persist")]
pub struct Recorder {
    translator: Translator,
    reducer: Reducer,
    client_executed: Vec<PendingToolCall>,
    has_events: bool,
}

debug_without_content!(Recorder { has_events; client_executed });

/// A message that a [`Recorder`] has built, and the properties of its calls that the message does
/// not show. [`Chat::upsert_message`](super::Chat::upsert_message) stores it.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct RecordedMessage {
    /// The message.
    pub message: UiMessage,
    /// The calls in it that the client has to execute.
    pub client_executed: Vec<PendingToolCall>,
    /// The outcomes of the calls in it that were not executed, or of which it is unknown whether
    /// they were executed. The message shows only an error text for each.
    pub call_outcomes: Vec<DeferredToolResult>,
}

debug_without_content!(RecordedMessage { ; client_executed, call_outcomes });

impl From<UiMessage> for RecordedMessage {
    fn from(message: UiMessage) -> Self {
        RecordedMessage { message, client_executed: Vec::new(), call_outcomes: Vec::new() }
    }
}

impl Recorder {
    /// Creates a recorder of a new message with this id.
    pub fn new(id: impl Into<MessageId>) -> Self {
        Self::from_parts(Translator::new(id), Reducer::new())
    }

    /// Creates a recorder that continues this message.
    pub fn continuing(message: UiMessage) -> Self {
        Self::from_parts(Translator::continuing(&message), Reducer::continuing(message))
    }

    fn from_parts(translator: Translator, reducer: Reducer) -> Self {
        let translator = translator.with_version(Version::NEWEST).recording_model_ids();
        let reducer = reducer.without_input_texts();
        Recorder { translator, reducer, client_executed: Vec::new(), has_events: false }
    }

    /// Records an approval request as a client without approvals shows it, see
    /// [`Translator::without_approvals`]: the call gets an error as its result.
    #[must_use]
    pub fn without_approvals(mut self) -> Self {
        self.translator = self.translator.without_approvals();
        self
    }

    /// Adds an event of the agent to the message. An invalid event is ignored: the response does
    /// not contain it either.
    pub fn handle_event(&mut self, event: &AgentEvent) {
        self.has_events = true;
        match event {
            AgentEvent::ToolInput { call, input } if call.executed_by == Executor::Client => {
                let id = call.id.on_wire();
                let name = call.tool_name.to_string();
                self.client_executed.push(PendingToolCall::client_executed(
                    id,
                    name,
                    input.clone(),
                ));
            }
            // The output of a client would need no approval.
            AgentEvent::ApprovalRequested { tool_call_id, .. } => {
                let id = tool_call_id.on_wire();
                self.client_executed.retain(|call| call.tool_call_id != id);
            }
            _ => {}
        }
        let reducer = &mut self.reducer;
        // The response reports the error of an invalid event.
        let _ = self.translator.handle_event(event, &mut |chunk| {
            push_recorded(&chunk, reducer);
        });
    }

    /// Returns the message with the events that were added so far.
    pub fn message(&mut self) -> &UiMessage {
        self.reducer.message()
    }

    /// Returns the message with the events that were added so far, to store it before its end. The
    /// same recorder then continues the stored message.
    pub fn snapshot(&mut self) -> RecordedMessage {
        let message = self.message().clone();
        let mut call_outcomes = Vec::new();
        for (kind, outcome) in [
            (ResultKind::Rejected, DeferredOutcome::Rejected),
            (ResultKind::OutcomeUnknown, DeferredOutcome::OutcomeUnknown),
        ] {
            let calls: Vec<&ToolCallId> = self.translator.settled_as(kind).collect();
            let parts = message.tool_parts().filter(|part| calls.contains(&&part.tool_call_id));
            call_outcomes
                .extend(parts.map(|part| call_outcome(&message.id, part, outcome.clone())));
        }
        let client_executed = self.client_executed.clone();
        RecordedMessage { message, client_executed, call_outcomes }
    }

    /// Ends the message and returns it. Returns `None` if no event was added.
    pub fn finish(mut self) -> Option<RecordedMessage> {
        let reducer = &mut self.reducer;
        self.translator.end(&mut |chunk| {
            push_recorded(&chunk, reducer);
        });
        self.has_events.then(|| self.snapshot())
    }
}

/// Returns the entry of [`Chat::call_outcomes`](super::Chat::call_outcomes) for this call.
pub(super) fn call_outcome(
    message_id: &MessageId,
    part: &ToolPart,
    outcome: DeferredOutcome,
) -> DeferredToolResult {
    DeferredToolResult::new(
        message_id.clone(),
        part.tool_call_id.clone(),
        part.tool_name.clone(),
        outcome,
    )
}

/// Adds a chunk to the message of a reducer, as the newest client reads it, with two exceptions. The details of an
/// approval request are left out: a data part records them. The decision of a user is not added, because it is
/// recorded with the result of the call: then `false` is returned.
pub(crate) fn push_recorded(chunk: &Chunk<'_>, reducer: &mut Reducer) -> bool {
    if let Chunk::ToolApprovalResponse { approval_id, .. } = chunk
        && !waits_for_policy(reducer.message(), approval_id)
    {
        return false;
    }
    // A push fails only if the message lacks the call of the chunk: the message that a run has continued may be
    // unknown.
    let _ = match chunk {
        Chunk::ToolApprovalRequest { approval_id, tool_call_id, reason, is_automatic, .. } => {
            reducer.push_chunk(&Chunk::ToolApprovalRequest {
                approval_id: Cow::Borrowed(approval_id),
                tool_call_id: Cow::Borrowed(tool_call_id),
                approval_descriptor: None,
                input_schema_input: None,
                reason: reason.as_deref().map(Cow::Borrowed),
                is_automatic: *is_automatic,
                signature: None,
            })
        }
        _ => reducer.push_chunk(chunk),
    };
    true
}

/// Whether a call of this message waits for this approval, which a policy decides and not a user.
fn waits_for_policy(message: &UiMessage, approval_id: &str) -> bool {
    message.tool_parts().any(|part| match &part.state {
        ToolState::ApprovalRequested { approval, .. } => {
            *approval.id == *approval_id && approval.details.is_automatic == Some(true)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ui_message_stream::event::ToolCall;
    use ui_message_stream::json::Json;

    #[test]
    fn metadata_that_old_clients_do_not_receive_is_recorded() {
        let mut recorder = Recorder::new("m2");
        let call = ToolCall::new("c1", "search").provider_executed();
        recorder.handle_event(&AgentEvent::tool_input(call, Json::null()));
        let output = r#"{"type": "tool-output-available", "toolCallId": "c1", "output": 1,
            "providerMetadata":{"provider":{"id":"item_1"}}}"#;
        let output = serde_json::from_str(output).unwrap();
        recorder.handle_event(&AgentEvent::Chunk(Box::new(output)));
        let recorded = recorder.finish().unwrap();
        let message = serde_json::to_string(&recorded.message).unwrap();
        assert!(
            message.contains(r#""resultProviderMetadata":{"provider":{"id":"item_1"}}"#),
            "{message}"
        );
    }
}
