//! [`UiMessageStream`]: a response's frames as an `http_body::Body`, and the headers that go with it.
//!
//! The body polls the agent itself: no task, no channel. When the client goes away the body is
//! dropped, and the agent's stream with it.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};

use crate::chunk::Version;
use crate::id::MessageId;
use crate::json::Json;
use crate::message::UiMessage;
use crate::reducer::Reducer;
use crate::request::ChatRequest;
use crate::sse::KEEP_ALIVE;
use crate::stream::{EventItem, Events, Pipeline, ResponseEnd, Source, StreamError};
use crate::translator::Translator;
use crate::writer::{UiWriter, WriteError, Written};

/// A response to a chat: a body that says what the agent does, as the client reads it.
///
/// It is an [`http_body::Body`] for every server built on hyper, a `Stream` of bytes for the
/// others, and with the `axum` feature an axum response. Send it with [`headers`].
///
/// Its `start` frame is there at once, before the agent is polled; what is ready together leaves
/// together; a comment every 15 seconds keeps an idle connection open. However the agent's stream
/// ends, panics included, the message is closed as the client expects.
///
/// An event that ends the response ([`Finish`](crate::AgentEvent::Finish), `Error`, `Abort`) is the
/// last that the agent's stream is asked for: what it would do after it, it does not get to.
///
/// # Panics
/// Keep-alive comments and waiting for tool input need tokio's timer: polled outside of a tokio
/// runtime it panics, unless [`with_keep_alive(None)`](Self::with_keep_alive).
///
/// # Cancel safety
/// Dropping it drops the agent's stream and calls [`on_finish`](Self::on_finish) with
/// [`Outcome::Disconnected`](crate::stream::Outcome).
#[must_use = "a response does nothing until it is read"]
pub struct UiMessageStream {
    pipeline: Pipeline,
    /// `None` once the response has ended.
    source: Option<Box<dyn Source>>,
    opening: Opening,
    /// The message that the response goes on with, for what is told in the end.
    continued: Option<UiMessage>,
    keep_alive: Option<Duration>,
    idle: Option<Pin<Box<Sleep>>>,
    input_delta_wait: Option<Duration>,
    /// When the piece of tool input with this number is to leave.
    input_delta_due: Option<(u64, Pin<Box<Sleep>>)>,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// How far the `start` frame is on its way.
#[derive(Debug, Clone, Copy)]
enum Opening {
    Unsaid,
    Said,
    Flushed,
}

impl UiMessageStream {
    /// Answers a request with the events of an agent: `AgentEvent`s, or `Result`s of them.
    ///
    /// The answer goes on with the message that the request continues, if it continues one; else
    /// it begins a message with a fresh id.
    ///
    /// ```
    /// use futures::stream;
    /// use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
    ///
    /// fn answer(chat: &ChatRequest) -> UiMessageStream {
    ///     UiMessageStream::reply(chat, stream::iter([AgentEvent::text("Hello")]))
    /// }
    /// # let _ = answer;
    /// ```
    pub fn reply<S>(chat: &ChatRequest, events: S) -> Self
    where
        S: Stream<Item: EventItem> + Send + 'static,
    {
        let mut response = Self::with_translator(translator_for(chat), events);
        response.continued = chat.continued_as_sent().cloned();
        response
    }

    /// Answers with what a function writes, as it writes it.
    ///
    /// ```
    /// use ui_message_stream::{ChatRequest, UiMessageStream};
    ///
    /// fn answer(chat: &ChatRequest) -> UiMessageStream {
    ///     UiMessageStream::from_fn(chat, async |ui| {
    ///         ui.text("Hello").await?;
    ///         ui.data("status", &"done").await
    ///     })
    /// }
    /// # let _ = answer;
    /// ```
    pub fn from_fn<F, Fut>(chat: &ChatRequest, write: F) -> Self
    where
        F: FnOnce(UiWriter) -> Fut,
        Fut: Future<Output = Result<(), WriteError>> + Send + 'static,
    {
        Self::reply(chat, Written::new(write))
    }

    /// Sends the events through a translator that you set up.
    pub fn with_translator<S>(translator: Translator, events: S) -> Self
    where
        S: Stream<Item: EventItem> + Send + 'static,
    {
        UiMessageStream {
            pipeline: Pipeline::new(translator),
            source: Some(Box::new(Events(Box::pin(events)))),
            opening: Opening::Unsaid,
            continued: None,
            keep_alive: Some(Duration::from_secs(15)),
            idle: None,
            input_delta_wait: None,
            input_delta_due: None,
            stop: None,
        }
    }

    /// Writes for the oldest client that will read; [`Version::V6`] unless set.
    pub fn with_version(mut self, version: Version) -> Self {
        self.pipeline.configure(|translator| translator.with_version(version));
        self
    }

    /// Never asks a person: see [`Translator::without_approvals`].
    pub fn without_approvals(mut self) -> Self {
        self.pipeline.configure(Translator::without_approvals);
        self
    }

    /// Metadata that the message starts with.
    pub fn with_metadata(mut self, metadata: Json) -> Self {
        self.pipeline.configure(|translator| translator.with_metadata(metadata));
        self
    }

    /// Sends a comment after each such silence, or none. Every 15 seconds unless set.
    pub fn with_keep_alive(mut self, every: Option<Duration>) -> Self {
        self.keep_alive = every;
        self
    }

