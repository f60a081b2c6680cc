//! [`ResponseReader`]: the bytes of a response in, the message out.

use std::sync::Arc;

use super::{ReduceError, Reducer};
use crate::chunk::{Chunk, ChunkReader, ReadChunkError, ReceivedChunk};
use crate::message::UiMessage;
use crate::sse::Decoder;

/// Reads a response for a client in Rust: decodes the event stream, reduces its chunks to the
/// message, and knows how to read on after a lost connection. `examples/client.rs` of the demo is
/// such a client.
///
/// ```
/// use ui_message_stream::UiMessage;
/// use ui_message_stream::message::{Part, Role};
/// use ui_message_stream::reducer::ResponseReader;
///
/// let question = UiMessage::new("m1", Role::User, vec![Part::text("Hi")]);
/// let mut reader = ResponseReader::continuing(question);
/// assert_eq!(reader.connect()?, None); // POST {url}
/// let text = reader.push(
///     b"id: r1-1\ndata: {\"type\":\"start\",\"messageId\":\"m2\"}\n\n\
///       id: r1-2\ndata: {\"type\":\"text-start\",\"id\":\"0\"}\n\n\
///       id: r1-3\ndata: {\"type\":\"text-delta\",\"id\":\"0\",\"delta\":\"Hello\"}\n\n\
///       data: {\"type\":\"text-de",
/// )?;
/// assert_eq!(text, "Hello");
/// assert!(!reader.is_complete());
/// // GET {url}/{chat id}/stream with the header `Last-Event-ID: r1-3`
/// assert_eq!(reader.connect()?.as_deref(), Some("r1-3"));
/// reader.push(b"data: {\"type\":\"text-end\",\"id\":\"0\"}\n\ndata: [DONE]\n\n")?;
/// assert!(reader.is_complete());
/// assert_eq!(reader.into_message().text(), "Hello");
/// # Ok::<(), ui_message_stream::reducer::ReadResponseError>(())
/// ```
#[derive(Debug)]
pub struct ResponseReader {
    /// The last message of the request.
    continued: UiMessage,
    decoder: Decoder,
    chunks: ChunkReader,
    reducer: Reducer,
    last_event_id: Option<Arc<str>>,
    is_complete: bool,
    /// The connections since the last event.
    connections: u32,
}

impl ResponseReader {
    /// Creates a reader of the response to a request whose last message is this one. If it is an
    /// assistant message, the response continues it.
    pub fn continuing(message: UiMessage) -> Self {
        ResponseReader {
            decoder: Decoder::default(),
            chunks: ChunkReader::default(),
            reducer: Reducer::continuing(message.clone()),
            continued: message,
            last_event_id: None,
            is_complete: false,
            connections: 0,
        }
    }

    /// Begins with a connection, and drops the incomplete event of the one before. Returns the
    /// `Last-Event-ID` to reconnect with. With `None` the message is again as it was before the
    /// response, and the request has to be posted, also if it was before: a
    /// `ChatServer` recognizes it. Another server would answer it twice.
    ///
    /// Wait before each connection but the first (a second, then more), and treat a connection that
    /// is refused like one that ended: call this again.
    ///
    /// # Errors
    /// [`ReadResponseError::NoProgress`] if each of the last three connections ended without an event.
    pub fn connect(&mut self) -> Result<Option<Arc<str>>, ReadResponseError> {
        if self.connections == MAX_FRUITLESS_CONNECTIONS {
            return Err(ReadResponseError::NoProgress);
        }
        self.connections += 1;
        self.decoder = Decoder::default();
        if self.last_event_id.is_none() {
            self.chunks = ChunkReader::default();
            self.reducer = Reducer::continuing(self.continued.clone());
        }
        Ok(self.last_event_id.clone())
    }

    /// Reads the next bytes of a body, split anywhere. Returns the text that they add to the
    /// message, without a separator between two text parts.
    ///
    /// # Errors
    /// [`ReadResponseError`], if the client would throw or the response ends with an error.
    /// Reconnecting does not help then. [`into_message`](Self::into_message) returns what was read
    /// before.
    pub fn push(&mut self, bytes: &[u8]) -> Result<String, ReadResponseError> {
        self.decoder.push(bytes);
        let mut text = String::new();
        while let Some(event) = self.decoder.poll() {
            self.connections = 0;
            if event.data == "[DONE]" {
                self.is_complete = true;
                continue;
            }
            let received = self.chunks.read(&event.data)?;
            self.reducer.push(&received)?;
            match received {
                ReceivedChunk::Known { chunk: Chunk::TextDelta { delta, .. }, .. } => {
                    text.push_str(&delta);
                }
                ReceivedChunk::Known { chunk: Chunk::Error { error_text }, .. } => {
                    return Err(ReadResponseError::Failed(error_text.into_owned()));
                }
                _ => {}
            }
            self.last_event_id = event.id.or(self.last_event_id.take());
        }
        Ok(text)
    }

    /// Returns whether the response was read to its end.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the message, as far as it was read. It takes the place of the last message of the
    /// request if it has the same id, and follows it otherwise.
    pub fn into_message(self) -> UiMessage {
        self.reducer.into_message()
    }
}

/// The reason why a response cannot be read to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadResponseError {
    /// An event holds no chunk.
    #[error("an event of the stream cannot be read: {0}")]
    Chunk(#[from] ReadChunkError),
    /// A chunk does not fit the message.
    #[error("the stream is wrong: {0}")]
    Reduce(#[from] ReduceError),
    /// The server says that the response has failed.
    #[error("the response failed: {0}")]
    Failed(String),
    /// Three connections in a row ended without an event. The server cannot be reached, or has
    /// forgotten the response.
    #[error(
        "three connections in a row ended without an event; the response may have been forgotten"
    )]
    NoProgress,
}

const MAX_FRUITLESS_CONNECTIONS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Role;

    const START: &[u8] = b"data: {\"type\":\"start\",\"messageId\":\"m2\"}\n\n\
        data: {\"type\":\"text-start\",\"id\":\"0\"}\n\n\
        data: {\"type\":\"text-delta\",\"id\":\"0\",\"delta\":\"Hello\"}\n\n";

    fn reader() -> ResponseReader {
        ResponseReader::continuing(UiMessage::new("m1", Role::User, Vec::new()))
    }

    #[test]
    fn a_request_that_is_posted_again_is_read_from_the_beginning() {
        let mut reader = reader();
        for _ in 0..2 {
            assert_eq!(reader.connect().unwrap(), None);
            assert_eq!(reader.push(START).unwrap(), "Hello");
        }
        assert_eq!(reader.into_message().text(), "Hello");
    }

    #[test]
    fn the_fourth_connection_without_an_event_is_an_error() {
        let mut reader = reader();
        for _ in 0..3 {
            reader.connect().unwrap();
            reader.push(b": a comment\n\ndata: cut").unwrap();
        }
        assert!(matches!(reader.connect(), Err(ReadResponseError::NoProgress)));
    }

    #[test]
    fn an_error_of_the_server_is_returned_with_the_message_so_far() {
        let mut reader = reader();
        reader.push(START).unwrap();
        let failed = reader.push(b"data: {\"type\":\"error\",\"errorText\":\"no model\"}\n\n");
        assert_eq!(failed.unwrap_err().to_string(), "the response failed: no model");
        assert_eq!(reader.into_message().text(), "Hello");
    }
}
