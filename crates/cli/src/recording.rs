//! Recordings: files with one exchange each, written by `record` and served by `replay`.
//!
//! A line `{"request":…}` holds the body of the POST. Each line `{"at":…,"chunk":…}` holds a chunk
//! and its time in milliseconds after the request. A body of server-sent events is a recording too,
//! without times.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use ui_message_stream::sse::Decoder;

use crate::CliError;
use crate::input::read_all;

/// A chunk of a recorded response.
#[derive(Debug, Clone)]
pub(crate) struct RecordedChunk {
    /// The time after the request.
    pub(crate) at: Duration,
    /// The JSON of the chunk, as it was received.
    pub(crate) data: String,
}

/// A line of a recording.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    #[serde(default)]
    at: Option<u64>,
    #[serde(borrow)]
    chunk: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    request: Option<IgnoredAny>,
}

/// Reads the chunks of a recording. The recording of an empty response holds only its request.
pub(crate) fn read(path: &Path) -> Result<Vec<RecordedChunk>, CliError> {
    let bytes = read_all(Some(path))?;
    let text = String::from_utf8_lossy(&bytes);
    let is_blank = |character: char| character.is_whitespace() || character == BYTE_ORDER_MARK;
    let mut chunks: Vec<RecordedChunk> = Vec::new();
    let mut has_request = false;
    if !text.trim_start_matches(is_blank).starts_with('{') {
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let events = std::iter::from_fn(|| decoder.poll()).filter(|event| event.data != "[DONE]");
        chunks.extend(with_default_times(events.map(|event| one_line(&event.data))));
    } else {
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_matches(is_blank);
            if line.is_empty() {
                continue;
            }
            let parsed: Line<'_> = serde_json::from_str(line)
                .map_err(|error| format!("{}: line {}: {error}", path.display(), index + 1))?;
            has_request |= parsed.request.is_some();
            let data = match (parsed.chunk, parsed.kind) {
                (Some(chunk), _) => chunk.get(),
                (None, Some(_)) => line,
                (None, None) => continue,
            };
            let before = chunks.last().map_or(Duration::ZERO, |chunk| chunk.at);
            let at = parsed.at.map_or(before + DEFAULT_INTERVAL, Duration::from_millis);
            chunks.push(RecordedChunk { at, data: data.to_owned() });
        }
    }
    if chunks.is_empty() && !has_request {
        let path = path.display();
        return Err(format!("{path}: no chunk in it, neither as an event nor as a line").into());
    }
    Ok(chunks)
}

/// Puts JSON on one line. A raw newline in JSON can only be between tokens.
pub(crate) fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

fn with_default_times(data: impl Iterator<Item = String>) -> Vec<RecordedChunk> {
    data.zip(1..).map(|(data, n)| RecordedChunk { at: DEFAULT_INTERVAL * n, data }).collect()
}

/// The time between two chunks of a recording without times.
const DEFAULT_INTERVAL: Duration = Duration::from_millis(20);

const BYTE_ORDER_MARK: char = '\u{FEFF}';
