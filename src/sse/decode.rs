//! [`Decoder`]: bytes in, in pieces of any size; events out.

use std::collections::VecDeque;
use std::sync::Arc;

/// Decodes an event stream that arrives in pieces, split at any byte.
///
/// It reads as browsers do: `\n`, `\r\n` and `\r` end a line, one space after the colon is dropped,
/// several `data` lines are joined by a newline, comments and other fields are ignored, and an
/// event without data, or without a blank line after it, is dropped. `[DONE]` is returned like other
/// data. As in the client, a `\r` at the end of the stream ends no line.
///
/// ```
/// use ui_message_stream::sse::Decoder;
///
/// let mut decoder = Decoder::default();
/// decoder.push(b"data: {\"type\":\"fin");
/// assert_eq!(decoder.poll(), None);
/// decoder.push(b"ish\"}\n\ndata: [DONE]\n\n");
/// let event = decoder.poll().unwrap();
/// assert_eq!((event.line, &*event.data), (1, r#"{"type":"finish"}"#));
/// assert_eq!(decoder.poll().unwrap().data, "[DONE]");
/// assert_eq!(decoder.poll(), None);
///
/// decoder.push(b"id: run.7\ndata: a\n\nevent: ping\ndata: b\n\n");
/// let [a, b] = [decoder.poll().unwrap(), decoder.poll().unwrap()];
/// assert_eq!((a.id.as_deref(), a.event.as_deref()), (Some("run.7"), None));
/// assert_eq!((b.id.as_deref(), b.event.as_deref()), (Some("run.7"), Some("ping")));
/// ```
#[derive(Default)]
pub struct Decoder {
    /// The incomplete last line.
    line: Vec<u8>,
    /// The incomplete event, if it has data.
    event: Option<Event>,
    /// The type of the incomplete event, which may have no data yet.
    event_type: Option<String>,
    /// The last id, of this event or an earlier one.
    last_id: Option<Arc<str>>,
    ready: VecDeque<Event>,
    /// How many lines have ended.
    lines: usize,
    /// The first line that holds a JSON object without `data:` before it.
    bare_line: Option<usize>,
    /// The last byte was a `\r`. It ends the line when the next byte arrives: a `\n` belongs to the
    /// same line end.
    after_return: bool,
    /// The first line has ended. Only the first line may begin with a byte order mark.
    is_past_first_line: bool,
}

debug_without_content!(Decoder { lines; line, ready });

/// One event of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The line on which its data begins, counted from 1.
    pub line: usize,
    /// The id to continue after it: a client that reconnects sends it as `Last-Event-ID`. An event
    /// without an id of its own has the id of the last event before it. An event without data counts
    /// too. `None` if there is no id yet, or if the last one is empty.
    pub id: Option<Arc<str>>,
    /// Its type. `None` if it has none: a browser calls this type `message`.
    pub event: Option<String>,
    /// Its data.
    pub data: String,
}

