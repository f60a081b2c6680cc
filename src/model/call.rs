//! [`Model`]: the trait that model adapters implement, and its request.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;

use super::parameters::LastParameters;
use super::{ModelEvent, ModelMessage};
use crate::boxed::BoxError;
use crate::json::Json;

/// A language model.
///
/// An implementation converts the request to the provider's format, and the provider's stream to
/// [`ModelEvent`]s. It makes no decisions: the agent decides how each tool call is handled.
///
/// ```
/// use futures::stream;
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
/// use ui_message_stream::chunk::FinishReason;
/// use ui_message_stream::event::ToolCall;
///
/// /// Calls a tool that reads the clock, then reports the time.
/// #[derive(Debug)]
/// struct Clockwork;
///
/// impl Model for Clockwork {
///     fn call(&self, request: ModelRequest) -> ModelStream {
///         let event = match request.messages.last() {
///             Some(ModelMessage::Tool { .. }) => ModelEvent::Event(AgentEvent::text("It is late.")),
///             _ => ModelEvent::ToolCall(Box::new(ToolCall::new("call_1", "clock")), "{}".to_owned()),
///         };
///         Box::pin(stream::iter([Ok(event), Ok(ModelEvent::Finished(FinishReason::Stop))]))
///     }
/// }
///
/// // An agent calls it with the messages so far.
/// let response = Clockwork.call(ModelRequest::new(vec![ModelMessage::user("What time is it?")]));
/// # drop(response);
/// ```
pub trait Model: Send + Sync + fmt::Debug + 'static {
    /// Calls the model and returns its response as a stream.
    ///
    /// The stream ends with [`ModelEvent::Finished`] or with an error. The error is not shown to
    /// the user.
    fn call(&self, request: ModelRequest) -> ModelStream;

    /// Returns the name by which the provider knows the model. It is the attribute
    /// `gen_ai.request.model` of the `tracing` spans. The default is `None`.
    fn name(&self) -> Option<&str> {
        None
    }

    /// Returns the name of the provider, such as `openai` or `anthropic`. It is the attribute
    /// `gen_ai.provider.name` of the `tracing` spans. The default is `None`.
    fn provider(&self) -> Option<&str> {
        None
    }
}

impl<M: Model + ?Sized> Model for Arc<M> {
    fn call(&self, request: ModelRequest) -> ModelStream {
        (**self).call(request)
    }

    fn name(&self) -> Option<&str> {
        (**self).name()
    }

    fn provider(&self) -> Option<&str> {
        (**self).provider()
    }
}

/// The input of one model call.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelRequest {
    /// The instructions, which precede all messages.
    pub instructions: Option<Arc<str>>,
    /// The conversation. Every tool call in it has exactly one result.
    pub messages: Vec<ModelMessage>,
    /// The tools that the model may call.
    pub tools: Arc<[ToolDefinition]>,
    /// The schema of the final response, the one that calls no tool. `None` if the response is free
    /// text.
    pub output: Option<Arc<OutputSchema>>,
}

/// Leaves out the instructions and the messages.
impl fmt::Debug for ModelRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools: Vec<&str> = self.tools.iter().map(|tool| &*tool.name).collect();
        f.debug_struct("ModelRequest")
            .field("messages", &self.messages.len())
            .field("tools", &tools)
            .finish_non_exhaustive()
    }
}

/// A tool as the model reads it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolDefinition {
    /// The name by which the model calls the tool.
    pub name: Box<str>,
    /// What the tool does, and when the model should call it.
    pub description: Box<str>,
    /// The JSON Schema of the tool's input.
    pub input_schema: Json,
    parameters: LastParameters,
}

impl ModelRequest {
    /// Creates a request with these messages, no instructions, no tools and no output schema. Tests
    /// of a [`Model`] use it.
    pub fn new(messages: Vec<ModelMessage>) -> Self {
        ModelRequest { instructions: None, messages, tools: Arc::new([]), output: None }
    }
}

impl ToolDefinition {
    /// Creates a definition. Providers accept names of at most 64 ASCII letters, digits, `_` and
    /// `-`.
    pub fn new(
        name: impl Into<Box<str>>,
        description: impl Into<Box<str>>,
        input_schema: Json,
    ) -> Self {
        ToolDefinition {
            name: name.into(),
            description: description.into(),
            input_schema,
            parameters: LastParameters::default(),
        }
    }

    /// Returns the JSON Schema of the input as adapters send it: the [`parameters`](super::parameters) of
    /// [`input_schema`](Self::input_schema), against which inputs are validated. Clones that are made
    /// afterwards do not compute it again.
    pub fn parameters(&self) -> Option<Json> {
        self.parameters.of(&self.input_schema)
    }
}

/// The JSON Schema that a model's final response must match.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OutputSchema {
    /// The name of the schema: at most 64 ASCII letters, digits, `_` and `-`.
    pub name: Box<str>,
    /// The JSON Schema of an object.
    pub schema: Json,
}

impl OutputSchema {
    /// Creates a named schema.
    pub fn new(name: impl Into<Box<str>>, schema: Json) -> Self {
        OutputSchema { name: name.into(), schema }
    }
}

/// The response of a model as a stream of events.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelEvent, BoxError>> + Send>>;
