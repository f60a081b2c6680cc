//! [`ChunkReader`]: reads the chunks of one stream, whose texts another program may have split between the two halves of
//! a character.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Chunk, ReadChunkError, ReceivedChunk};
use crate::json::{Object, SplitText};

/// Reads the chunks of one stream, in their order.
///
/// Reads each as [`ReceivedChunk::parse`] does, and joins what a back end has split over two deltas of one part. Texts in
/// JavaScript and Java are UTF-16, where a character such as 😀 has two halves, `\ud83d` and `\ude00`. No Rust string can
/// hold one of them. If a delta ends with the first half, the reader keeps it, and puts the whole character before the
/// next delta of the part or call. If that does not begin with the second half, it puts U+FFFD there. At the end of the
/// part the first half is left out.
///
/// ```
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::chunk::{Chunk, ChunkReader, ReceivedChunk};
///
/// // An agent that passes on the stream of another server.
/// let mut reader = ChunkReader::default();
/// let mut texts = Vec::new();
/// for data in [
///     r#"{"type":"text-start","id":"0"}"#,
///     r#"{"type":"text-delta","id":"0","delta":"Hi \ud83d"}"#,
///     r#"{"type":"text-delta","id":"0","delta":"\ude00!"}"#,
/// ] {
///     let ReceivedChunk::Known { chunk, .. } = reader.read(data)? else { continue };
///     if let Chunk::TextDelta { delta, .. } = &chunk {
///         texts.push(delta.to_string());
///     }
///     let _event = AgentEvent::Chunk(Box::new(chunk.into_owned()));
/// }
/// assert_eq!(texts, ["Hi ", "😀!"]);
/// # Ok::<(), ui_message_stream::chunk::ReadChunkError>(())
/// ```
#[derive(Default)]
#[must_use]
pub struct ChunkReader {
    /// The first halves with which the last deltas ended, by the ids of their parts or calls.
    texts: Halves,
    reasonings: Halves,
    inputs: Halves,
}

type Halves = HashMap<Box<str>, SplitText>;

debug_without_content!(ChunkReader { ; texts, reasonings, inputs });

impl ChunkReader {
    /// Reads the next chunk from its JSON.
    ///
    /// # Errors
    /// A [`ReadChunkError`], as for [`ReceivedChunk::parse`].
    pub fn read<'a>(&mut self, data: &'a str) -> Result<ReceivedChunk<'a>, ReadChunkError> {
        let mut received = ReceivedChunk::parse(data)?;
        if let ReceivedChunk::Known { chunk, .. } = &mut received {
            self.join(chunk, data);
        }
        Ok(received)
    }

    /// Puts the character that two deltas share before the second one.
    fn join(&mut self, chunk: &mut Chunk<'_>, data: &str) {
        let (halves, id, delta, field) = match chunk {
            Chunk::TextDelta { id, delta, .. } => (&mut self.texts, id, delta, "delta"),
            Chunk::ReasoningDelta { id, delta, .. } => (&mut self.reasonings, id, delta, "delta"),
            Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
                (&mut self.inputs, tool_call_id, input_text_delta, "inputTextDelta")
            }
            Chunk::TextStart { id, .. } | Chunk::TextEnd { id, .. } => {
                self.texts.remove(&**id);
                return;
            }
            Chunk::ReasoningStart { id, .. } | Chunk::ReasoningEnd { id, .. } => {
                self.reasonings.remove(&**id);
                return;
            }
            Chunk::ToolInputStart { tool_call_id, .. } => {
                self.inputs.remove(&**tool_call_id);
                return;
            }
            _ => return,
        };
        // A half was read as U+FFFD. Most deltas have none.
        let may_be_split = delta.starts_with(REPLACED) || delta.ends_with(REPLACED);
        if delta.is_empty() || !may_be_split && halves.is_empty() {
            return;
        }
        let mut text = halves.remove(&**id).unwrap_or_default();
        let raw = Object::parse(data).ok().and_then(|mut chunk| chunk.take(field));
        if let Some(joined) = raw.and_then(|raw| text.push(raw)) {
            *delta = Cow::Owned(joined.into_owned());
        }
        if text.is_pending() {
            halves.insert((&**id).into(), text);
        }
    }
}

