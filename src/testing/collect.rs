//! [`collect_chunks`]: reads the body of a response to its end.

use std::future::poll_fn;
use std::pin::pin;

use bytes::Buf;
use http_body::Body;

use crate::boxed::BoxError;
use crate::chunk::{Chunk, ChunkReader, ReadChunkError, ReceivedChunk};
use crate::sse::{Decoder, Event};

/// Reads the body of a response to its end and returns its chunks. Accepts a
/// [`UiMessageStream`](crate::UiMessageStream), the body of an axum response, or any other
/// [`http_body::Body`].
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
/// - [`CollectError::NotAChunk`], [`CollectError::UnknownKind`] or [`CollectError::UnknownKey`] for
///   the first event that not every client can read. The error names the line of the event.
/// - [`CollectError::BodyError`] if the body fails.
/// - [`CollectError::Unfinished`] if the body ends within an event.
/// - [`CollectError::NoChunks`] if the body holds no chunk.
pub async fn collect_chunks<B>(body: B) -> Result<Vec<Chunk<'static>>, CollectError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let read = ReadBody::read(body, None).await;
    let mut reader = ChunkReader::default();
    let mut chunks = Vec::new();
    for Event { line, data, .. } in read.chunk_events() {
        let line = *line;
        match reader.read(data).map_err(|source| CollectError::NotAChunk { line, source })? {
            ReceivedChunk::Known { chunk, extra } => {
                if let Some((key, _)) = extra.into_iter().next() {
                    let kind = chunk.kind().into_owned();
                    return Err(CollectError::UnknownKey { line, kind, key: key.into() });
                }
                chunks.push(chunk.into_owned());
            }
            ReceivedChunk::Unknown { kind, .. } => {
                return Err(CollectError::UnknownKind { line, kind: kind.into_owned() });
            }
        }
    }
    if let Some(source) = read.error {
        return Err(CollectError::BodyError { chunks: chunks.len(), source });
    }
    if let Some(line) = read.incomplete_event_line {
        return Err(CollectError::Unfinished { line });
    }
    if chunks.is_empty() {
        return Err(CollectError::NoChunks { body: read.text() });
    }
    Ok(chunks)
}

/// The reason why a body is not a stream of chunks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// The body holds no chunk. It may be an error response or an HTML page.
    #[error("the body holds no chunk, but {body:?}")]
    NoChunks {
        /// The text of the body.
        body: String,
    },
    /// An event that the client cannot read. The client drops everything after it.
    #[error("line {line}: {source}")]
    NotAChunk {
        /// The line of the event, counted from 1.
        line: usize,
        /// The error in the event.
        source: ReadChunkError,
    },
    /// A chunk type that no `ai@6` knows. The client drops everything after it.
    #[error("line {line}: no client knows a chunk of type {kind:?}")]
    UnknownKind {
        /// The line of the event, counted from 1.
        line: usize,
        /// The `type` of the chunk.
        kind: String,
    },
    /// A key that no client knows. Clients before `ai@6.0.231` drop everything after it.
    #[error("line {line}: {kind} has no key {key:?}, and clients before 6.0.231 refuse it")]
    UnknownKey {
        /// The line of the event, counted from 1.
        line: usize,
        /// The `type` of the chunk.
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
    BodyError {
        /// How many chunks came before the failure.
        chunks: usize,
        /// The error of the body.
        source: BoxError,
    },
}

/// A body that was read.
#[derive(Debug, Default)]
pub(super) struct ReadBody {
    bytes: Vec<u8>,
    events: Vec<Event>,
    /// The line of an event that was not complete at the end of the body.
    pub(super) incomplete_event_line: Option<usize>,
    /// The error with which the body failed.
    pub(super) error: Option<BoxError>,
    /// Whether the body was dropped before its end.
    pub(super) is_cut_off: bool,
}

impl ReadBody {
    /// Reads to the end, or until `max_chunks` chunks were read. The body is then dropped, as when
    /// a client disconnects.
    pub(super) async fn read<B>(body: B, max_chunks: Option<usize>) -> Self
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let mut body = pin!(body);
        let mut read = ReadBody::default();
        let mut decoder = Decoder::default();
        let has_enough = |read: &Self| {
            max_chunks.is_some_and(|max_chunks| read.chunk_events().count() >= max_chunks)
        };
        while !has_enough(&read)
            && let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await
        {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(mut data)) => {
                    let bytes = data.copy_to_bytes(data.remaining());
                    decoder.push(&bytes);
                    read.bytes.extend_from_slice(&bytes);
                    read.events.extend(std::iter::from_fn(|| decoder.poll()));
                }
                // Trailers are ignored.
                Ok(Err(_)) => {}
                Err(error) => {
                    read.error = Some(error.into());
                    break;
                }
            }
        }
        if let Some(max_chunks) = max_chunks.filter(|_| has_enough(&read)) {
            // Events in the same frame after the last wanted chunk are ignored.
            read.events.retain(|event| event.data != DONE);
            read.events.truncate(max_chunks);
            read.is_cut_off = true;
            return read;
        }
        read.incomplete_event_line =
            decoder.incomplete_event_line().filter(|_| read.error.is_none());
        read
    }

    /// Returns the events whose data should be a chunk.
    pub(super) fn chunk_events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| event.data != DONE)
    }

    /// Returns the whole body as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// The data of the event that the client ignores.
const DONE: &str = "[DONE]";
