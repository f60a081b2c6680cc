//! Streams from files: server-sent events or JSON lines, told apart by their first character.
//!
//! A line of JSON is a chunk, or an object around one as fixtures and recordings have it:
//! `{"chunk":…}`, `{"message":…}` for the message that the stream goes on with, and `{"request":…}`
//! for a POST that may name one, and begins another stream in any case. Other lines of such files
//! (events) are passed over.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use ui_message_stream::request::Limits;
use ui_message_stream::sse::Decoder;
use ui_message_stream::{ChatRequest, UiMessage};

use crate::{StreamArguments, Trouble};

/// A stream that is open for reading.
pub(crate) struct Input {
    reader: Box<dyn BufRead>,
    /// The message that the stream goes on with, by `--message`, unless the file names one.
    pub(crate) message: Option<UiMessage>,
}

/// What a file says next.
pub(crate) enum Item<'a> {
    /// The data of an event, on this line.
    Data { line: usize, data: &'a str },
    /// On this line a stream begins, and goes on with this message.
    Beginning { line: usize, message: Option<UiMessage> },
    /// The file ends within an event: a browser drops it.
    Unfinished { line: usize },
}

impl Input {
    pub(crate) fn open(arguments: &StreamArguments) -> Result<Self, Trouble> {
        let message = match &arguments.message {
            Some(path) => Some(read_message(path)?),
            None => None,
        };
        Ok(Input { reader: open(arguments.file.as_deref())?, message })
    }

    /// Reads to the end, in memory of the order of one event.
    pub(crate) fn for_each(
        mut self,
        mut handle: impl FnMut(Item<'_>) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let blank = read_blank(&mut self.reader)?;
        let is_json = matches!(self.reader.fill_buf()?.first(), Some(b'{' | b'[' | b'"'));
        let reader = Cursor::new(blank).chain(self.reader);
        if is_json {
            Lines { given: self.message, chunks_are_bare: false }.read(reader, &mut handle)
        } else {
            events(reader, &mut handle)
        }
    }
}

/// Reads the white space and the byte order mark at the start.
fn read_blank(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    loop {
        let bytes = reader.fill_buf()?;
        let blank = |byte: &&u8| byte.is_ascii_whitespace() || "\u{FEFF}".as_bytes().contains(byte);
        let length = bytes.iter().take_while(blank).count();
        if length == 0 {
            return Ok(read);
        }
        read.extend_from_slice(&bytes[..length]);
        reader.consume(length);
    }
}

/// Opens a file, or standard input.
pub(crate) fn open(path: Option<&Path>) -> Result<Box<dyn BufRead>, Trouble> {
    match path {
        Some(path) if path != Path::new("-") => {
            let named = |error| format!("{}: {error}", path.display());
            let file = File::open(path).map_err(named)?;
            // A folder opens, and fails where it is read.
            if file.metadata().map_err(named)?.is_dir() {
                return Err(named(io::ErrorKind::IsADirectory.into()).into());
            }
            Ok(Box::new(BufReader::with_capacity(BUFFER, file)))
        }
        _ => Ok(Box::new(BufReader::with_capacity(BUFFER, io::stdin()))),
    }
}

/// Reads a whole file, or standard input.
pub(crate) fn read_all(path: Option<&Path>) -> Result<Vec<u8>, Trouble> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_message(path: &Path) -> Result<UiMessage, Trouble> {
    let text = String::from_utf8(read_all(Some(path))?)?;
    UiMessage::parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn events(
    mut reader: impl BufRead,
    handle: &mut impl FnMut(Item<'_>) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let mut decoder = Decoder::default();
    loop {
        let bytes = reader.fill_buf()?;
        let length = bytes.len();
        if length == 0 {
            break;
        }
        decoder.push(bytes);
        reader.consume(length);
        while let Some(event) = decoder.poll() {
            handle(Item::Data { line: event.line, data: &event.data })?;
        }
    }
    match decoder.unfinished() {
        Some(line) => handle(Item::Unfinished { line }),
        None => Ok(()),
    }
}

/// Lines of JSON, and what was seen of them.
struct Lines {
    /// The message by `--message`, for the first request if it names none itself.
    given: Option<UiMessage>,
    chunks_are_bare: bool,
}

impl Lines {
    fn read(
        mut self,
        mut reader: impl BufRead,
        handle: &mut impl FnMut(Item<'_>) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let mut buffer = Vec::new();
        let mut line = 0;
        while reader.read_until(b'\n', &mut buffer)? > 0 {
            line += 1;
            // Three times as fast as the lossy reading where nothing is lost.
            let text = str::from_utf8(&buffer)
                .map_or_else(|_| String::from_utf8_lossy(&buffer), Cow::Borrowed);
            let text = text.trim_start_matches('\u{FEFF}').trim();
            if !text.is_empty() {
                self.take(line, text, handle)?;
            }
            buffer.clear();
        }
        Ok(())
    }

    fn take(
        &mut self,
        line: usize,
        text: &str,
        handle: &mut impl FnMut(Item<'_>) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        if text.starts_with(r#"{"type""#) {
            self.chunks_are_bare = true;
            return handle(Item::Data { line, data: text });
        }
        let around = match serde_json::from_str::<Around<'_>>(text) {
            Ok(around) if around.kind.is_none() => around,
            _ => {
                self.chunks_are_bare = true;
                return handle(Item::Data { line, data: text });
            }
        };
        let is_other = around.event.or(around.message).is_some();
        let message = around.message.filter(|message| message.get().starts_with('{'));
        if let Some(chunk) = around.chunk {
            handle(Item::Data { line, data: chunk.get() })
        } else if let Some(message) = message {
            let message =
                UiMessage::parse(message.get()).map_err(|error| format!("line {line}: {error}"))?;
            handle(Item::Beginning { line, message: Some(message) })
        } else if let Some(request) = around.request {
            let given = self.given.take();
            let message = match ChatRequest::parse(request.get().as_bytes(), &unlimited()) {
                Ok(chat) => chat.continued_as_sent().cloned(),
                // A front end may send what it likes: its last message alone, for instance.
                Err(error) => {
                    eprintln!("line {line}: the request is not read: {error}");
                    given
                }
            };
            handle(Item::Beginning { line, message })
        } else if is_other && !self.chunks_are_bare {
            // An event of a fixture; or the body of a failed response, in which the client sees nothing.
            Ok(())
        } else {
            handle(Item::Data { line, data: text })
        }
    }
}

/// A recording is a file of one's own: only what is too deep to read is refused.
fn unlimited() -> Limits {
    Limits::default()
        .with_max_bytes(usize::MAX)
        .with_max_data_url_bytes(usize::MAX)
        .with_max_messages(usize::MAX)
        .with_max_parts(usize::MAX)
        .with_max_nodes(usize::MAX)
}

/// What may stand around a chunk in fixtures and recordings.
#[derive(Deserialize)]
struct Around<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    chunk: Option<&'a RawValue>,
    #[serde(borrow, alias = "continues")]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
    #[serde(borrow, alias = "options", alias = "error", alias = "end")]
    event: Option<&'a RawValue>,
}

const BUFFER: usize = 64 << 10;
