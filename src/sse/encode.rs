//! [`Encoder`]: writes chunks as frames, directly into the buffer of the response.

use super::buffer::Buffer;
use super::escape::append_escaped;
use crate::chunk::{Chunk, FieldWriter};
use crate::json::Json;

/// The frame after the last one.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// A comment that keeps an idle connection open through proxies.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Writes chunks as frames.
///
/// It keeps the beginning of the frames of the current text part, so that a delta takes little more
/// time than a copy of its text.
///
/// ```
/// use ui_message_stream::Chunk;
/// use ui_message_stream::sse::Encoder;
///
/// let mut frames = Vec::new();
/// Encoder::default().encode(&Chunk::FinishStep {}, &mut frames);
/// assert_eq!(frames, b"data: {\"type\":\"finish-step\"}\n\n");
/// ```
#[derive(Debug, Default)]
pub struct Encoder {
    /// The frame of the last text delta, up to the text.
    head: Vec<u8>,
    /// The id of its part.
    id: String,
}

impl Encoder {
    /// Appends the frame of a chunk to a `Vec<u8>` or a `BytesMut`.
    #[inline]
    pub fn encode(&mut self, chunk: &Chunk<'_>, out: &mut impl Buffer) {
        match chunk {
            Chunk::TextDelta { id, delta, provider_metadata: None } => {
                self.encode_text(id, delta, out);
            }
            other => encode_object(other, out),
        }
    }

    /// Appends the frame of a text delta.
    #[inline]
    pub(crate) fn encode_text(&mut self, id: &str, delta: &str, out: &mut impl Buffer) {
        if self.head.is_empty() || self.id != id {
            self.begin_part(id);
        }
        out.room_for(self.head.len() + delta.len() + 4);
        out.put(&self.head);
        append_escaped(out, delta);
        out.put(b"\"}\n\n");
    }

    #[cold]
    fn begin_part(&mut self, id: &str) {
        id.clone_into(&mut self.id);
        self.head.clear();
        self.head.put(b"data: {\"type\":\"text-delta\",\"id\":\"");
        append_escaped(&mut self.head, id);
        self.head.put(b"\",\"delta\":\"");
    }
}

#[inline(never)]
fn encode_object(chunk: &Chunk<'_>, out: &mut impl Buffer) {
    out.put(b"data: {\"type\":\"");
    let (kind, name) = chunk.kind_pieces();
    out.put(kind.as_bytes());
    append_escaped(out, name);
    out.put(b"\"");
    chunk.write_fields(&mut Fields { out });
    out.put(b"}\n\n");
}

/// Appends `,"key":value` for each field.
struct Fields<'a, B> {
    out: &'a mut B,
}

impl<B: Buffer> Fields<'_, B> {
    fn key(&mut self, key: &str) {
        self.out.put(b",\"");
        self.out.put(key.as_bytes());
        self.out.put(b"\":");
    }
}

impl<B: Buffer> FieldWriter for Fields<'_, B> {
    fn text(&mut self, key: &'static str, value: &str) {
        self.key(key);
        self.out.put(b"\"");
        append_escaped(self.out, value);
        self.out.put(b"\"");
    }

    fn json(&mut self, key: &'static str, value: &Json) {
        self.key(key);
        self.out.put(value.as_str().as_bytes());
    }

    fn flag(&mut self, key: &'static str, value: bool) {
        self.key(key);
        self.out.put(if value { b"true" } else { b"false" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_holds_the_serialized_chunk() {
        let long = "a \"quoted\"\nline ".repeat(20);
        let json = Json::parse(r#"{"a":[1, {"b":null}]}"#).unwrap();
        let chunks = [
            Chunk::Start { message_id: Some("m\n1".into()), message_metadata: None },
            Chunk::TextDelta { id: "".into(), delta: "Hi".into(), provider_metadata: None },
            Chunk::TextDelta { id: "\"0\"".into(), delta: "Hi".into(), provider_metadata: None },
            Chunk::TextDelta { id: "\"0\"".into(), delta: "".into(), provider_metadata: None },
            // This id is the escaped form of the one before.
            Chunk::TextDelta { id: r#"\"0\""#.into(), delta: "".into(), provider_metadata: None },
            Chunk::TextDelta { id: "1".into(), delta: long.into(), provider_metadata: None },
            Chunk::Data {
                name: "a\"b".into(),
                id: Some("1".into()),
                data: Some(std::borrow::Cow::Borrowed(&json)),
                transient: Some(false),
            },
            Chunk::Abort { reason: None },
        ];
        let mut encoder = Encoder::default();
        for chunk in chunks {
            let mut frame = Vec::new();
            encoder.encode(&chunk, &mut frame);
            let expected = format!("data: {}\n\n", serde_json::to_string(&chunk).unwrap());
            assert_eq!(String::from_utf8(frame).unwrap(), expected);
        }
    }
}
