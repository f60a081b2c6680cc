//! Streams from files: server-sent events or JSON lines. The first character of the file decides.
//!
//! A JSON line is a chunk, or one of the objects that fixtures and recordings use: `{"chunk":…}`
//! holds a chunk, `{"message":…}` holds the message that the stream continues, and `{"request":…}`
//! holds the body of a POST, which may name such a message. A request always begins another stream.
//! Other lines of such files (events) are skipped.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use ui_message_stream::request::Limits;
use ui_message_stream::sse::Decoder;
use ui_message_stream::{ChatRequest, UiMessage};

use crate::{CliError, StreamArguments};

/// A stream that is open for reading.
pub(crate) struct Input {
    reader: Box<dyn BufRead>,
    is_json: bool,
    /// The message that the stream continues, from `--message`, unless the file names one.
    pub(crate) message: Option<UiMessage>,
}

/// The next item of a file.
pub(crate) enum Item<'a> {
    /// The data of an event, with its line number.
    Data { line: usize, data: &'a str },
    /// The beginning of a stream, with its line number, the message that it continues, and whether
    /// it is the response to a POST.
    StreamStart { line: usize, message: Option<UiMessage>, is_response: bool },
    /// The first line that holds a chunk without `data:` or an object around it. The chunk itself
    /// follows only if the file holds JSON lines.
    BareLine { line: usize },
    /// The file ends within an event, which a browser drops.
    Truncated { line: usize },
}

impl Input {
    pub(crate) fn open(arguments: &StreamArguments) -> Result<Self, CliError> {
        let message = match &arguments.message {
            Some(path) => Some(read_message(path)?),
            None => None,
        };
        let mut reader = open(arguments.file.as_deref())?;
        let mut head = read_leading_blanks(&mut reader)?;
        let blanks = head.len();
        reader.by_ref().take(3).read_to_end(&mut head)?;
        let is_json = match &head[blanks..] {
            // JSON on several lines, for example the body of an error: a response without events.
            [b'{' | b'[', b'\n' | b'\r', ..] => false,
            [b'{' | b'[' | b'"', ..] => true,
            // A stream of `ai@4`, which is reported by its lines.
            [kind, b':', b'{' | b'[' | b'"'] => kind.is_ascii_alphanumeric(),
            _ => false,
        };
        let reader = Box::new(Cursor::new(head).chain(reader));
        Ok(Input { reader, is_json, message })
    }

    /// Whether the stream at the beginning of the file is the response to a POST: server-sent
    /// events are.
    pub(crate) fn is_response(&self) -> bool {
        !self.is_json
    }

