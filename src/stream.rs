//! Events to frames, polled and never waited for: the part of a response that knows no framework.
//!
//! One loop takes what the agent has ready and writes it into one buffer, so that what is ready
//! together leaves together. Nothing runs ahead of the reader: the agent is polled when the reader
//! asks, and no further than one buffer.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;

use crate::chunk::{Chunk, FinishReason};
use crate::event::AgentEvent;
use crate::id::ToolCallId;
use crate::message::UiMessage;
use crate::reducer::Reducer;
use crate::sse::{DONE, Encoder};
use crate::translator::{TranslateError, Translator};

/// An error of the agent, of whatever type.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What a stream of events may yield: an [`AgentEvent`], or a `Result` of one.
pub trait EventItem {
    /// The event, or why there is none.
    ///
    /// # Errors
    /// The agent's own error.
    fn into_event(self) -> Result<AgentEvent, BoxError>;
}

impl EventItem for AgentEvent {
    #[inline]
    fn into_event(self) -> Result<AgentEvent, BoxError> {
        Ok(self)
    }
}

impl<E: Into<BoxError>> EventItem for Result<AgentEvent, E> {
    #[inline]
    fn into_event(self) -> Result<AgentEvent, BoxError> {
        self.map_err(Into::into)
    }
}

/// What went wrong while a response was written. The person reads none of it unless you say so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The agent's stream yielded an error. The response ends with an `error` chunk.
    #[error("the agent failed")]
    Agent(#[source] BoxError),
    /// The agent's stream panicked. The response ends with an `error` chunk.
    #[error("the agent panicked: {0}")]
    Panicked(String),
    /// An event could not be meant. It was dropped, and the response goes on.
    #[error("an event was dropped")]
    Dropped(#[source] TranslateError),
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The agent said all it had to say, or waits for somebody.
    Finished,
    /// The run was stopped.
    Aborted,
    /// Nobody read any further.
    Disconnected,
    /// The agent failed, and the message says so.
    Failed,
}

/// What is known when a response has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct ResponseEnd {
    /// How.
    pub outcome: Outcome,
    /// Why, where the agent said so.
    pub finish_reason: Option<FinishReason>,
    /// The assistant message as the client holds it when it has read all that was sent: what to
    /// store. After a disconnect the client may hold less. `None` if the response goes on with a
    /// message that only a translator of your own knew.
    pub message: Option<UiMessage>,
}

/// Said to the person where the cause is not for their eyes.
pub const MASKED_ERROR: &str = "An error occurred.";

pub(crate) type OnError = Box<dyn FnMut(&StreamError) -> Option<String> + Send>;
pub(crate) type OnFinish = Box<dyn FnOnce(ResponseEnd) + Send>;

/// How much is written before it is handed on, in bytes.
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
    /// What the client holds; kept only if somebody asks in the end.
    reducer: Option<Reducer>,
}

