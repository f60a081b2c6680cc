//! [`InputEncoding`]: the form of the text in which a tool input is streamed.

use serde::{Deserialize, Serialize};

use super::Version;

/// How the input of a tool call is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum InputEncoding {
    /// As pieces of JSON. The client repairs the incomplete JSON after each piece.
    Json,
    /// As plain text.
    Text,
}

words! { read InputEncoding { Json "json" Text "text" } }

impl InputEncoding {
    /// Each client that knows the key knows both words.
    pub(super) fn for_version(self, _: Version) -> Self {
        self
    }
}
