//! [`ChatStream`]: the response of a chat server, which reads the log of a run.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use http_body::{Body, Frame};
use tokio::time::timeout;

use super::Chat;
use super::error::ChatError;
use super::log::client::Client;
use super::log::replay::whole_response;
use super::readers::Reader;
use ui_message_stream::id::{MessageId, log_causes};
use ui_message_stream::message::{Role, UiMessage};
use ui_message_stream::response::{BodyError, headers};
use ui_message_stream::sse::KEEP_ALIVE;

/// The response of a [`ChatServer`](super::ChatServer): the frames of a run as they are written,
/// a stored message, or the [events](super::ChatServer::follow) of all chats of a user.
///
/// `ChatStream` implements [`http_body::Body`] for every server built on hyper, `Stream` of bytes for
/// other servers, and `IntoResponse` with the `axum` feature. Send
/// [`headers`](ui_message_stream::response::headers) with it;
/// [`into_http_response`](Self::into_http_response) and axum add them.
///
/// Any number of responses read the same run, and none of them delays it. The run continues if a
/// response is dropped. Each frame of a run has an `id:`, from which
/// [`resume_stream`](super::ChatServer::resume_stream) continues. A comment every 15 seconds keeps an
/// idle connection open.
///
/// If the rest of a run cannot be read now, the body yields [`BodyError`], and the server breaks the
/// connection off. A client that continues by its last `id:` gets the rest later, or from another
/// server.
///
/// # Panics
/// Polling outside of a tokio runtime panics.
#[must_use = "a response does nothing until it is read"]
pub struct ChatStream(Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>);

impl ChatStream {
    /// Creates a stream of a stored message, for a client that holds `posted` of it.
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user does not read what its responses hold.
    pub(super) fn of_stored(
        chat: &Chat,
        id: &MessageId,
        posted: Option<&UiMessage>,
        client: Client,
        reader: Reader,
    ) -> Result<Self, ChatError> {
        let removed;
        let message = match chat.message(id) {
            Some(message) => message,
            None => {
                removed = UiMessage::new(id.clone(), Role::Assistant, Vec::new());
                &removed
            }
        };
        let end = chat.early_end(id);
        let unsent: Vec<_> =
            chat.unsent_approvals.iter().map(|unsent| unsent.tool_call_id.clone()).collect();
        let [first, rest] = whole_response(posted, message, (end, &unsent), client);
        let frames = std::iter::once(first.into()).chain(reader.pieces(rest)?);
        Ok(ChatStream(stream::iter(frames).map(Ok).boxed()))
    }

    /// Creates a stream that is not known yet. It sends comments until then, and is cut off if
    /// there is none.
    pub(super) fn later(
        stream: impl Future<Output = Result<ChatStream, ChatError>> + Send + 'static,
    ) -> Self {
        let pages = stream::unfold(Later::Unknown(stream.boxed()), async |later| {
            let mut stream = match later {
                Later::Known(stream) => stream,
                Later::Unknown(mut unknown) => {
                    match timeout(KEEP_ALIVE_INTERVAL, &mut unknown).await {
                        Ok(Ok(stream)) => stream,
                        Ok(Err(ChatError::ShuttingDown)) => return None,
                        Ok(Err(error)) => {
                            tracing::error!(
                                error = log_causes(&error),
                                "a response that has begun is cut off"
                            );
                            let ended = ChatStream(stream::empty().boxed());
                            return Some((Err(BodyError::CutOff), Later::Known(ended)));
                        }
                        Err(_) => {
                            let comment = Bytes::from_static(KEEP_ALIVE);
                            return Some((Ok(comment), Later::Unknown(unknown)));
                        }
                    }
                }
            };
            let page = stream.0.next().await?;
            Some((page, Later::Known(stream)))
        });
        ChatStream(pages.boxed())
    }

    /// Creates a stream of the pages of a run.
    pub(super) fn of_pages(
        pages: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static,
    ) -> Self {
        ChatStream(pages.boxed())
    }

    /// Converts the body to an HTTP response with its status and headers.
    pub fn into_http_response(self) -> http::Response<Self> {
        let mut response = http::Response::new(self);
        *response.headers_mut() = headers();
        response
    }
}

/// The state of a stream that is not known when it begins.
enum Later {
    Unknown(BoxFuture<'static, Result<ChatStream, ChatError>>),
    Known(ChatStream),
}

impl Body for ChatStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.poll_next_unpin(cx).map(|page| page.map(|page| page.map(Frame::data)))
    }
}

impl Stream for ChatStream {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for ChatStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatStream").finish_non_exhaustive()
    }
}

/// How long a response is silent before it sends a comment, so that no proxy closes its connection.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
