//! [`collect_chunks`]: a response's body, read to its end.

use std::future::poll_fn;
use std::pin::pin;

use bytes::Buf;
use http_body::Body;

use crate::chunk::{Chunk, ReadChunkError, Received};
use crate::sse::{Decoder, Event};
use crate::stream::BoxError;

/// Reads a response's body to its end: a [`UiMessageStream`](crate::UiMessageStream), the body of
/// an axum response, or any other [`http_body::Body`].
///
/// ```
/// use futures::stream;
/// use ui_message_stream::testing::collect_chunks;
/// use ui_message_stream::{AgentEvent, Translator, UiMessageStream};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let events = stream::iter([AgentEvent::text("Hi")]);
/// let response = UiMessageStream::with_translator(Translator::new("msg_1"), events);
/// let kinds: Vec<_> = collect_chunks(response).await?.iter().map(|chunk| chunk.kind()).collect();
/// assert_eq!(kinds[..3], ["start", "start-step", "text-start"]);
/// # Ok::<(), ui_message_stream::testing::CollectError>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// [`CollectError`] says what of the body is no chunk that every client reads, and on which line.
pub async fn collect_chunks<B>(body: B) -> Result<Vec<Chunk<'static>>, CollectError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let read = ReadBody::of(body, None).await;
    let mut chunks = Vec::new();
    for Event { line, data, .. } in read.chunk_events() {
        let line = *line;
        match Received::parse(data).map_err(|source| CollectError::NotAChunk { line, source })? {
            Received::Known { chunk, extra } => {
                if let Some((key, _)) = extra.into_iter().next() {
                    let kind = chunk.kind().into_owned();
                    return Err(CollectError::UnknownKey { line, kind, key: key.into() });
                }
                chunks.push(chunk.into_owned());
            }
            Received::Unknown { kind, .. } => {
                return Err(CollectError::UnknownKind { line, kind: kind.into_owned() });
            }
        }
    }
    if let Some(source) = read.broken {
        return Err(CollectError::BrokenOff { chunks: chunks.len(), source });
    }
    if let Some(line) = read.unfinished {
        return Err(CollectError::Unfinished { line });
    }
    if chunks.is_empty() {
        return Err(CollectError::NoChunks { body: read.text() });
    }
    Ok(chunks)
}

/// Why a body is not a stream of chunks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// There is not one chunk in it: a refusal, or a page.
    #[error("the body holds no chunk, but {body:?}")]
    NoChunks {
        /// What it holds.
        body: String,
    },
    /// An event that the client cannot read. It drops everything after it.
    #[error("line {line}: {source}")]
    NotAChunk {
        /// The line of the event, counted from 1.
        line: usize,
        /// What is wrong with it.
        source: ReadChunkError,
    },
    /// A kind that no `ai@6` knows. The client drops everything after it.
    #[error("line {line}: no client knows a chunk of type {kind:?}")]
    UnknownKind {
        /// The line of the event, counted from 1.
        line: usize,
        /// Its `type`.
        kind: String,
    },
    /// A key that no client knows: those before `ai@6.0.231` drop everything after it.
    #[error("line {line}: {kind} has no key {key:?}, and clients before 6.0.231 refuse it")]
    UnknownKey {
        /// The line of the event, counted from 1.
        line: usize,
        /// The chunk's `type`.
        kind: String,
        /// The key.
        key: String,
    },
    /// The body ends within an event, which the client never sees.
    #[error("line {line}: the body ends within this event")]
    Unfinished {
        /// The line of the event, counted from 1.
        line: usize,
    },
    /// The body itself failed.
    #[error("the body broke off after {chunks} chunks")]
    BrokenOff {
        /// How many chunks came before.
        chunks: usize,
        /// Why.
        source: BoxError,
    },
}

/// A body that was read to its end.
#[derive(Debug, Default)]
pub(super) struct ReadBody {
    bytes: Vec<u8>,
    events: Vec<Event>,
    /// The line of an event that has no end.
    pub(super) unfinished: Option<usize>,
    /// Why it broke off.
    pub(super) broken: Option<BoxError>,
    /// Whether it was let go of before its end.
    pub(super) is_cut_off: bool,
}

impl ReadBody {
    /// Reads to the end, or so many chunks; then the body is dropped, as where a client hangs up.
    pub(super) async fn of<B>(body: B, most: Option<usize>) -> Self
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let mut body = pin!(body);
        let mut read = ReadBody::default();
        let mut decoder = Decoder::default();
        let has_enough = |read: &Self| most.is_some_and(|most| read.chunk_events().count() >= most);
        while !has_enough(&read)
            && let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await
        {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(mut data)) => {
                    let piece = data.copy_to_bytes(data.remaining());
                    decoder.push(&piece);
                    read.bytes.extend_from_slice(&piece);
                    read.events.extend(std::iter::from_fn(|| decoder.poll()));
                }
                // Trailers are nobody's.
                Ok(Err(_)) => {}
                Err(error) => {
                    read.broken = Some(error.into());
                    break;
                }
            }
        }
        if let Some(most) = most.filter(|_| has_enough(&read)) {
            // What came in one piece with it is not looked at any more.
            read.events.retain(|event| event.data != DONE);
            read.events.truncate(most);
            read.is_cut_off = true;
            return read;
        }
        read.unfinished = decoder.unfinished().filter(|_| read.broken.is_none());
        read
    }

    /// The events that are to be chunks.
    pub(super) fn chunk_events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| event.data != DONE)
    }

    /// The whole of it, as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// What the client passes over.
const DONE: &str = "[DONE]";
