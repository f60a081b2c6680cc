//! [`ToolInput`]: the streamed text of a tool's input, which its parts read.
//!
//! The client accepts deltas of an input until the stream ends, even if the input is complete. The
//! text is therefore kept, but without the state of the parser. If the complete input is written
//! exactly as it was streamed, the text is shared with the input.

use std::sync::Arc;

use super::PartialJson;
use crate::chunk::{InputEncoding, Version};
use crate::json::Json;
use crate::metadata::ToolMetadata;

/// The input of a tool call whose input has begun.
#[derive(Debug, Clone)]
pub(super) struct ToolInput {
    text: Text,
    pub(super) encoding: Option<InputEncoding>,
    pub(super) tool_name: Arc<str>,
    pub(super) is_dynamic: bool,
    pub(super) title: Option<Json>,
    pub(super) tool_metadata: Option<ToolMetadata>,
    /// The client that reads the text.
    client: Version,
    /// Whether the input was complete before. The text is converted only once, because each
    /// conversion costs the size of the text.
    was_completed: bool,
}

#[derive(Debug, Clone)]
enum Text {
    Streaming(Box<Streaming>),
    Complete(Box<str>),
    /// The text is the same as the text of the complete input, and shared with it.
    SameAsInput(Json),
}

#[derive(Debug, Clone)]
struct Streaming {
    text: PartialJson,
    /// The indexes of the parts that show a prefix of the text. There is one for each step in which
    /// deltas arrived.
    parts: Vec<usize>,
}

impl ToolInput {
    pub(super) fn new(
        client: Version,
        text: &str,
        encoding: Option<InputEncoding>,
        tool_name: &str,
        is_dynamic: bool,
        title: Option<Json>,
        tool_metadata: Option<ToolMetadata>,
    ) -> Self {
        ToolInput {
            text: Text::streaming(client, text),
            client,
            encoding,
            tool_name: tool_name.into(),
            is_dynamic,
            title,
            tool_metadata,
            was_completed: false,
        }
    }

    /// Appends a delta for the part at index `at`. Returns the length of the text in bytes.
    pub(super) fn push(&mut self, delta: &str, at: usize) -> usize {
        if !matches!(self.text, Text::Streaming(_)) {
            self.text = Text::streaming(self.client, self.text.as_str());
        }
        if let Text::Streaming(streaming) = &mut self.text {
            streaming.text.push(delta);
            if streaming.parts.last() != Some(&at) {
                streaming.parts.push(at);
            }
        }
        self.text.as_str().len()
    }

    /// Drops the parser state when the part at index `at` has the complete input, unless another
    /// part still reads a prefix of the text.
    pub(super) fn complete(&mut self, at: usize, complete_input: Option<&Json>) {
        if let Text::Streaming(streaming) = &self.text
            && !self.was_completed
            && streaming.parts.iter().all(|part| *part == at)
        {
            let text = streaming.text.as_str();
            self.text =
                match complete_input.filter(|complete_input| complete_input.as_str() == text) {
                    Some(complete_input) => Text::SameAsInput(complete_input.clone()),
                    None => Text::Complete(text.into()),
                };
            self.was_completed = true;
        }
    }

    /// Returns the indexes of the parts that may read a prefix of the text.
    pub(super) fn parts(&self) -> &[usize] {
        match &self.text {
            Text::Streaming(streaming) => &streaming.parts,
            Text::Complete(_) | Text::SameAsInput(_) => &[],
        }
    }

    /// Returns the value of the first `until` bytes, read according to the encoding.
    pub(super) fn read(&self, until: usize) -> Option<Json> {
        let text = self.text(until);
        if self.encoding == Some(InputEncoding::Text) {
            return Some(Json::string(text));
        }
        match &self.text {
            Text::Streaming(streaming) if until == streaming.text.as_str().len() => {
                streaming.text.read()
            }
            _ => PartialJson::for_client(self.client, text).read(),
        }
    }

    pub(super) fn text(&self, until: usize) -> &str {
        self.text.as_str().get(..until).unwrap_or_default()
    }
}

impl Text {
    fn streaming(client: Version, text: &str) -> Self {
        let text = PartialJson::for_client(client, text);
        Text::Streaming(Box::new(Streaming { text, parts: Vec::new() }))
    }

    fn as_str(&self) -> &str {
        match self {
            Text::Streaming(streaming) => streaming.text.as_str(),
            Text::Complete(text) => text,
            Text::SameAsInput(json) => json.as_str(),
        }
    }
}
