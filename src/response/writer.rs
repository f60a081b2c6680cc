//! [`UiWriter`]: writes a response without a stream of events.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures_core::Stream;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::event::{AgentEvent, Text};
use crate::json::Json;
use crate::response::{BoxError, IntoEvent, words_of};

/// How many events may wait in the queue.
const QUEUED_EVENTS: usize = 64;

/// Writes a response. Created by [`UiMessageStream::from_fn`](crate::UiMessageStream::from_fn).
///
/// Its methods wait while 64 events are queued for the client. Clones write to the same response,
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
    /// Adds text to the part being written.
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
        self.events.send(event).await.map_err(|_| Disconnected.into())
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
        while let Some(item) = std::future::poll_fn(|cx| events.as_mut().poll_next(cx)).await {
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
/// Every error converts to it by `?`. For that reason it does not implement [`Error`](StdError)
/// itself.
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
#[error("nobody reads the response any more")]
pub struct Disconnected;

/// Polls the writing function and converts a panic to an error, so that the events queued before it
/// are still sent.
fn poll_caught<Fut>(writing: Pin<&mut Fut>, cx: &mut Context<'_>) -> Poll<Result<(), WriteError>>
where
    Fut: Future<Output = Result<(), WriteError>>,
{
    catch_unwind(AssertUnwindSafe(|| writing.poll(cx)))
        .unwrap_or_else(|panic| Poll::Ready(Err(WriteError(Box::new(Panicked(words_of(&*panic)))))))
}

/// The writing function panicked.
#[derive(Debug, thiserror::Error)]
#[error("the writer panicked: {0}")]
struct Panicked(String);

/// The writing function and its queue as one stream of events. There is no task: the reader polls
/// both.
pub(crate) struct WriterStream<Fut> {
    writing: Option<Pin<Box<Fut>>>,
    /// The error of the writing function, until the queue is drained.
    error: Option<BoxError>,
    queue: mpsc::Receiver<AgentEvent>,
}

impl<Fut> WriterStream<Fut> {
    pub(crate) fn new<F: FnOnce(UiWriter) -> Fut>(write: F) -> Self {
        let (events, queue) = mpsc::channel(QUEUED_EVENTS);
        WriterStream { writing: Some(Box::pin(write(UiWriter { events }))), error: None, queue }
    }
}

impl<Fut> Stream for WriterStream<Fut>
where
    Fut: Future<Output = Result<(), WriteError>> + Send,
{
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Poll::Ready(Some(event)) = this.queue.poll_recv(cx) {
            return Poll::Ready(Some(Ok(event)));
        }
        if let Some(writing) = &mut this.writing
            && let Poll::Ready(written) = poll_caught(writing.as_mut(), cx)
        {
            this.writing = None;
            this.error = written.err().map(WriteError::into_inner);
            this.queue.close();
        }
        // Events that were queued before an error are sent before it.
        match this.queue.poll_recv(cx) {
            Poll::Ready(Some(event)) => Poll::Ready(Some(Ok(event))),
            Poll::Ready(None) => Poll::Ready(this.error.take().map(Err)),
            Poll::Pending => Poll::Pending,
        }
    }
}