impl Decoder {
    /// Decodes the next bytes.
    ///
    /// The decoder buffers the incomplete event and the complete ones that were not polled, without
    /// a limit. A reader that needs a limit checks [`pending_bytes`](Self::pending_bytes) between
    /// calls.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.after_return && !rest.is_empty() {
            self.after_return = false;
            self.end_buffered_line();
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, after) = rest.split_at(end);
            if after == b"\r" {
                self.after_return = true;
                rest = line;
                break;
            }
            if self.line.is_empty() {
                self.end_line(line);
            } else {
                self.line.extend_from_slice(line);
                self.end_buffered_line();
            }
            rest = match after {
                [b'\r', b'\n', next @ ..] | [_, next @ ..] => next,
                [] => &[],
            };
        }
        self.line.extend_from_slice(rest);
    }

    /// Returns the next complete event.
    pub fn poll(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Returns the line on which the incomplete event begins, if there is one. A browser drops such
    /// an event at the end of the stream.
    pub fn incomplete_event_line(&self) -> Option<usize> {
        let begins_here = self.unmarked(&self.line).starts_with(b"data:").then_some(self.lines + 1);
        self.event.as_ref().map(|event| event.line).or(begins_here)
    }

    /// Returns the first line that begins with a JSON object: its server probably forgot `data:`. A
    /// browser skips such a line.
    pub fn bare_line(&self) -> Option<usize> {
        self.bare_line
    }

    /// Returns how many bytes are buffered for the incomplete event.
    pub fn pending_bytes(&self) -> usize {
        let data = self.event.as_ref().map_or(0, |event| event.data.len());
        self.line.len() + data + self.event_type.as_ref().map_or(0, String::len)
    }

    /// Returns the line without a byte order mark, if it is the first line.
    fn unmarked<'l>(&self, line: &'l [u8]) -> &'l [u8] {
        let mark = if self.is_past_first_line { &[][..] } else { "\u{FEFF}".as_bytes() };
        line.strip_prefix(mark).unwrap_or(line)
    }

    fn end_buffered_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        self.end_line(&line);
        self.line = line;
        self.line.clear();
    }

    fn end_line(&mut self, line: &[u8]) {
        self.lines += 1;
        let line = self.unmarked(line);
        self.is_past_first_line = true;
        if line.is_empty() {
            let event_type = self.event_type.take();
            self.ready.extend(self.event.take().map(|event| Event {
                id: self.last_id.clone(),
                event: event_type,
                ..event
            }));
            return;
        }
        if line.starts_with(b"{\"") {
            self.bare_line.get_or_insert(self.lines);
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = || String::from_utf8_lossy(value);
        match (field, &mut self.event) {
            (b"data", Some(event)) => {
                event.data.push('\n');
                event.data.push_str(&text());
            }
            (b"data", None) => {
                let line = self.lines;
                let data = text().into_owned();
                self.event = Some(Event { line, id: None, event: None, data });
            }
            (b"event", _) => self.event_type = Some(text().into_owned()).filter(|t| !t.is_empty()),
            // A header cannot hold U+0000.
            (b"id", _) if !value.contains(&0) => {
                self.last_id = (!value.is_empty()).then(|| text().into());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<Event> {
        let mut decoder = Decoder::default();
        for piece in pieces {
            decoder.push(piece);
        }
        std::iter::from_fn(|| decoder.poll()).collect()
    }

    fn event(line: usize, id: &str, event: &str, data: &str) -> Event {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Event { line, id: some(id).map(Into::into), event: some(event), data: data.to_owned() }
    }

    #[test]
    fn a_stream_cut_at_any_byte_reads_the_same() {
        let text = "\u{FEFF}: hi\r\ndata: a\rdata:b\n\nid: 7\nevent: x\ndata\r\n\r\ndata:  é\r\r\
                    id: é8\nevent: y\n\ndata: c\nid: 9\0\n\nevent: y\nid\nevent\ndata: d\n\nid: 10\n\
                    data: lost\n"
            .as_bytes();
        let whole = decode(&[text]);
        let expected = [
            event(2, "", "", "a\nb"),
            event(7, "7", "x", ""),
            event(9, "7", "", " é"),
            event(14, "é8", "", "c"),
            event(20, "", "", "d"),
        ];
        assert_eq!(whole, expected);
        for first in 0..text.len() {
            let (a, b) = text.split_at(first);
            assert_eq!(decode(&[a, b]), whole, "cut at {first}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(decode(&bytes), whole);
    }

    #[test]
    fn an_incomplete_event_is_reported() {
        for (text, line) in [
            ("data: a", Some(1)),
            ("data: a\n", Some(1)),
            ("\u{FEFF}data: a", Some(1)),
            ("\n\u{FEFF}data: a", None),
            (": hi\ndata: a\n\ndata:", Some(4)),
            ("data: a\n\n", None),
            ("data: a\n\r", Some(1)),
            ("data: a\r\n\r", Some(1)),
            ("data: a\r\r", Some(1)),
            ("data: a\r", Some(1)),
            ("data: a\r\r\n", None),
            (": hi", None),
        ] {
            let mut decoder = Decoder::default();
            decoder.push(text.as_bytes());
            assert_eq!(decoder.incomplete_event_line(), line, "{text:?}");
            assert!(decoder.poll().is_none_or(|event| event.line != line.unwrap_or(0)), "{text:?}");
        }
    }
}