const REPLACED: char = char::REPLACEMENT_CHARACTER;

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of these deltas, which are JSON strings without their quotes.
    fn texts(deltas: &[&str]) -> Vec<String> {
        let mut reader = ChunkReader::default();
        let texts = deltas.iter().map(|delta| {
            let data = format!(r#"{{"type":"text-delta","id":"0","delta":"{delta}"}}"#);
            match reader.read(&data).unwrap() {
                ReceivedChunk::Known { chunk: Chunk::TextDelta { delta, .. }, .. } => {
                    delta.into_owned()
                }
                other => panic!("{other:?}"),
            }
        });
        texts.collect()
    }

    #[test]
    fn the_halves_of_a_character_are_joined() {
        for (deltas, expected) in [
            (&[r"a\ud83d", r"\ude00b"][..], &["a", "😀b"][..]),
            (&[r"\uD83D", r"\uDE00"], &["", "😀"]),
            (&[r"\ud83d", r"\ude00\ud83d", "", r"\ude00"], &["", "😀", "", "😀"]),
            (&[r"\ud83d\ude00\ud83d", r"\ude00"], &["😀", "😀"]),
            (&[r"\\\ud83d", r"\ude00"], &[r"\", "😀"]),
        ] {
            assert_eq!(texts(deltas), expected, "{deltas:?}");
        }
    }

    #[test]
    fn a_text_may_be_split_before_any_unit() {
        let text = "a😀é\"🌍🌍\\\n\u{FFFD}😀";
        let units: Vec<u16> = text.encode_utf16().collect();
        let escaped =
            |units: &[u16]| units.iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
        for first in 0..=units.len() {
            for second in first..=units.len() {
                let pieces = [&units[..first], &units[first..second], &units[second..]];
                let deltas = pieces.map(escaped);
                let read = texts(&deltas.each_ref().map(|delta| &**delta));
                assert_eq!(read.concat(), text, "{deltas:?}");
            }
        }
    }

    #[test]
    fn a_half_without_the_other_one_is_replaced() {
        for (deltas, expected) in [
            (&[r"a\ud83d", "b"][..], &["a", "\u{FFFD}b"][..]),
            (&[r"a\ud83d", r"\ud83d", r"\ude00"], &["a", "\u{FFFD}", "😀"]),
            (&["a", r"\ude00b"], &["a", "\u{FFFD}b"]),
            (&[r"\ude00", r"\ud83d"], &["\u{FFFD}", ""]),
            (&[r"a\ud83db", r"\ude00"], &["a\u{FFFD}b", "\u{FFFD}"]),
            // The character itself, and the letters of an escape.
            (&["a\u{FFFD}", r"\ude00"], &["a\u{FFFD}", "\u{FFFD}"]),
            (&[r"\\ud83d", r"\ude00"], &[r"\ud83d", "\u{FFFD}"]),
        ] {
            assert_eq!(texts(deltas), expected, "{deltas:?}");
        }
    }

    #[test]
    fn a_half_belongs_to_its_part() {
        let mut reader = ChunkReader::default();
        let mut texts = Vec::new();
        for data in [
            r#"{"type":"text-delta","id":"0","delta":"\ud83d"}"#,
            r#"{"type":"reasoning-delta","id":"0","delta":"\ude00"}"#,
            r#"{"type":"text-delta","id":"1","delta":"\ude00"}"#,
            r#"{"type":"text-delta","id":"0","delta":"\ude00\ud83d"}"#,
            r#"{"type":"text-end","id":"0"}"#,
            r#"{"type":"text-start","id":"0"}"#,
            r#"{"type":"text-delta","id":"0","delta":"\ude00"}"#,
        ] {
            if let ReceivedChunk::Known {
                chunk: Chunk::TextDelta { delta, .. } | Chunk::ReasoningDelta { delta, .. },
                ..
            } = reader.read(data).unwrap()
            {
                texts.push(delta.into_owned());
            }
        }
        assert_eq!(texts, ["", "\u{FFFD}", "\u{FFFD}", "😀", "\u{FFFD}"]);
    }
}
