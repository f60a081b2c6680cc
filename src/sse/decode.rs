//! [`Decoder`]: bytes in pieces of any size, the data of each event out.

use std::collections::VecDeque;

/// Reads an event stream that arrives in pieces cut anywhere.
///
/// It reads as browsers do: `\n`, `\r\n` and `\r` end a line, one space after the colon is dropped,
/// several `data` lines join with a newline, comments and other fields are ignored, and an event
/// that no blank line ended is no event. `[DONE]` comes out like any other data.
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
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    /// The line that has no end yet.
    line: Vec<u8>,
    /// The event that has no end yet, if it has data.
    event: Option<Event>,
    ready: VecDeque<Event>,
    /// How many lines have ended.
    lines: usize,
    /// The last byte was a `\r`: a `\n` right after it belongs to it.
    after_return: bool,
    /// A first line has been read: a byte order mark may stand before it only.
    begun: bool,
}

/// One event of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The line that its data begins on, counted from 1.
    pub line: usize,
    /// Its data.
    pub data: String,
}

impl Decoder {
    /// Takes the next bytes.
    ///
    /// What it holds on to is the unfinished event and the finished ones that were not polled; a
    /// reader that must bound an event bounds what it pushes.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if std::mem::take(&mut self.after_return) {
            if rest.is_empty() {
                self.after_return = true;
            }
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, after) = rest.split_at(end);
            if self.line.is_empty() {
                self.end_line(line);
            } else {
                self.line.extend_from_slice(line);
                let line = std::mem::take(&mut self.line);
                self.end_line(&line);
                self.line = line;
                self.line.clear();
            }
            rest = match after {
                [b'\r', b'\n', next @ ..] => next,
                [b'\r'] => {
                    self.after_return = true;
                    &[]
                }
                [_, next @ ..] => next,
                [] => &[],
            };
        }
        self.line.extend_from_slice(rest);
    }

    /// The next event that is whole.
    pub fn poll(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// The line on which an event begins that no blank line has ended yet. At the end of the stream
    /// a browser drops it.
    pub fn unfinished(&self) -> Option<usize> {
        let begins_here = self.unmarked(&self.line).starts_with(b"data:").then_some(self.lines + 1);
        self.event.as_ref().map(|event| event.line).or(begins_here)
    }

    /// Bytes held for events that are not whole.
    pub fn pending_bytes(&self) -> usize {
        self.line.len() + self.event.as_ref().map_or(0, |event| event.data.len())
    }

    /// The line, without the byte order mark before the first one.
    fn unmarked<'l>(&self, line: &'l [u8]) -> &'l [u8] {
        let mark = if self.begun { &[][..] } else { "\u{FEFF}".as_bytes() };
        line.strip_prefix(mark).unwrap_or(line)
    }

    fn end_line(&mut self, line: &[u8]) {
        self.lines += 1;
        let line = self.unmarked(line);
        self.begun = true;
        if line.is_empty() {
            self.ready.extend(self.event.take());
            return;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, value) = line.split_at(colon);
        if field == b"data" {
            let value = value.strip_prefix(b":").unwrap_or(value);
            let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
            match &mut self.event {
                Some(event) => {
                    event.data.push('\n');
                    event.data.push_str(&value);
                }
                None => {
                    self.event = Some(Event { line: self.lines, data: value.into_owned() });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<(usize, String)> {
        let mut decoder = Decoder::default();
        for piece in pieces {
            decoder.push(piece);
        }
        std::iter::from_fn(|| decoder.poll()).map(|event| (event.line, event.data)).collect()
    }

    #[test]
    fn a_stream_cut_at_any_byte_reads_the_same() {
        let text = "\u{FEFF}: hi\r\ndata: a\rdata:b\n\nid: 7\nevent: x\ndata\r\n\r\ndata:  é\r\r\
                    data: lost\n"
            .as_bytes();
        let whole = decode(&[text]);
        let expected = [(2, "a\nb"), (7, ""), (9, " é")];
        assert_eq!(whole, expected.map(|(line, data)| (line, data.to_owned())));
        for first in 0..text.len() {
            let (a, b) = text.split_at(first);
            assert_eq!(decode(&[a, b]), whole, "cut at {first}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(decode(&bytes), whole);
    }

    #[test]
    fn an_event_without_its_end_is_known_of() {
        for (text, line) in [
            ("data: a", Some(1)),
            ("data: a\n", Some(1)),
            ("\u{FEFF}data: a", Some(1)),
            ("\n\u{FEFF}data: a", None),
            (": hi\ndata: a\n\ndata:", Some(4)),
            ("data: a\n\n", None),
            (": hi", None),
        ] {
            let mut decoder = Decoder::default();
            decoder.push(text.as_bytes());
            assert_eq!(decoder.unfinished(), line, "{text:?}");
        }
    }
}
