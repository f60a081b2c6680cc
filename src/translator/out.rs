//! [`Out`]: the receiver of the chunks.

use crate::chunk::{Chunk, Version};

/// Passes chunks to their receiver, without the fields that the client does not know.
pub(super) struct Out<'o> {
    /// The version of the oldest client that reads the response.
    pub(super) version: Version,
    receive: &'o mut dyn FnMut(Chunk<'_>),
}

impl<'o> Out<'o> {
    pub(super) fn new(version: Version, receive: &'o mut dyn FnMut(Chunk<'_>)) -> Self {
        Out { version, receive }
    }

    /// Emits a chunk, unless it is of a kind that the client does not know.
    pub(super) fn emit(&mut self, chunk: Chunk<'_>) {
        if chunk.is_kind_known_to(self.version) {
            (self.receive)(chunk.for_version(self.version));
        }
    }
}
