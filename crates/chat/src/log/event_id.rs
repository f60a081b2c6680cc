//! [`EventId`]: where a client continues a run.

use memchr::memchr;

use crate::store::Epoch;

/// Where a client continues a run. Its text is the `id:` of the frame before: what names the run, a dot,
/// and a number that grows with each frame, in a form that `Number` of JavaScript reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(crate) epoch: Epoch,
    /// The position of the first entry of the run.
    pub(crate) begin: u64,
    /// The position of the next entry.
    pub(crate) position: u64,
    /// How many frames of this entry the client has read.
    pub(crate) frames: usize,
}

impl EventId {
    /// The place before the first entry of a run.
    pub(crate) fn of_run(epoch: Epoch, begin: u64) -> Self {
        EventId { epoch, begin, position: begin, frames: 0 }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let (run, place) = text.split_once(".0x")?;
        let (epoch, begin) = run.split_once('-')?;
        let place = number(place)?;
        let id = EventId {
            epoch: Epoch(number(epoch)?),
            begin: number(begin)?,
            position: place >> FRAME_BITS,
            frames: usize::try_from(place & ((1 << FRAME_BITS) - 1)).ok()?,
        };
        (id.begin <= id.position).then_some(id)
    }
}

/// Returns each frame of an entry, with its number, from 1 on, and whether it is the last one.
pub(crate) fn each(frames: &[u8]) -> impl Iterator<Item = (usize, &[u8], bool)> {
    let (mut rest, mut number) = (frames, 0);
    std::iter::from_fn(move || {
        // A frame is one line, and an empty one.
        let end = memchr(b'\n', rest)? + 2;
        let (frame, next) = rest.split_at_checked(end)?;
        (rest, number) = (next, number + 1);
        Some((number, frame, rest.is_empty()))
    })
}

/// The hexadecimal digits of the number of a frame in its entry. A run has at most 16 MiB, and a frame at
/// least 25 bytes, so they are enough. The position before them has 33 bits in a number of JavaScript.
pub(super) const FRAME_DIGITS: usize = 5;

const FRAME_BITS: usize = 4 * FRAME_DIGITS;
