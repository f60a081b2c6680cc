//! Translates events to frames: the part of a response that depends on no framework.
//!
//! One loop polls the agent's stream and writes all events that are ready into one buffer, so that
//! they are sent together. The agent does not run ahead of the reader: its stream is polled only
//! when the reader polls, and for at most one buffer.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;

use super::summary::{Continued, ResponseOutcome, ResponseSummary, Sent};
use crate::UserText;
use crate::boxed::BoxError;
use crate::chunk::{Chunk, FinishReason};
use crate::event::AgentEvent;
use crate::id::{ToolCallId, log_error};
use crate::sse::{DONE, Encoder};
use crate::translator::{TranslateError, Translator};

/// An item of a stream of events: an [`AgentEvent`], or a `Result` of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event of an agent",
    label = "expected `AgentEvent` or `Result<AgentEvent, E>`",
    note = "the items of an agent's stream are `AgentEvent`, or `Result<AgentEvent, E>` with an error that converts to `BoxError`"
)]
pub trait IntoEvent {
    /// Returns the event, or the error that the agent yielded instead.
    ///
    /// # Errors
    /// The agent's own error.
    fn into_event(self) -> Result<AgentEvent, BoxError>;
}

impl IntoEvent for AgentEvent {
    #[inline]
    fn into_event(self) -> Result<AgentEvent, BoxError> {
        Ok(self)
    }
}

impl<E: Into<BoxError>> IntoEvent for Result<AgentEvent, E> {
    #[inline]
    fn into_event(self) -> Result<AgentEvent, BoxError> {
        self.map_err(Into::into)
    }
}

