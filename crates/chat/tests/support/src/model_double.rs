//! [`ModelDouble`]: a model that is a function.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use futures::stream;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{
    Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, ToolContent,
};

/// A model that returns the events of a function. The function gets the request and the number of
/// calls before this one.
pub struct ModelDouble<F> {
    events: F,
    calls: AtomicUsize,
    name: Option<&'static str>,
    provider: Option<&'static str>,
}

impl<F> ModelDouble<F>
where
    F: Fn(ModelRequest, usize) -> Vec<ModelEvent> + Send + Sync + 'static,
{
    /// Creates the model.
    pub fn new(events: F) -> Self {
        ModelDouble { events, calls: AtomicUsize::new(0), name: None, provider: None }
    }

    /// Sets the name of the model.
    pub fn with_name(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// Sets the name of the provider.
    pub fn with_provider(mut self, provider: &'static str) -> Self {
        self.provider = Some(provider);
        self
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
        let before = self.calls.fetch_add(1, Ordering::SeqCst);
        stream::iter((self.events)(request, before)).map(Ok).boxed()
    }

    fn name(&self) -> Option<&str> {
        self.name
    }

    fn provider(&self) -> Option<&str> {
        self.provider
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
pub fn calls_all<'a, I: ToString>(
    calls: impl IntoIterator<Item = (&'a str, I)>,
) -> Vec<ModelEvent> {
    let calls = calls.into_iter().enumerate();
    let calls =
        calls.map(|(at, (tool, input))| tool_call(&format!("call_{at}"), tool, &input.to_string()));
    calls.chain([ModelEvent::Finished(FinishReason::ToolCalls)]).collect()
}

/// Returns the events of a model that calls these tools with one input. The id of a call is `call_`
/// with the name of its tool.
pub fn calls_each(tools: &[&str], input: &str) -> Vec<ModelEvent> {
    let calls = tools.iter().map(|tool| tool_call(&format!("call_{tool}"), tool, input));
    calls.chain([ModelEvent::Finished(FinishReason::ToolCalls)]).collect()
}

/// Returns the event of this text.
pub fn text(text: impl Into<String>) -> ModelEvent {
    ModelEvent::Event(AgentEvent::text(text.into()))
}

/// Returns the events of a model that says this text.
pub fn says(text: impl Into<String>) -> Vec<ModelEvent> {
    vec![self::text(text), ModelEvent::Finished(FinishReason::Stop)]
}

/// Returns the tool results that the model reads.
pub fn tool_contents(request: &ModelRequest) -> impl Iterator<Item = &ToolContent> {
    let contents = request.messages.iter().filter_map(|message| match message {
        ModelMessage::Tool { content } => Some(content),
        _ => None,
    });
    contents.flatten()
}

/// Returns the number of tool results that the model reads.
pub fn results_in(request: &ModelRequest) -> usize {
    tool_contents(request).count()
}
