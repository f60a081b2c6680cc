//! [`Queue`]: what a run has written and the log does not hold yet.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::entry::{Entry, OtherEntry};
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
    /// The bytes of all frames, and one for each other entry.
    len: usize,
    /// Nothing but text follows so many of them.
    others: usize,
    /// The queue has changed since its text was taken.
    has_changed: bool,
}

impl Queue {
    /// Adds a chunk that all clients read as it is.
    pub(crate) fn push_chunk(&mut self, chunk: &Chunk<'_>) {
        if self.frames.is_empty() && self.frames.capacity() < self.block / 8 + 1 {
            // The entries of a block share it: one allocation for many small ones, and little for a quiet run.
            self.block = (self.block * 2).clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES);
            self.frames = BytesMut::with_capacity(self.block);
        }
        let before = self.frames.len();
        self.encoder.encode(chunk, &mut self.frames);
        self.added(self.frames.len() - before, is_text(chunk));
        if self.frames.len() >= MAX_FRAME_BYTES {
            self.seal();
        }
    }

    pub(crate) fn push(&mut self, entry: OtherEntry) {
        self.seal();
        self.added(1, false);
        self.entries.push_back(entry.into());
    }

    fn added(&mut self, count: usize, is_text: bool) {
        self.len += count;
        self.others = if is_text { self.others } else { self.len };
        self.has_changed = true;
    }

    /// Counts removed entries: the first ones, or some that are not text.
    fn removed(&mut self, count: usize) {
        self.len -= count;
        self.others = self.others.saturating_sub(count);
        self.has_changed = true;
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
        let is_it = self.entries.front() == Some(entry);
        if is_it {
            self.entries.pop_front();
            self.removed(match entry {
                Entry::Frame(frames) => frames.len(),
                Entry::Other(_) => 1,
            });
        }
        is_it
    }

    /// Removes what clients read of a call before its result, which it has.
    pub(crate) fn remove_preliminary_of(&mut self, call: &ToolCallId) {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.preliminary_of() != Some(call));
        self.removed(before - self.entries.len());
    }

    /// Removes the last entry, which is a step or an end.
    pub(crate) fn remove_last(&mut self) {
        let last = self.entries.pop_back();
        self.removed(usize::from(last.is_some()));
    }

    /// Returns all that waits, if it is text that is shown before the log has it, and another one than before.
    pub(crate) fn take_text(&mut self) -> Option<Bytes> {
        if !self.has_changed || self.others > 0 || self.len > MAX_SHOWN_BYTES {
            return None;
        }
        self.has_changed = false;
        let mut text = BytesMut::with_capacity(self.len);
        self.entries.iter().for_each(|entry| text.extend_from_slice(&entry.frames()));
        text.extend_from_slice(&self.frames);
        Some(text.freeze())
    }

    pub(crate) fn contains(&self, entry: &Entry) -> bool {
        self.entries.contains(entry)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.frames.is_empty()
    }

    /// Whether nothing but text waits, and there is room for more.
    pub(crate) fn may_wait(&self) -> bool {
        !self.is_full() && self.others == 0
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

/// Whether a chunk may be lost with its server, so that it may wait for others, and readers may be shown it before
/// the log has it: it is text of an answer or of an input, or the beginning of a step.
fn is_text(chunk: &Chunk<'_>) -> bool {
    matches!(
        chunk,
        Chunk::StartStep {}
            | Chunk::TextStart { .. }
            | Chunk::TextDelta { .. }
            | Chunk::TextEnd { .. }
            | Chunk::ReasoningStart { .. }
            | Chunk::ReasoningDelta { .. }
            | Chunk::ReasoningEnd { .. }
            | Chunk::ToolInputDelta { .. }
    )
}

/// How many entries may wait for the store.
const MAX_ENTRIES: usize = 32;

/// With so many bytes, the frames become an entry. A reader holds some pages of this size.
const MAX_FRAME_BYTES: usize = 8 << 10;

/// How much text is shown before the log has it, at most.
const MAX_SHOWN_BYTES: usize = 8 << 10;

/// The size of the first block of frames of a run.
const MIN_BLOCK_BYTES: usize = 512;

/// The size of a block of frames of a long run.
const MAX_BLOCK_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn text(delta: &'static str) -> Chunk<'static> {
        let id = Cow::Borrowed("t");
        let delta = Cow::Borrowed(delta);
        Chunk::TextDelta { id, delta, provider_metadata: None }
    }

    #[test]
    fn text_is_shown_and_waits_unless_something_else_waits_with_it() {
        let mut queue = Queue::default();
        queue.push_chunk(&text("one"));
        queue.push_chunk(&text("two"));
        let shown = queue.take_text().unwrap();
        assert!(shown.ends_with(b"\n\n") && queue.may_wait() && queue.take_text().is_none());
        let appended: Vec<_> = queue.sealed().collect();
        queue.push_chunk(&text("three"));
        queue.push(OtherEntry::Step);
        queue.push_chunk(&text("four"));
        assert!(!queue.may_wait() && queue.take_text().is_none());
        let rest: Vec<_> = queue.sealed().collect();
        assert_eq!(shown, *appended[0].frames());
        assert!(rest.iter().take(3).all(|entry| queue.remove(entry)));
        // Nothing but text is left.
        let left = queue.take_text().unwrap();
        assert!(queue.may_wait() && str::from_utf8(&left).unwrap().contains("four"));
        // A step that is decided again is removed.
        queue.push(OtherEntry::Step);
        queue.remove_last();
        assert!(queue.remove(&rest[3]) && queue.is_empty() && queue.may_wait());
        queue.push_chunk(&text("x".repeat(MAX_SHOWN_BYTES).leak()));
        assert!(queue.take_text().is_none());
    }

    #[test]
    fn the_call_of_a_tool_is_no_text() {
        let mut queue = Queue::default();
        queue.push_chunk(&Chunk::FinishStep {});
        assert!(!queue.may_wait() && queue.take_text().is_none());
    }
}