/// Pieces of one tool's input that are ready together leave as one: a client parses all of the
/// input anew for each.
struct InputDelta {
    tool_call_id: ToolCallId,
    text: String,
    /// Counts the pieces that were held, so that a wait is told from the next one.
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
            reducer: None,
        }
    }

    pub(crate) fn configure(&mut self, change: impl FnOnce(Translator) -> Translator) {
        self.translator = self.translator.take().map(change);
    }

    pub(crate) fn on_error(&mut self, call: OnError) {
        self.on_error = Some(call);
    }

    pub(crate) fn on_finish(&mut self, call: OnFinish, reducer: Reducer) {
        self.on_finish = Some(call);
        self.reducer = Some(reducer);
    }

    /// Opens the message.
    pub(crate) fn start(&mut self) {
        if let Some(translator) = &mut self.translator {
            translator.start(&mut |chunk| {
                write(&chunk, &mut self.encoder, &mut self.buffer, &mut self.reducer);
            });
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.translator.is_none()
    }

    /// What was written and not handed on.
    pub(crate) fn take_frames(&mut self) -> Option<Bytes> {
        (!self.buffer.is_empty()).then(|| self.buffer.split().freeze())
    }

    /// Which piece of tool input is held back.
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

    /// Writes the tool input that was held back for more to join it.
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
            write(&chunk, &mut self.encoder, &mut self.buffer, &mut self.reducer);
        });
        if let Err(error) = translated {
            self.report(&StreamError::Dropped(error));
        }
        if let Some((outcome, reason)) = end_of(event) {
            self.end(outcome, reason);
        }
    }

    /// Ends the response because its run was stopped.
    pub(crate) fn abort(&mut self) {
        self.release_input_delta();
        self.translate(&AgentEvent::Abort { reason: None });
    }

    fn fail(&mut self, error: StreamError) {
        self.release_input_delta();
        let text = self.report(&error).unwrap_or_else(|| MASKED_ERROR.to_owned());
        self.translate(&AgentEvent::error(text));
    }

    /// The events are over: if none of them said so, the message ends here.
    fn finish(&mut self) {
        self.release_input_delta();
        if let Some(translator) = self.translator.take() {
            translator.finish(&mut |chunk| {
                write(&chunk, &mut self.encoder, &mut self.buffer, &mut self.reducer);
            });
            self.buffer.extend_from_slice(DONE);
            self.call_on_finish(Outcome::Finished, None);
        }
    }

    fn end(&mut self, outcome: Outcome, reason: Option<FinishReason>) {
        if self.translator.take().is_some() {
            self.buffer.extend_from_slice(DONE);
            self.call_on_finish(outcome, reason);
        }
    }

    fn call_on_finish(&mut self, outcome: Outcome, finish_reason: Option<FinishReason>) {
        if let Some(call) = self.on_finish.take() {
            let message = self.reducer.take().map(Reducer::into_message);
            let end = ResponseEnd { outcome, finish_reason, message };
            let called = catch_unwind(AssertUnwindSafe(|| call(end)));
            if called.is_err() {
                tracing::error!("`on_finish` panicked");
            }
        }
    }

    fn report(&mut self, error: &StreamError) -> Option<String> {
        match error {
            StreamError::Dropped(cause) => tracing::warn!(%cause, "dropped an agent event"),
            StreamError::Agent(cause) => tracing::error!(%cause, "the agent failed"),
            StreamError::Panicked(cause) => tracing::error!(%cause, "the agent panicked"),
        }
        let call = self.on_error.as_mut()?;
        catch_unwind(AssertUnwindSafe(|| call(error))).unwrap_or_else(|_| {
            tracing::error!("`on_error` panicked");
            None
        })
    }
}

/// Where every chunk goes.
#[inline]
fn write(
    chunk: &Chunk<'_>,
    encoder: &mut Encoder,
    buffer: &mut BytesMut,
    reducer: &mut Option<Reducer>,
) {
    encoder.encode(chunk, buffer);
    if let Some(reduced) = reducer
        && reduced.push_chunk(chunk).is_err()
    {
        // Only where the message that a translator goes on with is not known here.
        *reducer = None;
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.call_on_finish(Outcome::Disconnected, None);
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("translator", &self.translator).finish_non_exhaustive()
    }
}

/// How a response ends with this event, if it does, and why.
fn end_of(event: &AgentEvent) -> Option<(Outcome, Option<FinishReason>)> {
    match event {
        AgentEvent::Finish { reason, .. } => Some((Outcome::Finished, Some(*reason))),
        AgentEvent::Abort { .. } => Some((Outcome::Aborted, None)),
        AgentEvent::Error { .. } => Some((Outcome::Failed, None)),
        AgentEvent::Chunk(chunk) => match **chunk {
            Chunk::Finish { finish_reason, .. } => Some((Outcome::Finished, finish_reason)),
            Chunk::Abort { .. } => Some((Outcome::Aborted, None)),
            Chunk::Error { .. } => Some((Outcome::Failed, None)),
            _ => None,
        },
        _ => None,
    }
}

/// Where the events come from, behind one pointer: dispatch happens once a buffer, not once an
/// event.
pub(crate) trait Source: Send {
    /// Moves what is ready into the pipeline: until the buffer is full or the response has ended
    /// (ready), or until there is nothing ready (pending).
    fn poll_fill(&mut self, cx: &mut Context<'_>, pipeline: &mut Pipeline) -> Poll<()>;
}

/// A stream of events as a [`Source`].
pub(crate) struct Events<S>(pub(crate) Pin<Box<S>>);

impl<S> Source for Events<S>
where
    S: Stream + Send,
    S::Item: EventItem,
{
    fn poll_fill(&mut self, cx: &mut Context<'_>, pipeline: &mut Pipeline) -> Poll<()> {
        // A stream that panicked is not polled again: the response has ended.
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
            // Events that write nothing fill no buffer; others want their turn, too.
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        filled.unwrap_or_else(|panic| {
            pipeline.fail(StreamError::Panicked(words_of(&*panic)));
            Poll::Ready(())
        })
    }
}

/// How many events are taken before the task yields: a full buffer of the shortest deltas.
const EVENTS_AT_ONCE: usize = 256;

pub(crate) fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
        .to_owned()
}