    /// Reads to the end and calls `handle` for each item. The memory needed is about the size of
    /// one event.
    pub(crate) fn for_each(
        self,
        mut handle: impl FnMut(Item<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        if self.is_json {
            JsonLines { default_message: self.message, has_bare_chunks: false }
                .read(self.reader, &mut handle)
        } else {
            events(self.reader, &mut handle)
        }
    }
}

/// Reads the white space and the byte order mark at the beginning.
fn read_leading_blanks(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
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

/// Opens a file, or standard input if `path` is `None` or `-`.
pub(crate) fn open(path: Option<&Path>) -> Result<Box<dyn BufRead>, CliError> {
    match path {
        Some(path) if path != Path::new("-") => {
            let named = |error| format!("{}: {error}", path.display());
            let file = File::open(path).map_err(named)?;
            // Opening a directory succeeds; reading it fails.
            if file.metadata().map_err(named)?.is_dir() {
                return Err(named(io::ErrorKind::IsADirectory.into()).into());
            }
            Ok(Box::new(BufReader::with_capacity(BUFFER, file)))
        }
        _ => Ok(Box::new(BufReader::with_capacity(BUFFER, io::stdin()))),
    }
}

/// Reads a whole file, or standard input.
pub(crate) fn read_all(path: Option<&Path>) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_message(path: &Path) -> Result<UiMessage, CliError> {
    let text = String::from_utf8(read_all(Some(path))?)?;
    UiMessage::parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn events<H: FnMut(Item<'_>) -> Result<(), CliError>>(
    mut reader: impl BufRead,
    handle: &mut H,
) -> Result<(), CliError> {
    let mut decoder = Decoder::default();
    let mut is_bare_line_reported = false;
    let mut report_bare_line =
        |decoder: &Decoder, handle: &mut H, before: usize| match decoder.bare_line() {
            Some(line) if line < before && !is_bare_line_reported => {
                is_bare_line_reported = true;
                handle(Item::BareLine { line })
            }
            _ => Ok(()),
        };
    loop {
        let bytes = reader.fill_buf()?;
        let length = bytes.len();
        if length == 0 {
            break;
        }
        decoder.push(bytes);
        reader.consume(length);
        while let Some(event) = decoder.poll() {
            report_bare_line(&decoder, handle, event.line)?;
            handle(Item::Data { line: event.line, data: &event.data })?;
        }
    }
    report_bare_line(&decoder, handle, usize::MAX)?;
    match decoder.incomplete_event_line() {
        Some(line) => handle(Item::Truncated { line }),
        None => Ok(()),
    }
}

/// A reader for JSON lines, and what the lines so far contained.
struct JsonLines {
    /// The message from `--message`, for the first request if that names no message itself.
    default_message: Option<UiMessage>,
    has_bare_chunks: bool,
}

impl JsonLines {
    fn read(
        mut self,
        mut reader: impl BufRead,
        handle: &mut impl FnMut(Item<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut buffer = Vec::new();
        let mut line = 0;
        while reader.read_until(b'\n', &mut buffer)? > 0 {
            line += 1;
            // For valid UTF-8, three times as fast as `from_utf8_lossy`.
            let text = str::from_utf8(&buffer)
                .map_or_else(|_| String::from_utf8_lossy(&buffer), Cow::Borrowed);
            let text = text.trim_start_matches('\u{FEFF}').trim();
            if !text.is_empty() {
                self.handle_line(line, text, handle)?;
            }
            buffer.clear();
        }
        Ok(())
    }

    fn handle_line(
        &mut self,
        line: usize,
        text: &str,
        handle: &mut impl FnMut(Item<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        if text.starts_with(r#"{"type""#) {
            return self.handle_bare(line, text, handle);
        }
        let envelope = match serde_json::from_str::<Envelope<'_>>(text) {
            Ok(envelope) if envelope.kind.is_none() => envelope,
            _ => return self.handle_bare(line, text, handle),
        };
        let is_fixture_line = envelope.event.or(envelope.message).is_some();
        let message = envelope.message.filter(|message| message.get().starts_with('{'));
        if let Some(chunk) = envelope.chunk {
            handle(Item::Data { line, data: chunk.get() })
        } else if let Some(message) = message {
            let message =
                UiMessage::parse(message.get()).map_err(|error| format!("line {line}: {error}"))?;
            handle(Item::StreamStart { line, message: Some(message), is_response: false })
        } else if let Some(request) = envelope.request {
            let default_message = self.default_message.take();
            let message = match ChatRequest::parse(request.get().as_bytes(), &unlimited()) {
                Ok(chat) => chat.unsanitized_continued_message().cloned(),
                // A front end may send other bodies: for example, only its last message.
                Err(error) => {
                    eprintln!("line {line}: the request is not read: {error}");
                    default_message
                }
            };
            handle(Item::StreamStart { line, message, is_response: true })
        } else if is_fixture_line && !self.has_bare_chunks {
            // An event of a fixture, or the body of a failed response, which the client shows as no
            // stream.
            Ok(())
        } else {
            handle(Item::Data { line, data: text })
        }
    }

    fn handle_bare(
        &mut self,
        line: usize,
        text: &str,
        handle: &mut impl FnMut(Item<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        if !std::mem::replace(&mut self.has_bare_chunks, true) && text.starts_with('{') {
            handle(Item::BareLine { line })?;
        }
        handle(Item::Data { line, data: text })
    }
}

/// Limits for the user's own recordings: only a request that is nested too deep to parse is
/// refused.
fn unlimited() -> Limits {
    Limits::default()
        .with_max_bytes(usize::MAX)
        .with_max_data_url_bytes(usize::MAX)
        .with_max_messages(usize::MAX)
        .with_max_parts(usize::MAX)
        .with_max_nodes(usize::MAX)
}

/// The object around a chunk in fixtures and recordings.
#[derive(Deserialize)]
struct Envelope<'a> {
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
