//! [`UiMessageStream`]: the frames of a response as an `http_body::Body`, and the headers for it.
//!
//! The body polls the agent's stream itself, without a task or a channel. When the client
//! disconnects, the server drops the body, and with it the agent's stream.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::FutureExt;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};

use super::pipeline::{Events, IntoEvent, Pipeline, Source, StreamError};
use super::summary::ResponseSummary;
use super::writer::{UiWriter, WriteError, written_events};
use crate::boxed::BoxFuture;
use crate::chunk::Version;
use crate::id::MessageId;
use crate::json::Json;
use crate::message::UiMessage;
use crate::request::ChatRequest;
use crate::sse::KEEP_ALIVE;
use crate::translator::Translator;

/// The response to a chat request: a body that sends the events of an agent as frames.
///
/// `UiMessageStream` implements [`http_body::Body`] for every server built on hyper, `Stream` of
/// bytes for other servers, and `IntoResponse` with the `axum` feature. Send [`headers`] with it;
/// [`into_http_response`](Self::into_http_response) and axum add them. It never yields an error, see
/// [`BodyError`].
///
/// The first poll returns the `start` frame, before the agent's stream is polled. Frames that are
/// ready at the same time are sent together. A comment every 15 seconds keeps an idle connection
/// open. If the agent's stream ends, yields an error or panics, the response closes all open parts
/// and ends the message.
///
/// A stream that ends is a success. If the events come over a channel from an agent on a task of its
/// own, the channel also ends when that agent panics: await the task's `JoinHandle` after the last
/// event, and yield its error.
///
/// After an event that ends the response ([`Finish`](crate::AgentEvent::Finish), `Error`, `Abort`)
/// the agent's stream is not polled again: code after that event does not run.
///
/// ```
/// use futures::stream;
/// use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
///
/// async fn chat(chat: ChatRequest) -> UiMessageStream {
///     let events = stream::iter([AgentEvent::text("Hello!")]);
///     UiMessageStream::reply(&chat, events).on_finish(|end| {
///         // Store the message.
///         println!("{:?}: {:?}", end.outcome, end.message);
///     })
/// }
/// # let _ = chat;
/// ```
///
/// # Panics
/// Keep-alive comments and [`with_input_delta_coalescing`](Self::with_input_delta_coalescing) need
/// tokio's timer. Polling outside of a tokio runtime panics, unless the comments are disabled by
/// [`with_keep_alive(None)`](Self::with_keep_alive) and coalescing is not set.
///
/// # Cancel safety
/// Dropping the response before its end calls the function of [`on_finish`](Self::on_finish) with
/// [`ResponseOutcome::Disconnected`](crate::response::ResponseOutcome::Disconnected) and drops the
/// agent's stream.
#[doc(alias = "useChat")]
#[must_use = "a response does nothing until it is read"]
pub struct UiMessageStream {
    pipeline: Pipeline,
    /// `None` once the response has ended.
    source: Option<Box<dyn Source>>,
    start_frame: StartFrame,
    keep_alive: Option<Duration>,
    idle: Option<Pin<Box<Sleep>>>,
    input_delta_delay: Option<Duration>,
    /// The number of the piece of tool input that is held back, and the timer that sends it.
    input_delta_due: Option<(u64, Pin<Box<Sleep>>)>,
    abort_signal: Option<BoxFuture<'static, ()>>,
}

/// The state of the `start` frame.
#[derive(Debug, Clone, Copy)]
enum StartFrame {
    Unsent,
    Sent,
    Flushed,
}

impl UiMessageStream {
    /// Creates the response to a request from the events of an agent: `AgentEvent`s, or `Result`s
    /// of them.
    ///
    /// The response continues the request's [`continued_message`](ChatRequest::continued_message),
    /// if there is one. Otherwise it begins a message with a fresh id.
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
        S: Stream<Item: IntoEvent> + Send + 'static,
    {
        let mut response = Self::with_translator(translator_for(chat), events);
        response.pipeline.continued().posted = chat.unsanitized_continued_message().cloned();
        response
    }

