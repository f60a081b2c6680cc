//! [`Reader`]: a client that reads a run.

use crate::log::run_frames::RunFrames;
use crate::store::Epoch;
use ui_message_stream::id::RunId;

/// A client that reads a run through a server.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) server: Option<usize>,
    pub(super) epoch: Epoch,
    pub(super) run: RunId,
    pub(super) begin: u64,
    /// The position of the next entry.
    pub(super) next: u64,
    pub(super) frames: RunFrames,
    pub(super) read: Read,
    /// All that the client has read, with its ids.
    pub(super) out: Vec<u8>,
    pub(super) has_ended: bool,
    /// It has read an end of its own, after text that the log does not hold.
    pub(super) is_closed_early: bool,
    /// The turn that mends the chat for this reader.
    pub(super) mender: Option<u32>,
}

/// What a client has read, without ids: a result of another turn comes between texts.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Read {
    pub(super) text: Vec<u8>,
    pub(super) others: Vec<u8>,
}

impl Read {
    pub(super) fn push(&mut self, is_text: bool, frames: &[u8]) {
        let kept = if is_text { &mut self.text } else { &mut self.others };
        let lines = frames.split_inclusive(|byte| *byte == b'\n');
        kept.extend(lines.filter(|line| !line.starts_with(b"id: ")).flatten());
    }
}
