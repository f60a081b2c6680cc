//! [`ModelDouble`]: a model that is a function.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use futures::stream;
use serde_json::Value;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};

/// A model that returns the events of a function. The function gets the request and the number of
/// calls before this one.
pub struct ModelDouble<F>(F, AtomicUsize);

impl<F> ModelDouble<F>
where
    F: Fn(ModelRequest, usize) -> Vec<ModelEvent> + Send + Sync + 'static,
{
    /// Creates the model.
    pub fn new(events: F) -> Self {
        ModelDouble(events, AtomicUsize::new(0))
    }
}

impl<F> fmt::Debug for ModelDouble<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelDouble")
    }
}

impl<F> Model for ModelDouble<F>
where
    F: Fn(ModelRequest, usize) -> Vec<ModelEvent> + Send + Sync + 'static,
{
    fn call(&self, request: ModelRequest) -> ModelStream {
        let before = self.1.fetch_add(1, Ordering::SeqCst);
        stream::iter((self.0)(request, before)).map(Ok).boxed()
    }
}

/// Returns the event of one tool call.
pub fn tool_call(id: &str, tool: &str, input: &str) -> ModelEvent {
    ModelEvent::ToolCall(Box::new(ToolCall::new(id, tool.to_owned())), input.to_owned())
}

/// Returns the events of a model that makes one tool call.
pub fn calls(id: &str, tool: &str, input: &str) -> Vec<ModelEvent> {
    vec![tool_call(id, tool, input), ModelEvent::Finished(FinishReason::ToolCalls)]
}

/// Returns the events of a model that makes these tool calls, each a tool name and an input. Their
/// ids are `call_0`, `call_1` and so on.
pub fn calls_all<'a>(calls: impl IntoIterator<Item = (&'a str, Value)>) -> Vec<ModelEvent> {
    let calls = calls.into_iter().enumerate();
    let calls =
        calls.map(|(at, (tool, input))| tool_call(&format!("call_{at}"), tool, &input.to_string()));
    calls.chain([ModelEvent::Finished(FinishReason::ToolCalls)]).collect()
}

/// Returns the events of a model that says this text.
pub fn says(text: impl Into<String>) -> Vec<ModelEvent> {
    let text = ModelEvent::Event(AgentEvent::text(text.into()));
    vec![text, ModelEvent::Finished(FinishReason::Stop)]
}

/// Returns the number of tool results that the model reads.
pub fn results_in(request: &ModelRequest) -> usize {
    let results = request.messages.iter().map(|message| match message {
        ModelMessage::Tool { content } => content.len(),
        _ => 0,
    });
    results.sum()
}
