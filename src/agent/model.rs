//! [`Model`]: what an adapter gives.

use std::any::Any;
use std::fmt;
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as poll_ready};

use futures_core::Stream;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use tracing::{Span, field};

use super::output::OutputSchema;
use super::tool_run::Once;
use super::tools::Tools;
use crate::event::AgentEvent;
use crate::id::ChatId;
use crate::json::Json;
use crate::model_message::ModelMessage;
use crate::run::{Input, ModelEvent};
use crate::stream::{BoxError, MASKED_ERROR, words_of};

/// A model, behind whatever client talks to it.
///
/// An adapter is a mapping and nothing else: the request to what the provider takes, what the
/// provider streams to [`ModelEvent`]s. What is to become of a call is decided elsewhere.
///
/// ```
/// use futures::stream;
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::agent::{Agent, Model, ModelRequest, ModelStream};
/// use ui_message_stream::chunk::FinishReason;
/// use ui_message_stream::event::ToolCall;
/// use ui_message_stream::model_message::ModelMessage;
/// use ui_message_stream::run::ModelEvent;
///
/// /// Looks at the clock, and says so.
/// #[derive(Debug)]
/// struct Clockwork;
///
/// impl Model for Clockwork {
///     fn call(&self, request: ModelRequest) -> ModelStream {
///         let said = match request.messages.last() {
///             Some(ModelMessage::Tool { .. }) => ModelEvent::Said(AgentEvent::text("It is late.")),
///             _ => ModelEvent::Call(Box::new(ToolCall::new("call_1", "clock")), "{}".to_owned()),
///         };
///         Box::pin(stream::iter([Ok(said), Ok(ModelEvent::Finished(FinishReason::Stop))]))
///     }
/// }
///
/// let agent = Agent::new(Clockwork);
/// # let _ = agent;
/// ```
pub trait Model: Send + Sync + fmt::Debug + 'static {
    /// Calls it. The stream ends with [`ModelEvent::Finished`], or with an error that the person
    /// does not read.
    fn call(&self, request: ModelRequest) -> ModelStream;

    /// What its provider calls it: `gen_ai.request.model` of the spans.
    fn name(&self) -> Option<&str> {
        None
    }

    /// Who provides it, as `openai` or `anthropic`: `gen_ai.provider.name` of the spans.
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

/// What a model is called with.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelRequest {
    /// What it is told before everything else.
    pub instructions: Option<Arc<str>>,
    /// What was said. Every tool call in it has exactly one result.
    pub messages: Vec<ModelMessage>,
    /// What it may call.
    pub tools: Arc<[ToolDescription]>,
    /// What its answer is to look like, once it calls nothing more; else it answers as it likes.
    pub output: Option<Arc<OutputSchema>>,
}

/// A tool, as a model reads it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolDescription {
    /// What the model calls it by.
    pub name: Box<str>,
    /// What it does, and when to call it.
    pub description: Box<str>,
    /// The JSON Schema of its input.
    pub input_schema: Json,
}

impl ModelRequest {
    /// These messages, with no tools: what a test of a [`Model`] calls it with.
    pub fn new(messages: Vec<ModelMessage>) -> Self {
        ModelRequest { instructions: None, messages, tools: Arc::new([]), output: None }
    }
}

impl ToolDescription {
    /// A tool of this name. Providers take letters, digits, `_` and `-`, at most 64 of them.
    pub fn new(
        name: impl Into<Box<str>>,
        description: impl Into<Box<str>>,
        input_schema: Json,
    ) -> Self {
        ToolDescription { name: name.into(), description: description.into(), input_schema }
    }

    /// Whether the schema of the input is a valid JSON Schema, so that inputs can be checked.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::agent::ToolDescription;
    ///
    /// let schema = |text| Json::parse(text).unwrap();
    /// assert!(ToolDescription::new("a", "", schema(r#"{"type":"object"}"#)).has_valid_schema());
    /// assert!(!ToolDescription::new("a", "", schema(r#"{"type":"dragon"}"#)).has_valid_schema());
    /// ```
    pub fn has_valid_schema(&self) -> bool {
        self.validator().is_some()
    }

    /// What holds an input against the schema; `None` if it is no schema.
    pub(crate) fn validator(&self) -> Option<Validator> {
        validator_of(&self.input_schema.to().ok()?)
    }
}

