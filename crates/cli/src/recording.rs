//! Recordings: one exchange a file, as `record` writes it and `replay` serves it.
//!
//! A line `{"request":…}` holds the body of the POST; each line `{"at":…,"chunk":…}` a chunk and
//! how many milliseconds after the request it came. A body of server-sent events is a recording
//! too, without times.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use ui_message_stream::sse::Decoder;

use crate::Trouble;
use crate::input::read_all;

/// One chunk of a recorded response.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    /// When it came, after the request.
    pub(crate) at: Duration,
    /// Its JSON, as it came.
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

/// Reads the chunks of a recording. One of an empty answer holds its request alone.
pub(crate) fn read(path: &Path) -> Result<Vec<Recorded>, Trouble> {
    let bytes = read_all(Some(path))?;
    let text = String::from_utf8_lossy(&bytes);
    let is_blank = |character: char| character.is_whitespace() || character == BYTE_ORDER_MARK;
    let mut chunks: Vec<Recorded> = Vec::new();
    let mut has_request = false;
    if !text.trim_start_matches(is_blank).starts_with('{') {
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let events = std::iter::from_fn(|| decoder.poll()).filter(|event| event.data != "[DONE]");
        chunks.extend(paced(events.map(|event| one_line(&event.data))));
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
            let at = parsed.at.map_or(before + PACE, Duration::from_millis);
            chunks.push(Recorded { at, data: data.to_owned() });
        }
    }
    if chunks.is_empty() && !has_request {
        let path = path.display();
        return Err(format!("{path}: no chunk in it, neither as an event nor as a line").into());
    }
    Ok(chunks)
}

/// JSON on one line: a raw newline in it stands between tokens only.
pub(crate) fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

fn paced(data: impl Iterator<Item = String>) -> Vec<Recorded> {
    data.zip(1..).map(|(data, n)| Recorded { at: PACE * n, data }).collect()
}

/// Between two chunks of a recording without times.
const PACE: Duration = Duration::from_millis(20);

const BYTE_ORDER_MARK: char = '\u{FEFF}';
