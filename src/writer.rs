//! [`UiWriter`]: for those who have no stream of events and just want to write.

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
use crate::stream::{BoxError, EventItem, words_of};

/// How many events may wait for the reader.
const QUEUED_EVENTS: usize = 64;

/// Writes a response: made by [`UiMessageStream::from_fn`](crate::UiMessageStream::from_fn).
///
/// Its methods wait while the reader is behind. Clones write to the same response, so that several
/// things can be said at once. The response ends when the function that was given the writer
/// returns; a clone that outlives it finds that nobody reads.
#[derive(Debug, Clone)]
pub struct UiWriter {
    events: mpsc::Sender<AgentEvent>,
}

impl UiWriter {
    /// Adds text to the part being written.
    ///
    /// # Errors
    /// [`WriteError`] if nobody reads the response any more.
    pub async fn text(&self, text: impl Into<Text>) -> Result<(), WriteError> {
        self.event(AgentEvent::text(text)).await
    }

    /// Adds data of the application, a part `data-<name>`.
    ///
    /// # Errors
    /// [`WriteError`] if the data is no [`Json`], or nobody reads the response any more.
    pub async fn data(
        &self,
        name: impl Into<Text>,
        data: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), WriteError> {
        self.event(AgentEvent::data(name, Json::of(data)?)).await
    }

    /// Says whatever an agent may say.
    ///
    /// # Errors
    /// [`WriteError`] if nobody reads the response any more.
    pub async fn event(&self, event: AgentEvent) -> Result<(), WriteError> {
        self.events.send(event).await.map_err(|_| NobodyReads.into())
    }

    /// Says everything that a stream of events says, until it ends. That it is finished, it says of
    /// itself: a [`Finish`](AgentEvent::Finish) ends the merging and not the response.
    ///
    /// # Errors
    /// [`WriteError`] if the stream yields an error, or nobody reads the response any more.
    ///
    /// # Cancel safety
    /// Not cancel safe: an event that waits for the reader is lost.
    pub async fn merge<S>(&self, events: S) -> Result<(), WriteError>
    where
        S: Stream<Item: EventItem>,
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

/// Why writing stopped: nobody reads any more, or an error of the writer's own.
///
/// It takes any error by `?` and so is not an [`Error`](StdError) itself.
#[derive(Debug)]
pub struct WriteError(BoxError);

impl WriteError {
    /// The error itself.
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

/// The response was dropped.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the response any more")]
pub struct NobodyReads;

/// What was said before a panic is still said; so it comes out as an error, behind the queue.
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

/// The writing function and its queue as one stream of events: no task, the reader polls both.
pub(crate) struct Written<Fut> {
    writing: Option<Pin<Box<Fut>>>,
    /// What writing came to, until the queue is drained.
    failed: Option<BoxError>,
    queue: mpsc::Receiver<AgentEvent>,
}

impl<Fut> Written<Fut> {
    pub(crate) fn new<F: FnOnce(UiWriter) -> Fut>(write: F) -> Self {
        let (events, queue) = mpsc::channel(QUEUED_EVENTS);
        Written { writing: Some(Box::pin(write(UiWriter { events }))), failed: None, queue }
    }
}

impl<Fut> Stream for Written<Fut>
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
            this.failed = written.err().map(WriteError::into_inner);
            this.queue.close();
        }
        // What was said before an error is said before it.
        match this.queue.poll_recv(cx) {
            Poll::Ready(Some(event)) => Poll::Ready(Some(Ok(event))),
            Poll::Ready(None) => Poll::Ready(this.failed.take().map(Err)),
            Poll::Pending => Poll::Pending,
        }
    }
}