/// What holds against a schema what a model wrote; `None` if it is no schema.
///
/// Patterns are matched in linear time. One with look-around or backreferences, as some schemas have
/// for e-mail addresses, is matched by going back and trying again, which could take as long as
/// whoever wrote the schema, or the input, wants: after some tries the input does not fit.
pub(super) fn validator_of(schema: &Value) -> Option<Validator> {
    let linear = jsonschema::options().with_pattern_options(PatternOptions::regex()).build(schema);
    let going_back = || {
        let few_times = PatternOptions::fancy_regex().backtrack_limit(MOST_TIMES_BACK);
        jsonschema::options().with_pattern_options(few_times).build(schema)
    };
    linear.or_else(|_| going_back()).ok()
}

/// How often a pattern is gone back in: some look ahead once for each character of a text.
const MOST_TIMES_BACK: usize = 10_000;

/// What a model says, as it says it.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<ModelEvent, BoxError>> + Send>>;

/// What a model says, as the run takes it in: its calls with what the tools say of themselves.
pub(super) struct ModelInputs {
    stream: Option<ModelStream>,
    tools: Tools,
    span: Span,
}

impl ModelInputs {
    /// Calls the model.
    pub(super) fn of(
        model: &dyn Model,
        request: ModelRequest,
        tools: Tools,
        chat: &ChatId,
    ) -> Self {
        let span = tracing::info_span!(
            "chat",
            otel.name = model.name().map(|name| format!("chat {name}")),
            otel.kind = "client",
            otel.status_code = field::Empty,
            gen_ai.operation.name = "chat",
            gen_ai.provider.name = model.provider(),
            gen_ai.request.model = model.name(),
            gen_ai.conversation.id = chat.as_str(),
            gen_ai.response.finish_reasons = field::Empty,
            gen_ai.usage.input_tokens = field::Empty,
            gen_ai.usage.output_tokens = field::Empty,
            error.type = field::Empty,
        );
        let call = || catch_unwind(AssertUnwindSafe(|| model.call(request)));
        let stream = span.in_scope(call).unwrap_or_else(|panic| {
            let error = panicked(&*panic);
            Box::pin(Once::of(ready(Err(error))))
        });
        ModelInputs { stream: Some(stream), tools, span }
    }

    fn announced(&self, mut event: ModelEvent) -> ModelEvent {
        match &mut event {
            ModelEvent::Used(usage) => {
                self.span.record("gen_ai.usage.input_tokens", usage.input_tokens);
                self.span.record("gen_ai.usage.output_tokens", usage.output_tokens);
            }
            ModelEvent::Finished(reason) => {
                self.span.record("gen_ai.response.finish_reasons", reason.as_str());
            }
            ModelEvent::Call(call, _)
            | ModelEvent::Said(
                AgentEvent::ToolInputStart { call }
                | AgentEvent::ToolInput { call, .. }
                | AgentEvent::ToolInputInvalid { call, .. },
            ) => self.tools.announce(call),
            _ => {}
        }
        event
    }
}

impl Stream for ModelInputs {
    type Item = Input;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        let _entered = self.span.clone().entered();
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(None);
        };
        // What tools of the step still run comes to its end, whatever the model does.
        let polled = catch_unwind(AssertUnwindSafe(|| stream.as_mut().poll_next(cx)));
        let next = match polled {
            Ok(polled) => poll_ready!(polled),
            Err(panic) => Some(Err(panicked(&*panic))),
        };
        let is_last = matches!(next, None | Some(Ok(ModelEvent::Finished(_)) | Err(_)));
        if is_last {
            self.stream = None;
        }
        Poll::Ready(Some(match next {
            Some(Ok(event)) => Input::Model(self.announced(event)),
            Some(Err(error)) => {
                failed(&self.span, "model");
                tracing::error!(%error, "the model failed");
                Input::ModelFailed(MASKED_ERROR.into())
            }
            None => {
                failed(&self.span, "cut");
                tracing::error!("the model's stream ended before it was finished");
                Input::ModelFailed(MASKED_ERROR.into())
            }
        }))
    }
}

/// Says of a span that what it spans failed, and of what kind the failure is.
pub(super) fn failed(span: &Span, kind: &'static str) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", kind);
}

fn panicked(panic: &(dyn Any + Send)) -> BoxError {
    format!("the model panicked: {}", words_of(panic)).into()
}
