//! [`FinishReason`]: why the model stopped, in the words of the wire.

use serde::{Deserialize, Serialize};

use super::Version;
use super::version::Since;

/// Why the model stopped. The client refuses any other word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FinishReason {
    /// It completed its answer.
    Stop,
    /// It reached the token limit.
    Length,
    /// A filter stopped it.
    ContentFilter,
    /// It called tools. Also the reason of a turn that waits for the user or for the client.
    ToolCalls,
    /// It failed.
    Error,
    /// The stream of its provider just ended, and the answer is cut. For a version before
    /// `Version::V7Patch(149)` the translator sends an error instead.
    Interrupted,
    /// Anything else; unknown reasons of a provider belong here.
    Other,
}

words! {
    read FinishReason {
        Stop "stop" Length "length" ContentFilter "content-filter" ToolCalls "tool-calls"
        Error "error" Interrupted "interrupted" Other "other"
    }
}

impl FinishReason {
    /// Returns whether a client of this version accepts the word.
    pub(crate) fn is_known_to(self, version: Version) -> bool {
        self != FinishReason::Interrupted || version.knows(Since { v6: None, v7: 149 })
    }

    /// Returns the reason in a word that this client accepts.
    pub(super) fn for_version(self, version: Version) -> Self {
        if self.is_known_to(version) { self } else { FinishReason::Other }
    }
}
