//! [`UiWriter`]: writes a response without a stream of events.

use std::error::Error as StdError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::Poll;

use futures_core::Stream;
use futures_util::{FutureExt, StreamExt, stream};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{SendError, TrySendError};

use crate::boxed::BoxError;
use crate::event::{AgentEvent, Text};
use crate::json::Json;
use crate::response::{IntoEvent, panic_message};

/// How many events may wait in the queue.
const QUEUED_EVENTS: usize = 64;

/// Writes a response. Created by [`UiMessageStream::from_fn`](crate::UiMessageStream::from_fn).
///
/// Its methods wait while 64 events are queued for the client, and up to 64 others are being sent. Clones write to the same response,
/// so that several tasks can write at once. The response ends when the function that received the
/// writer returns. After that, the methods of a clone return [`Disconnected`].
///
/// ```
/// use bytes::Bytes;
/// use futures::StreamExt;
/// use serde_json::json;
/// use ui_message_stream::request::Limits;
/// use ui_message_stream::{ChatRequest, UiMessageStream};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// # runtime.block_on(async {
/// let body = br#"{"id":"chat-1","messages":[]}"#;
/// let chat = ChatRequest::parse(body, &Limits::default()).unwrap();
///
/// let response = UiMessageStream::from_fn(&chat, async |ui| {
///     ui.text("I look for the file.").await?;
///     ui.data("status", &json!({"done": true})).await
/// });
///
/// let frames: Vec<Bytes> = response.map(Result::unwrap).collect().await;
/// let frames = String::from_utf8(frames.concat()).unwrap();
/// assert!(frames.contains(r#""delta":"I look for the file.""#));
/// assert!(frames.contains(r#"{"type":"data-status","data":{"done":true}}"#));
/// assert!(frames.ends_with("data: [DONE]\n\n"));
/// # });
/// ```
#[derive(Debug, Clone)]
pub struct UiWriter {
    events: mpsc::Sender<AgentEvent>,
}

impl UiWriter {
    /// Adds text to the current text part.
    ///
    /// # Errors
    /// [`WriteError`] holding [`Disconnected`] if the response was dropped or has ended.
    pub async fn text(&self, text: impl Into<Text>) -> Result<(), WriteError> {
        self.event(AgentEvent::text(text)).await
    }

    /// Adds data of the application, a part `data-<name>`.
    ///
    /// # Errors
    /// [`WriteError`] if the data is not a valid [`Json`], or holding [`Disconnected`] if the
    /// response was dropped or has ended.
    pub async fn data(
        &self,
        name: impl Into<Text>,
        data: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), WriteError> {
        self.event(AgentEvent::data(name, Json::from_serialize(data)?)).await
    }

    /// Adds any event of an agent.
    ///
    /// # Errors
    /// [`WriteError`] holding [`Disconnected`] if the response was dropped or has ended.
    pub async fn event(&self, event: AgentEvent) -> Result<(), WriteError> {
        // Most events find room, without a place in the line of those that wait.
        let sent = match self.events.try_send(event) {
            Err(TrySendError::Full(event)) => self.events.send(event).await,
            Err(TrySendError::Closed(event)) => Err(SendError(event)),
            Ok(()) => Ok(()),
        };
        sent.map_err(|_| Disconnected.into())
    }

    /// Adds all events of a stream, until the stream ends or yields a
    /// [`Finish`](AgentEvent::Finish).
    ///
    /// The `Finish` is dropped: it ends the merge and not the response.
    ///
    /// # Errors
    /// [`WriteError`] if the stream yields an error, or holding [`Disconnected`] if the response
    /// was dropped or has ended.
    ///
    /// # Cancel safety
    /// Not cancel safe: an event that waits for room in the queue is lost.
    pub async fn merge<S>(&self, events: S) -> Result<(), WriteError>
    where
        S: Stream<Item: IntoEvent>,
    {
        let mut events = pin!(events);
        while let Some(item) = events.next().await {
            match item.into_event().map_err(WriteError)? {
                AgentEvent::Finish { .. } => break,
                event => self.event(event).await?,
            }
        }
        Ok(())
    }
}

/// Why writing stopped: the response was dropped or has ended, or the writing function failed.
///
/// `?` converts every error to a `WriteError`. A type with this conversion cannot implement
/// [`Error`](StdError).
#[derive(Debug)]
pub struct WriteError(BoxError);

impl WriteError {
    /// Returns the error inside.
    pub fn into_inner(self) -> BoxError {
        self.0
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for WriteError {
    fn from(error: E) -> Self {
        WriteError(Box::new(error))
    }
}

/// The response was dropped or has ended.
#[derive(Debug, thiserror::Error)]
#[error("the client has disconnected")]
pub struct Disconnected;

/// The writing function panicked.
#[derive(Debug, thiserror::Error)]
#[error("the writer panicked: {0}")]
struct Panicked(String);

/// Returns the events of a writing function as a stream. There is no task: the reader polls both
/// the function and its queue.
pub(crate) fn written_events<F, Fut>(
    write: F,
) -> impl Stream<Item = Result<AgentEvent, BoxError>> + Send + 'static
where
    F: FnOnce(UiWriter) -> Fut,
    Fut: Future<Output = Result<(), WriteError>> + Send + 'static,
{
    let (events, mut queue) = mpsc::channel(QUEUED_EVENTS);
    let mut writing = AssertUnwindSafe(write(UiWriter { events })).catch_unwind().fuse().boxed();
    let mut error: Option<BoxError> = None;
    // Events from the queue, the first one last.
    let mut received = Vec::new();
    stream::poll_fn(move |cx| {
        if let Some(event) = received.pop() {
            return Poll::Ready(Some(Ok(event)));
        }
        if let Poll::Ready(1..) = queue.poll_recv_many(cx, &mut received, QUEUED_EVENTS) {
            received.reverse();
            return Poll::Ready(received.pop().map(Ok));
        }
        if let Poll::Ready(written) = writing.poll_unpin(cx) {
            error = match written {
                Ok(written) => written.err().map(WriteError::into_inner),
                Err(panic) => Some(Box::new(Panicked(panic_message(&*panic)))),
            };
            queue.close();
        }
        // Events that were queued before an error or a panic are sent before it.
        queue.poll_recv(cx).map(|event| event.map(Ok).or_else(|| error.take().map(Err)))
    })
}