    /// Holds pieces of a tool's input back for at most this long, for more to join them.
    ///
    /// Pieces that are ready together leave as one in any case. The client parses the whole input
    /// again with each piece, so fewer pieces spare it work; they also come later.
    pub fn with_input_delta_wait(mut self, at_most: Duration) -> Self {
        self.input_delta_wait = Some(at_most);
        self
    }

    /// Sees what goes wrong, and says what the person reads of it: `None` is
    /// [`MASKED_ERROR`](crate::stream::MASKED_ERROR).
    ///
    /// Of a [`StreamError::Dropped`] nobody reads anything, whatever is said here.
    pub fn on_error(
        mut self,
        call: impl FnMut(&StreamError) -> Option<String> + Send + 'static,
    ) -> Self {
        self.pipeline.on_error(Box::new(call));
        self
    }

    /// Called exactly once, when the response has ended, however it did, with the message to store;
    /// the agent's stream is dropped after it.
    ///
    /// It may run while the response is dropped, so it neither waits nor needs a runtime.
    pub fn on_finish(mut self, call: impl FnOnce(ResponseEnd) + Send + 'static) -> Self {
        let reducer = match self.continued.take() {
            Some(message) => Reducer::continuing(message),
            None => Reducer::new(),
        };
        self.pipeline.on_finish(Box::new(call), reducer);
        self
    }

    /// Stops the run when this completes: what is open is closed, and an `abort` chunk is the end.
    pub fn stop_when(mut self, stop: impl Future<Output = ()> + Send + 'static) -> Self {
        self.stop = Some(Box::pin(stop));
        self
    }

    /// The response with its status and headers.
    pub fn into_http_response(self) -> http::Response<Self> {
        let mut response = http::Response::new(self);
        *response.headers_mut() = headers();
        response
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.opening {
            Opening::Unsaid => {
                self.opening = Opening::Said;
                self.pipeline.start();
                if let Some(frames) = self.pipeline.take_frames() {
                    return Poll::Ready(Some(frames));
                }
            }
            Opening::Said => {
                // A server flushes when there is nothing more to read: what the agent does in its
                // first poll may take its time.
                self.opening = Opening::Flushed;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Opening::Flushed => {}
        }
        self.poll_stop(cx);
        let polled = match &mut self.source {
            Some(source) => source.poll_fill(cx, &mut self.pipeline),
            None => Poll::Ready(()),
        };
        if self.pipeline.is_ended() {
            self.source = None;
            self.idle = None;
            return Poll::Ready(self.pipeline.take_frames());
        }
        if polled.is_pending() {
            self.poll_input_delta(cx);
        }
        if let Some(frames) = self.pipeline.take_frames() {
            self.idle = None;
            return Poll::Ready(Some(frames));
        }
        self.poll_keep_alive(cx)
    }

    fn poll_stop(&mut self, cx: &mut Context<'_>) {
        if let Some(stop) = &mut self.stop
            // A signal that panics will never come.
            && catch_unwind(AssertUnwindSafe(|| stop.as_mut().poll(cx).is_ready())).unwrap_or(true)
        {
            self.stop = None;
            self.pipeline.abort();
        }
    }

    /// Releases a held piece of tool input when its time has come.
    fn poll_input_delta(&mut self, cx: &mut Context<'_>) {
        let Some(held) = self.pipeline.held_input_delta() else {
            self.input_delta_due = None;
            return;
        };
        if let Some(wait) = self.input_delta_wait {
            let due = match &mut self.input_delta_due {
                Some((of, due)) if *of == held => due,
                other => &mut other.insert((held, Box::pin(sleep(wait)))).1,
            };
            if due.as_mut().poll(cx).is_pending() {
                return;
            }
        }
        self.input_delta_due = None;
        self.pipeline.release_input_delta();
    }

    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(every) = self.keep_alive else {
            return Poll::Pending;
        };
        let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(every)));
        std::task::ready!(idle.as_mut().poll(cx));
        self.idle = None;
        Poll::Ready(Some(Bytes::from_static(KEEP_ALIVE)))
    }
}

impl Body for UiMessageStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.poll_bytes(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Stream for UiMessageStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_bytes(cx).map(|bytes| bytes.map(Ok))
    }
}

impl fmt::Debug for UiMessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UiMessageStream").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}

/// The headers of the protocol, for a response made by hand.
///
/// `no-transform` and `x-accel-buffering` keep proxies from holding frames back. There is no
/// `connection` among them: it does not exist in HTTP/2.
pub fn headers() -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform")),
        (HeaderName::from_static("x-vercel-ai-ui-message-stream"), HeaderValue::from_static("v1")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ])
}

fn translator_for(chat: &ChatRequest) -> Translator {
    // As it was sent: a repeated tool call that nobody acts on is still one that the client holds.
    match chat.continued_as_sent() {
        Some(message) => Translator::continuing(message),
        None => Translator::new(fresh_message_id()),
    }
}

#[expect(clippy::disallowed_methods, reason = "the glue hands the core its fresh ids")]
pub(crate) fn fresh_message_id() -> MessageId {
    format!("msg_{}", uuid::Uuid::new_v4().simple()).into()
}
