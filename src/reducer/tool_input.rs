//! [`ToolInput`]: the text of a tool's input as it comes, and what its parts will read of it.
//!
//! The client takes deltas of an input to the end of the stream, also when it is whole. So its text
//! is kept, but then only the text; and where the whole input is written just so, it is the text.

use std::sync::Arc;

use super::PartialJson;
use super::call::Said;
use crate::chunk::InputEncoding;
use crate::json::Json;
use crate::metadata::ToolMetadata;

/// A tool's input that was begun.
#[derive(Debug, Clone)]
pub(super) struct ToolInput {
    text: Text,
    pub(super) encoding: Option<InputEncoding>,
    pub(super) tool_name: Arc<str>,
    pub(super) is_dynamic: bool,
    pub(super) title: Option<Json>,
    pub(super) tool_metadata: Option<ToolMetadata>,
    /// Whether it was whole before. It is not packed up twice: that would cost the text each time.
    was_whole: bool,
}

#[derive(Debug, Clone)]
enum Text {
    Streaming(Box<Streaming>),
    Whole(Box<str>),
    /// As the whole input is written.
    AsInput(Json),
}

#[derive(Debug, Clone)]
struct Streaming {
    text: PartialJson,
    /// Where the parts are that hold some of it: one of each step in which it went on.
    parts: Vec<usize>,
}

impl ToolInput {
    pub(super) fn new(
        text: &str,
        encoding: Option<InputEncoding>,
        tool_name: &str,
        is_dynamic: bool,
        said: &Said,
    ) -> Self {
        ToolInput {
            text: Text::streaming(text),
            encoding,
            tool_name: tool_name.into(),
            is_dynamic,
            title: said.title.clone(),
            tool_metadata: said.tool_metadata.clone(),
            was_whole: false,
        }
    }

    /// Adds a piece, for the part that stands there, and says how long the text is now.
    pub(super) fn push(&mut self, piece: &str, at: usize) -> usize {
        if !matches!(self.text, Text::Streaming(_)) {
            self.text = Text::streaming(self.text.as_str());
        }
        if let Text::Streaming(streaming) = &mut self.text {
            streaming.text.push(piece);
            if streaming.parts.last() != Some(&at) {
                streaming.parts.push(at);
            }
        }
        self.text.as_str().len()
    }

    /// Packs the text up once the part that stands there has the whole input, if no other part is
    /// to read any of the text.
    pub(super) fn pack(&mut self, at: usize, whole: Option<&Json>) {
        if let Text::Streaming(streaming) = &self.text
            && !self.was_whole
            && streaming.parts.iter().all(|part| *part == at)
        {
            let text = streaming.text.as_str();
            self.text = match whole.filter(|whole| whole.as_str() == text) {
                Some(whole) => Text::AsInput(whole.clone()),
                None => Text::Whole(text.into()),
            };
            self.was_whole = true;
        }
    }

    /// Where the parts are that may read some of the text.
    pub(super) fn parts(&self) -> &[usize] {
        match &self.text {
            Text::Streaming(streaming) => &streaming.parts,
            Text::Whole(_) | Text::AsInput(_) => &[],
        }
    }

    /// What can be read of the first so many bytes, by the encoding.
    pub(super) fn read(&self, until: usize) -> Option<Json> {
        let text = self.text(until);
        if self.encoding == Some(InputEncoding::Text) {
            return Some(Json::string(text));
        }
        match &self.text {
            Text::Streaming(streaming) if until == streaming.text.as_str().len() => {
                streaming.text.read()
            }
            _ => PartialJson::from(text).read(),
        }
    }

    pub(super) fn text(&self, until: usize) -> &str {
        self.text.as_str().get(..until).unwrap_or_default()
    }
}

impl Text {
    fn streaming(text: &str) -> Self {
        let text = PartialJson::from(text);
        Text::Streaming(Box::new(Streaming { text, parts: Vec::new() }))
    }

    fn as_str(&self) -> &str {
        match self {
            Text::Streaming(streaming) => streaming.text.as_str(),
            Text::Whole(text) => text,
            Text::AsInput(json) => json.as_str(),
        }
    }
}
