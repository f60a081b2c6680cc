//! [`Queue`]: what a run has written and the log does not hold yet.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::entry::{Entry, OtherEntry};
use crate::store::EntryKind;
use ui_message_stream::chunk::Chunk;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::sse::Encoder;

/// Entries in the order in which they are appended, and frames after them. All frames that wait become one
/// entry when they are appended: a store writes one row for them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    frames: BytesMut,
    /// The size of the last block of frames.
    block: usize,
    encoder: Encoder,
}

impl Queue {
    /// Adds a chunk that all clients read as it is.
    pub(crate) fn push_chunk(&mut self, chunk: &Chunk<'_>) {
        if self.frames.is_empty() && self.frames.capacity() < self.block / 8 + 1 {
            // The entries of a block share it: one allocation for many small ones, and little for a quiet run.
            self.block = (self.block * 2).clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES);
            self.frames = BytesMut::with_capacity(self.block);
        }
        self.encoder.encode(chunk, &mut self.frames);
        if self.frames.len() >= MAX_FRAME_BYTES {
            self.seal();
        }
    }

    pub(crate) fn push(&mut self, entry: OtherEntry) {
        self.seal();
        self.entries.push_back(entry.into());
    }

    /// Makes an entry of the frames. It does not change any more.
    fn seal(&mut self) {
        if !self.frames.is_empty() {
            self.entries.push_back(Entry::Frame(self.frames.split().freeze()));
        }
    }

    /// Returns the entries that are to be appended. They stay until the log has them.
    pub(crate) fn sealed(&mut self) -> impl Iterator<Item = Entry> + '_ {
        self.seal();
        self.entries.iter().cloned()
    }

    /// Removes the first entry if it is this one, which the log has. Returns whether it is.
    pub(crate) fn remove(&mut self, entry: &Entry) -> bool {
        self.entries.front() == Some(entry) && self.entries.pop_front().is_some()
    }

    /// Removes the preliminary outputs of a call, which has a result.
    pub(crate) fn remove_outputs_of(&mut self, call: &ToolCallId) {
        self.entries.retain(|entry| entry.preliminary_of() != Some(call));
    }

    /// Removes the last entry.
    pub(crate) fn remove_last(&mut self) {
        self.entries.pop_back();
    }

    pub(crate) fn contains(&self, entry: &Entry) -> bool {
        self.entries.contains(entry)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.frames.is_empty()
    }

    /// Whether nothing but frames waits, and there is room for more.
    pub(crate) fn may_wait(&self) -> bool {
        !self.is_full() && self.entries.iter().all(|entry| entry.kind() == EntryKind::Frame)
    }

    /// Whether so much waits that the agent has to wait, too.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_ENTRIES
    }

    pub(crate) fn into_entries(mut self) -> Vec<Entry> {
        self.seal();
        self.entries.into()
    }
}

/// How many entries may wait for the store.
const MAX_ENTRIES: usize = 32;

/// With so many bytes, the frames become an entry. A reader holds some pages of this size.
const MAX_FRAME_BYTES: usize = 8 << 10;

/// The size of the first block of frames of a run.
const MIN_BLOCK_BYTES: usize = 512;

/// The size of a block of frames of a long run.
const MAX_BLOCK_BYTES: usize = 4 << 10;
