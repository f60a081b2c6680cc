//! [`StreamedInput`]: the text of a tool's input as it comes, and what its parts will read of it.

use std::sync::Arc;

use super::PartialJson;
use super::call::Said;
use crate::chunk::InputEncoding;
use crate::json::Json;
use crate::metadata::ToolMetadata;

/// A tool's input while it streams. It stays when the input is whole: the client would take more.
#[derive(Debug, Clone)]
pub(super) struct StreamedInput {
    text: PartialJson,
    pub(super) encoding: Option<InputEncoding>,
    pub(super) tool_name: Arc<str>,
    pub(super) is_dynamic: bool,
    pub(super) title: Option<Json>,
    pub(super) tool_metadata: Option<ToolMetadata>,
    /// Where the parts are that hold some of it: one of each step in which it went on.
    pub(super) parts: Vec<usize>,
}

impl StreamedInput {
    pub(super) fn new(
        text: &str,
        encoding: Option<InputEncoding>,
        tool_name: &str,
        is_dynamic: bool,
        said: &Said,
    ) -> Self {
        StreamedInput {
            text: PartialJson::from(text),
            encoding,
            tool_name: tool_name.into(),
            is_dynamic,
            title: said.title.clone(),
            tool_metadata: said.tool_metadata.clone(),
            parts: Vec::new(),
        }
    }

    /// Adds a piece and says how long the text is now.
    pub(super) fn push(&mut self, piece: &str) -> usize {
        self.text.push(piece);
        self.text.as_str().len()
    }

    /// What can be read of the first so many bytes, by the encoding.
    pub(super) fn read(&self, until: usize) -> Option<Json> {
        let text = self.text(until);
        if self.encoding == Some(InputEncoding::Text) {
            Some(Json::string(text))
        } else if until == self.text.as_str().len() {
            self.text.read()
        } else {
            PartialJson::from(text).read()
        }
    }

    pub(super) fn text(&self, until: usize) -> &str {
        self.text.as_str().get(..until).unwrap_or_default()
    }
}
