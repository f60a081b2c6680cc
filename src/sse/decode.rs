//! [`Decoder`]: bytes in, in pieces of any size; events out.

use std::collections::VecDeque;

/// Decodes an event stream that arrives in pieces, split at any byte.
///
/// It reads as browsers do: `\n`, `\r\n` and `\r` end a line, one space after the colon is dropped,
/// several `data` lines are joined by a newline, comments and other fields are ignored, and an
/// event without a blank line after it is dropped. `[DONE]` is returned like other data. As in the
/// client, a `\r` at the end of the stream ends no line.
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
#[derive(Default)]
pub struct Decoder {
    /// The incomplete last line.
    line: Vec<u8>,
    /// The incomplete event, if it has data.
    event: Option<Event>,
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
        self.line.len() + self.event.as_ref().map_or(0, |event| event.data.len())
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
            self.ready.extend(self.event.take());
            return;
        }
        if line.starts_with(b"{\"") {
            self.bare_line.get_or_insert(self.lines);
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