    /// Creates the response to a request from a function that writes it. Each event is sent as soon
    /// as the function writes it.
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
        Self::reply(chat, written_events(write))
    }

    /// Creates a response from the events of an agent and a translator that the caller configured.
    pub fn with_translator<S>(translator: Translator, events: S) -> Self
    where
        S: Stream<Item: IntoEvent> + Send + 'static,
    {
        UiMessageStream {
            pipeline: Pipeline::new(translator),
            source: Some(Box::new(Events(Box::pin(events)))),
            start_frame: StartFrame::Unsent,
            keep_alive: Some(Duration::from_secs(15)),
            idle: None,
            input_delta_delay: None,
            input_delta_due: None,
            abort_signal: None,
        }
    }

    /// Sets the oldest version of the AI SDK (npm package `ai`) that your clients use. Chunk kinds and
    /// fields that this version does not know are not sent. The default is [`Version::V6`].
    ///
    /// A client of [`Version::V5`] cannot answer approval requests. Request none for its response:
    /// see `ChatApprovals::without_requests`. For the responses of a `ChatServer`, use
    /// `ChatServer::with_version`, which sees to it.
    pub fn with_version(mut self, version: Version) -> Self {
        self.pipeline.configure(|translator| translator.with_version(version));
        self
    }

    /// Disables approval requests, see [`Translator::without_approvals`]. As for
    /// [`with_version`](Self::with_version), the agent must request none.
    pub fn without_approvals(mut self) -> Self {
        self.pipeline.configure(Translator::without_approvals);
        self
    }

    /// Sets the metadata that the message starts with, see [`Translator::with_metadata`].
    pub fn with_metadata(mut self, metadata: Json) -> Self {
        self.pipeline.configure(|translator| translator.with_metadata(metadata));
        self
    }

    /// Sets the keep-alive interval: if no frame was sent for this time, the response sends a
    /// comment. `None` disables the comments. The default is 15 seconds.
    pub fn with_keep_alive(mut self, every: Option<Duration>) -> Self {
        self.keep_alive = every;
        self
    }

    /// Holds pieces of a tool's input back for at most this long, to join them with later pieces.
    ///
    /// Without this setting, only pieces that are ready at the same time are joined. The client
    /// parses the whole input again for each piece. With fewer pieces the client has less work, but
    /// it shows the input later.
    pub fn with_input_delta_coalescing(mut self, at_most: Duration) -> Self {
        self.input_delta_delay = Some(at_most);
        self
    }

    /// Sets a function that is called for each error and returns the text that the user sees. If it
    /// returns `None`, the user sees [`UserText::AnswerFailed`](crate::UserText::AnswerFailed).
    ///
    /// For a [`StreamError::InvalidEvent`] the returned text is ignored: the response drops the
    /// event and continues, and the user sees no error.
    pub fn on_error(
        mut self,
        call: impl FnMut(&StreamError) -> Option<String> + Send + 'static,
    ) -> Self {
        self.pipeline.on_error(Box::new(call));
        self
    }

    /// Passes the host's own copy of the message that the response continues, so that the message to
    /// store is whole. `on_finish` then receives this message with what the response adds to it.
    ///
    /// The copy that the client posts is not enough: the client may have changed its text, or invented
    /// its calls and their outputs. Outcomes of calls that the stored message does not hold are sent,
    /// but not stored. Without this function, `on_finish` receives
    /// [`FinishedMessage::Added`](crate::response::FinishedMessage::Added) for a continued message.
    ///
    /// Outputs of tools that the client executes are not events of the response: see
    /// [`RunningCalls::unverified_outputs`](crate::approval::RunningCalls::unverified_outputs).
    pub fn continuing(mut self, stored: UiMessage) -> Self {
        self.pipeline.continued().stored = Some(stored);
        self
    }

    /// Sets a function that is called exactly once, when the response ends for any reason. It
    /// receives a summary with the message to store. The agent's stream is dropped after the call.
    ///
    /// The message is whole if the response begins it, or if the stored message was passed to
    /// [`continuing`](Self::continuing).
    ///
    /// The function is synchronous. It may be called while the response is dropped, on a thread
    /// without a runtime. To store the message with async code, call `Handle::current()` before
    /// `on_finish`, and spawn a task on that handle:
    ///
    /// ```
    /// use tokio::runtime::Handle;
    /// use ui_message_stream::response::FinishedMessage;
    /// use ui_message_stream::{AgentEvent, ChatRequest, UiMessage, UiMessageStream};
    ///
    /// async fn store(message: UiMessage) {
    ///     // INSERT INTO messages …
    /// #   let _ = message;
    /// }
    ///
    /// async fn chat(chat: ChatRequest) -> UiMessageStream {
    ///     let runtime = Handle::current();
    ///     let events = futures::stream::iter([AgentEvent::text("Hello!")]);
    ///     UiMessageStream::reply(&chat, events).on_finish(move |end| {
    ///         // What a response adds to a message of the client is not stored in its place.
    ///         if let Some(message) = end.message.and_then(FinishedMessage::whole) {
    ///             runtime.spawn(store(message));
    ///         }
    ///     })
    /// }
    /// # let _ = chat;
    /// ```
    #[doc(alias = "persist")]
    pub fn on_finish(mut self, call: impl FnOnce(ResponseSummary) + Send + 'static) -> Self {
        self.pipeline.on_finish(Box::new(call));
        self
    }

    /// Aborts the response when `signal` completes: closes all open parts, sends an `abort` chunk,
    /// and drops the agent's stream.
    #[doc(alias = "cancel")]
    pub fn abort_when(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        // A future that panics counts as completed: it could never complete later.
        self.abort_signal = Some(AssertUnwindSafe(signal).catch_unwind().map(drop).boxed());
        self
    }

    /// Converts the body to an HTTP response with its status and headers.
    pub fn into_http_response(self) -> http::Response<Self> {
        let mut response = http::Response::new(self);
        *response.headers_mut() = headers();
        response
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.start_frame {
            StartFrame::Unsent => {
                self.start_frame = StartFrame::Sent;
                self.pipeline.start();
                if let Some(frames) = self.pipeline.take_frames() {
                    return Poll::Ready(Some(frames));
                }
            }
            StartFrame::Sent => {
                // A server flushes when the body is pending. The first poll of the agent may take
                // long, so the `start` frame is flushed before it.
                self.start_frame = StartFrame::Flushed;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            StartFrame::Flushed => {}
        }
        if let Some(signal) = &mut self.abort_signal
            && signal.poll_unpin(cx).is_ready()
        {
            self.abort_signal = None;
            self.pipeline.abort();
        }
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

    /// Sends the piece of tool input that is held back, if its timer has fired or none is set.
    fn poll_input_delta(&mut self, cx: &mut Context<'_>) {
        let Some(held) = self.pipeline.held_input_delta() else {
            self.input_delta_due = None;
            return;
        };
        if let Some(wait) = self.input_delta_delay {
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

/// The error of a response as a body: it ends before its message does, and its connection has to be
/// broken off. A client can continue a response whose frames have an `id:`.
///
/// A [`UiMessageStream`] never yields it: an error of the agent is a chunk of the response. The
/// responses of a chat server yield it if they cannot read the rest of a run. Servers require an error
/// that they can convert to theirs: a boxed error, or [`io::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The rest of the response cannot be read now.
    #[error("the rest of the response cannot be read now")]
    CutOff,
}

impl From<BodyError> for io::Error {
    fn from(error: BodyError) -> Self {
        io::Error::other(error)
    }
}

impl Body for UiMessageStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll_bytes(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Stream for UiMessageStream {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_bytes(cx).map(|bytes| bytes.map(Ok))
    }
}

impl fmt::Debug for UiMessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UiMessageStream").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}

/// Returns the headers of the protocol, for a response that the caller builds.
///
/// `no-transform` and `x-accel-buffering` keep proxies from holding frames back. The header
/// `connection` is not included: it does not exist in HTTP/2.
pub fn headers() -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform")),
        (HeaderName::from_static("x-vercel-ai-ui-message-stream"), HeaderValue::from_static("v1")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ])
}

fn translator_for(chat: &ChatRequest) -> Translator {
    // The unsanitized message: the client also holds tool calls that the server ignores, because
    // they repeat an id.
    match chat.unsanitized_continued_message() {
        Some(message) => Translator::continuing(message),
        None => Translator::new(fresh_message_id()),
    }
}

#[expect(clippy::disallowed_methods, reason = "the glue hands the core its fresh ids")]
fn fresh_message_id() -> MessageId {
    format!("msg_{}", uuid::Uuid::new_v4().simple()).into()
}