/// An error while a response was written. The user sees it only if
/// [`on_error`](crate::UiMessageStream::on_error) returns a text for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The agent's stream yielded an error. The response ends with an `error` chunk.
    #[error("the agent failed")]
    Agent(#[source] BoxError),
    /// The agent's stream panicked. The response ends with an `error` chunk.
    #[error("the agent panicked: {0}")]
    Panicked(String),
    /// An event had no valid translation. It was dropped, and the response continues.
    #[error("an event was dropped")]
    InvalidEvent(#[source] TranslateError),
}

pub(crate) type OnError = Box<dyn FnMut(&StreamError) -> Option<String> + Send>;
pub(crate) type OnFinish = Box<dyn FnOnce(ResponseSummary) + Send>;

/// How many bytes are buffered before the buffer is sent.
const FRAME_BYTES: usize = 8 * 1024;

/// Translates, encodes and buffers the events of one response.
pub(crate) struct Pipeline {
    /// `None` once the response has ended.
    translator: Option<Translator>,
    encoder: Encoder,
    buffer: BytesMut,
    input_delta: Option<InputDelta>,
    input_deltas: u64,
    on_error: Option<OnError>,
    on_finish: Option<OnFinish>,
    /// The message that the response continues, until the response begins.
    continued: Continued,
    /// What the summary needs. `None` before the response begins, and without an `on_finish` function.
    sent: Option<Sent>,
}

/// Joined pieces of one tool's input. They are sent as one chunk, because a client parses the whole
/// input again for each chunk.
struct InputDelta {
    tool_call_id: ToolCallId,
    text: String,
    /// A sequence number, by which the body knows whether its timer belongs to this piece.
    number: u64,
}

impl Pipeline {
    pub(crate) fn new(translator: Translator) -> Self {
        Pipeline {
            translator: Some(translator),
            encoder: Encoder::default(),
            buffer: BytesMut::new(),
            input_delta: None,
            input_deltas: 0,
            on_error: None,
            on_finish: None,
            continued: Continued::default(),
            sent: None,
        }
    }

    pub(crate) fn configure(&mut self, change: impl FnOnce(Translator) -> Translator) {
        self.translator = self.translator.take().map(change);
    }

    pub(crate) fn on_error(&mut self, call: OnError) {
        self.on_error = Some(call);
    }

    pub(crate) fn on_finish(&mut self, call: OnFinish) {
        self.on_finish = Some(call);
    }

    /// Returns the message that the response continues.
    pub(super) fn continued(&mut self) -> &mut Continued {
        &mut self.continued
    }

    fn new_summary(&mut self) -> Sent {
        let begins_message = self.translator.as_ref().is_none_or(Translator::begins_message);
        Sent::new(std::mem::take(&mut self.continued), begins_message)
    }

    /// Writes the `start` frame.
    pub(crate) fn start(&mut self) {
        let early_end =
            self.continued.stored.as_ref().filter(|stored| stored.answer_end().is_some());
        let goes_on = early_end.and_then(|stored| stored.end_metadata(None));
        self.sent = self.on_finish.is_some().then(|| self.new_summary());
        if let Some(translator) = &mut self.translator {
            translator.start(&mut |chunk| {
                write(&chunk, &mut self.encoder, &mut self.buffer, &mut self.sent);
            });
        }
        if let Some(metadata) = goes_on {
            self.translate(&AgentEvent::Metadata(metadata));
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.translator.is_none()
    }

    /// Removes the frames from the buffer and returns them, if there are any. The rest of a full buffer is used
    /// for the next frames. Otherwise no event is ready, and a response that waits holds no buffer.
    pub(crate) fn take_frames(&mut self) -> Option<Bytes> {
        let frames =
            if self.is_full() { self.buffer.split() } else { std::mem::take(&mut self.buffer) };
        (!frames.is_empty()).then(|| frames.freeze())
    }

    /// Returns the number of the piece of tool input that is held back.
    pub(crate) fn held_input_delta(&self) -> Option<u64> {
        self.input_delta.as_ref().map(|held| held.number)
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= FRAME_BYTES
    }

    #[inline]
    fn handle(&mut self, item: Result<AgentEvent, BoxError>) {
        match item {
            Ok(AgentEvent::ToolInputDelta { tool_call_id, delta }) => {
                self.hold_input_delta(tool_call_id, &delta);
            }
            Ok(AgentEvent::Chunk(chunk)) => match *chunk {
                Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
                    self.hold_input_delta(ToolCallId::new(tool_call_id), &input_text_delta);
                }
                other => {
                    self.release_input_delta();
                    self.translate(&AgentEvent::Chunk(Box::new(other)));
                }
            },
            Ok(event) => {
                if self.input_delta.is_some() {
                    self.release_input_delta();
                }
                self.translate(&event);
            }
            Err(error) => self.fail(StreamError::Agent(error)),
        }
    }

    fn hold_input_delta(&mut self, tool_call_id: ToolCallId, delta: &str) {
        match &mut self.input_delta {
            Some(held) if held.tool_call_id == tool_call_id => held.text.push_str(delta),
            _ => {
                self.release_input_delta();
                self.input_deltas += 1;
                let text = delta.to_owned();
                let number = self.input_deltas;
                self.input_delta = Some(InputDelta { tool_call_id, text, number });
            }
        }
        if self.input_delta.as_ref().is_some_and(|held| held.text.len() >= FRAME_BYTES) {
            self.release_input_delta();
        }
    }

    /// Writes the piece of tool input that is held back.
    pub(crate) fn release_input_delta(&mut self) {
        if let Some(InputDelta { tool_call_id, text, .. }) = self.input_delta.take() {
            self.translate(&AgentEvent::ToolInputDelta { tool_call_id, delta: text.into() });
        }
    }

    #[inline]
    fn translate(&mut self, event: &AgentEvent) {
        let Some(translator) = &mut self.translator else {
            return;
        };
        let translated = translator.handle_event(event, &mut |chunk| {
            write(&chunk, &mut self.encoder, &mut self.buffer, &mut self.sent);
        });
        if let Err(error) = translated {
            self.report(&StreamError::InvalidEvent(error));
        }
        if let Some((outcome, reason)) = end_of(event) {
            self.end(outcome, reason);
        }
    }

    /// Ends the response with an `abort` chunk.
    pub(crate) fn abort(&mut self) {
        self.release_input_delta();
        self.translate(&AgentEvent::Abort { reason: None });
    }

    fn fail(&mut self, error: StreamError) {
        self.release_input_delta();
        let text = self.report(&error).unwrap_or_else(|| UserText::AnswerFailed.to_string());
        self.translate(&AgentEvent::error(text));
    }

    /// Ends the response at the end of the stream, unless an event ended it.
    fn finish(&mut self) {
        self.release_input_delta();
        if let Some(translator) = self.translator.take() {
            translator.finish(&mut |chunk| {
                write(&chunk, &mut self.encoder, &mut self.buffer, &mut self.sent);
            });
            self.buffer.extend_from_slice(DONE);
            self.call_on_finish(ResponseOutcome::Finished, None);
        }
    }

    fn end(&mut self, outcome: ResponseOutcome, reason: Option<FinishReason>) {
        if self.translator.take().is_some() {
            self.buffer.extend_from_slice(DONE);
            self.call_on_finish(outcome, reason);
        }
    }

    fn call_on_finish(&mut self, outcome: ResponseOutcome, finish_reason: Option<FinishReason>) {
        if let Some(call) = self.on_finish.take() {
            let sent = self.sent.take().unwrap_or_else(|| self.new_summary());
            let (message, open_calls) = sent.finish(outcome);
            let summary = ResponseSummary { outcome, finish_reason, message, open_calls };
            let called = catch_unwind(AssertUnwindSafe(|| call(summary)));
            if called.is_err() {
                tracing::error!("`on_finish` panicked");
            }
        }
    }

    fn report(&mut self, error: &StreamError) -> Option<String> {
        match error {
            StreamError::InvalidEvent(cause) => tracing::warn!(%cause, "dropped an agent event"),
            StreamError::Agent(cause) => {
                tracing::error!(cause = %log_error(cause), "the agent failed")
            }
            StreamError::Panicked(cause) => {
                tracing::error!(cause = %log_error(cause), "the agent panicked")
            }
        }
        let call = self.on_error.as_mut()?;
        catch_unwind(AssertUnwindSafe(|| call(error))).unwrap_or_else(|_| {
            tracing::error!("`on_error` panicked");
            None
        })
    }
}

/// Writes a chunk to the buffer and, for the summary, to what was sent.
#[inline]
fn write(chunk: &Chunk<'_>, encoder: &mut Encoder, buffer: &mut BytesMut, sent: &mut Option<Sent>) {
    encoder.encode(chunk, buffer);
    if let Some(sent) = sent {
        sent.push_chunk(chunk);
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.sent.is_some() {
            // Closes the open texts and inputs of the message to store. Calls stay open: one that the user has
            // approved may still run.
            self.release_input_delta();
            self.translate(&AgentEvent::StepFinish);
        }
        self.call_on_finish(ResponseOutcome::Disconnected, None);
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("translator", &self.translator).finish_non_exhaustive()
    }
}

/// Returns the outcome and the finish reason of an event that ends the response.
fn end_of(event: &AgentEvent) -> Option<(ResponseOutcome, Option<FinishReason>)> {
    match event {
        AgentEvent::Finish { reason, .. } => Some(end_by(Some(*reason))),
        AgentEvent::Abort { .. } => Some((ResponseOutcome::Aborted, None)),
        AgentEvent::Error { .. } => Some((ResponseOutcome::Failed, None)),
        AgentEvent::Chunk(chunk) => match **chunk {
            Chunk::Finish { finish_reason, .. } => Some(end_by(finish_reason)),
            Chunk::Abort { .. } => Some((ResponseOutcome::Aborted, None)),
            Chunk::Error { .. } => Some((ResponseOutcome::Failed, None)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the outcome of a response with this finish reason, and the reason. A cut answer is not complete.
fn end_by(reason: Option<FinishReason>) -> (ResponseOutcome, Option<FinishReason>) {
    match reason {
        Some(FinishReason::Interrupted) => (ResponseOutcome::Failed, reason),
        _ => (ResponseOutcome::Finished, reason),
    }
}

/// A source of events without its type parameter. The dynamic dispatch happens once per buffer, not
/// once per event.
pub(crate) trait Source: Send {
    /// Moves the events that are ready into the pipeline.
    ///
    /// Returns `Ready` if the buffer is full or the response has ended, and `Pending` if no more
    /// event is ready.
    fn poll_fill(&mut self, cx: &mut Context<'_>, pipeline: &mut Pipeline) -> Poll<()>;
}

/// A stream of events as a [`Source`].
pub(crate) struct Events<S>(pub(crate) Pin<Box<S>>);

impl<S> Source for Events<S>
where
    S: Stream + Send,
    S::Item: IntoEvent,
{
    fn poll_fill(&mut self, cx: &mut Context<'_>, pipeline: &mut Pipeline) -> Poll<()> {
        // A stream that panicked is not polled again, because the response has ended.
        let filled = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..EVENTS_AT_ONCE {
                if pipeline.is_ended() || pipeline.is_full() {
                    return Poll::Ready(());
                }
                match self.0.as_mut().poll_next(cx) {
                    Poll::Ready(Some(item)) => pipeline.handle(item.into_event()),
                    Poll::Ready(None) => pipeline.finish(),
                    Poll::Pending => return Poll::Pending,
                }
            }
            // Events without output do not fill the buffer. Yield, so that other tasks can run.
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        filled.unwrap_or_else(|panic| {
            pipeline.fail(StreamError::Panicked(panic_message(&*panic)));
            Poll::Ready(())
        })
    }
}

/// How many events are read before the task yields: about a full buffer of the shortest deltas.
const EVENTS_AT_ONCE: usize = 256;

/// Returns the message of a panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
        .to_owned()
}
