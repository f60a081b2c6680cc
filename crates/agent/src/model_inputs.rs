//! The events of a model call, as inputs of the tool loop.

use std::any::Any;
use std::collections::VecDeque;
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Stream, stream};
use tracing::Span;

use super::telemetry::{model_span, record_failure, record_usage};
use super::tool_set::ToolSet;
use crate::tool_loop::Input;
use ui_message_stream::BoxError;
use ui_message_stream::UserText;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ChatId, log_error};
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};
use ui_message_stream::response::panic_message;

/// The stream of one model call as inputs of the loop. Calls are annotated with the facts of their
/// tools.
pub(super) struct ModelInputs {
    /// `None` after its end, which may be a panic of the model.
    stream: Option<ModelStream>,
    /// The inputs that were read together, so that the span is not entered for each of them.
    inputs: VecDeque<Input>,
    tools: ToolSet,
    span: Span,
}

impl ModelInputs {
    /// Calls the model.
    pub(super) fn new(
        model: &dyn Model,
        request: ModelRequest,
        tools: ToolSet,
        chat: &ChatId,
    ) -> Self {
        let span = model_span(model, chat);
        let call = || catch_unwind(AssertUnwindSafe(|| model.call(request)));
        let stream = span.in_scope(call).unwrap_or_else(|panic| {
            let error = panic_error(&*panic);
            Box::pin(stream::once(ready(Err(error))))
        });
        ModelInputs { stream: Some(stream), inputs: VecDeque::new(), tools, span }
    }

    /// Reads the events that are ready.
    fn read(&mut self, cx: &mut Context<'_>) {
        let _entered = self.span.clone().entered();
        while let Some(stream) = &mut self.stream
            && self.inputs.len() < INPUTS_AT_ONCE
        {
            let polled = catch_unwind(AssertUnwindSafe(|| stream.as_mut().poll_next(cx)));
            let next = match polled {
                Ok(Poll::Pending) => return,
                Ok(Poll::Ready(next)) => next,
                Err(panic) => Some(Err(panic_error(&*panic))),
            };
            if is_end(&next) {
                self.stream = None;
            }
            let input = self.input(next);
            self.inputs.push_back(input);
        }
    }

    fn input(&self, next: Option<Result<ModelEvent, BoxError>>) -> Input {
        match next {
            Some(Ok(event)) => Input::Model(self.annotate(event)),
            Some(Err(error)) => {
                record_failure(&self.span, "model");
                tracing::error!(error = %log_error(&error), "the model failed");
                Input::ModelFailed(UserText::AnswerFailed.into())
            }
            None => {
                record_failure(&self.span, "cut");
                tracing::error!("the model's stream ended before it was finished");
                Input::Model(ModelEvent::Finished(FinishReason::Interrupted))
            }
        }
    }

    /// Records the usage and the finish reason in the span, and annotates calls with the facts of
    /// their tools.
    fn annotate(&self, mut event: ModelEvent) -> ModelEvent {
        match &mut event {
            ModelEvent::Usage(usage) => record_usage(&self.span, *usage),
            ModelEvent::Event(AgentEvent::Error { .. }) => record_failure(&self.span, "model"),
            ModelEvent::Finished(reason) | ModelEvent::Event(AgentEvent::Finish { reason, .. }) => {
                self.span.record("gen_ai.response.finish_reasons", reason.as_str());
            }
            ModelEvent::ToolCall(call, _)
            | ModelEvent::Event(
                AgentEvent::ToolInputStart { call }
                | AgentEvent::ToolInput { call, .. }
                | AgentEvent::ToolInputInvalid { call, .. },
            ) => self.tools.annotate_call(call),
            _ => {}
        }
        event
    }
}

impl Stream for ModelInputs {
    type Item = Input;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        if self.inputs.is_empty() {
            self.read(cx);
        }
        match self.inputs.pop_front() {
            None if self.stream.is_some() => Poll::Pending,
            input => Poll::Ready(input),
        }
    }
}

/// Returns whether the loop has ended the model call after this. An input behind it would be taken
/// for one of the next call.
fn is_end(next: &Option<Result<ModelEvent, BoxError>>) -> bool {
    let event = match next {
        None | Some(Err(_) | Ok(ModelEvent::Finished(_))) => return true,
        Some(Ok(event)) => event,
    };
    let ModelEvent::Event(event) = event else { return false };
    matches!(event, AgentEvent::Finish { .. } | AgentEvent::Error { .. } | AgentEvent::Abort { .. })
}

fn panic_error(panic: &(dyn Any + Send)) -> BoxError {
    format!("the model panicked: {}", panic_message(panic)).into()
}

/// How many inputs are read at once: few, so that the memory of one event is used again for another.
const INPUTS_AT_ONCE: usize = 6;
