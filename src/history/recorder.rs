//! [`Recorder`]: what an agent says, as the message that the server keeps.

use crate::approval::OpenCall;
use crate::chunk::Version;
use crate::event::{AgentEvent, Executor};
use crate::id::MessageId;
use crate::message::UiMessage;
use crate::reducer::Reducer;
use crate::translator::Translator;

/// Takes in what an agent says, and gives the assistant message that it makes.
///
/// It is the message that a client would hold that had read everything. What a client really holds
/// may be less, or forged, so the server's own is made from its own.
///
/// ```
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::history::Recorder;
///
/// let mut recorder = Recorder::new("m2");
/// recorder.handle_event(&AgentEvent::text("Hello"));
/// let (message, left_to_client) = recorder.finish();
/// assert_eq!(message.unwrap().id.as_str(), "m2");
/// assert!(left_to_client.is_empty());
/// ```
#[derive(Debug)]
pub struct Recorder {
    translator: Translator,
    reducer: Reducer,
    left_to_client: Vec<OpenCall>,
    said_anything: bool,
}

impl Recorder {
    /// A message of this id begins.
    pub fn new(id: impl Into<MessageId>) -> Self {
        Self::with(Translator::new(id), Reducer::new())
    }

    /// This message goes on.
    pub fn continuing(message: UiMessage) -> Self {
        Self::with(Translator::continuing(&message), Reducer::continuing(message))
    }

    fn with(translator: Translator, reducer: Reducer) -> Self {
        let translator = translator.with_version(WITH_METADATA);
        Recorder { translator, reducer, left_to_client: Vec::new(), said_anything: false }
    }

    /// Takes in what the agent says. What cannot be meant leaves no trace, as in the response.
    pub fn handle_event(&mut self, event: &AgentEvent) {
        self.said_anything = true;
        if let AgentEvent::ToolInput { call, input } = event
            && call.executed_by == Executor::Client
        {
            let left = OpenCall::left_to_client(
                call.id.clone(),
                call.tool_name.to_string(),
                input.clone(),
            );
            self.left_to_client.push(left);
        }
        let reducer = &mut self.reducer;
        // The response says what was wrong with it.
        let _ = self.translator.handle_event(event, &mut |chunk| {
            // What the translator lets out, the client takes.
            let _ = reducer.push_chunk(&chunk);
        });
    }

    /// The message as it is so far.
    pub fn message(&mut self) -> &UiMessage {
        self.reducer.message()
    }

    /// The message as it is now that the agent has said everything, if it said anything, and the
    /// calls in it that the client is to run.
    pub fn finish(self) -> (Option<UiMessage>, Vec<OpenCall>) {
        let Recorder { translator, mut reducer, left_to_client, said_anything } = self;
        translator.finish(&mut |chunk| {
            let _ = reducer.push_chunk(&chunk);
        });
        (said_anything.then(|| reducer.into_message()), left_to_client)
    }
}

/// What was attached to tools and their outputs is kept, though an old client is not sent it: the model
/// may want it back. What newer ones are told of a question stands in a part of its own, and is not
/// kept twice.
const WITH_METADATA: Version = Version::V6At(176);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ToolCall;
    use crate::json::Json;

    #[test]
    fn what_an_old_client_is_not_sent_is_kept() {
        let mut recorder = Recorder::new("m2");
        let call = ToolCall::new("c1", "search").provider_executed();
        recorder.handle_event(&AgentEvent::tool_input(call, Json::null()));
        let output = r#"{"type": "tool-output-available", "toolCallId": "c1", "output": 1,
            "providerMetadata":{"provider":{"id":"item_1"}}}"#;
        let output = serde_json::from_str(output).unwrap();
        recorder.handle_event(&AgentEvent::Chunk(Box::new(output)));
        let (message, _) = recorder.finish();
        let message = serde_json::to_string(&message).unwrap();
        assert!(
            message.contains(r#""resultProviderMetadata":{"provider":{"id":"item_1"}}"#),
            "{message}"
        );
    }
}
