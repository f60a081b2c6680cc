//! [`EventId`]: where a client continues a run, and whether the log holds what it has read.

use memchr::memchr;

use super::entry::{Entry, OtherEntry};
use crate::store::Epoch;
use ui_message_stream::id::MessageId;

/// Where a client continues a run. Its text is the `id:` of the frame before: what names the run, a dot,
/// and a number that grows with each frame, in a form that `Number` of JavaScript reads. It is hexadecimal, and
/// decimal if the client has read frames before the log held them: a server that does not know this form does not
/// continue the run there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(crate) epoch: Epoch,
    /// The position of the first entry of the run.
    pub(crate) begin: u64,
    /// The position of the next entry.
    pub(crate) position: u64,
    /// How many frames of this entry the client has read.
    pub(crate) frames: usize,
    /// The log did not hold this entry then. The frames may be of several entries from there on.
    pub(crate) is_ahead: bool,
}

impl EventId {
    /// The place before the first entry of a run.
    pub(crate) fn of_run(epoch: Epoch, begin: u64) -> Self {
        EventId { epoch, begin, position: begin, frames: 0, is_ahead: false }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let (run, place) = text.split_once('.')?;
        let (epoch, begin) = run.split_once('-')?;
        let stored = place.strip_prefix("0x");
        let place = stored.map_or_else(|| place.parse().ok(), number)?;
        let id = EventId {
            epoch: Epoch(number(epoch)?),
            begin: number(begin)?,
            position: place >> FRAME_BITS,
            frames: usize::try_from(place & ((1 << FRAME_BITS) - 1)).ok()?,
            is_ahead: stored.is_none(),
        };
        (id.begin <= id.position).then_some(id)
    }
}

/// Looks for the place of a client in the entries of its run.
#[derive(Debug)]
pub(crate) struct PlaceSearch {
    place: EventId,
    /// The position of the next entry.
    next: u64,
    message_id: Option<MessageId>,
    /// The entry before the next one is the end of the run.
    has_ended: bool,
    /// The log holds something else than what the client has read.
    is_lost: bool,
}

/// The place of a client in its run.
#[derive(Debug)]
pub(crate) struct FoundPlace {
    /// It is ahead of the log if the run is live and its server has not stored the rest.
    pub(crate) place: EventId,
    /// The message that the run writes.
    pub(crate) message_id: MessageId,
    /// The client has read the end of the run.
    pub(crate) has_ended: bool,
}

impl PlaceSearch {
    pub(crate) fn new(place: EventId) -> Self {
        let next = place.begin;
        PlaceSearch { place, next, message_id: None, has_ended: false, is_lost: false }
    }

    /// Adds the next entry of the run, from its first one on. Returns whether the next one is needed.
    pub(crate) fn push(&mut self, entry: &Entry) -> bool {
        let is_first = self.next == self.place.begin;
        match entry.other() {
            Some(OtherEntry::Begin { message_id, .. }) if is_first => {
                self.message_id = Some(message_id.clone());
            }
            // After the end of the run comes another one, whose message the user may have removed.
            _ if is_first || self.has_ended => return false,
            _ => self.has_ended = entry.ends_run(),
        }
        if self.place.is_ahead && self.next == self.place.position {
            if entry.other().is_some() {
                self.is_lost = true;
                return false;
            }
            let count = each(&entry.frames()).count();
            if self.place.frames < count {
                self.place.is_ahead = false;
                return false;
            }
            self.place.frames -= count;
            self.place.position += 1;
            self.place.is_ahead = self.place.frames > 0;
        }
        self.next += 1;
        self.next < self.needed() || self.place.is_ahead
    }

    /// Returns the position up to which the log has to hold the run.
    fn needed(&self) -> u64 {
        self.place.position.max(self.place.begin + 1)
    }

    /// Returns the place, after the entries that were needed or all that the log holds. `None` if the log does not
    /// hold what the client has read, and will not hold it.
    pub(crate) fn found(self) -> Option<FoundPlace> {
        let is_held = self.next >= self.needed() && !self.is_lost;
        let PlaceSearch { place, message_id, has_ended, .. } = self;
        message_id.filter(|_| is_held).map(|message_id| FoundPlace { place, message_id, has_ended })
    }
}

/// Returns each frame of an entry, with its number, from 1 on, and whether it is the last one.
pub(crate) fn each(frames: &[u8]) -> impl Iterator<Item = (usize, &[u8], bool)> {
    let mut rest = frames;
    let mut number = 0;
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

pub(super) const FRAME_BITS: usize = 4 * FRAME_DIGITS;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::log::entry::RunEnd;

    fn frames(count: usize) -> Entry {
        Entry::Frame(Bytes::from("data: x\n\n".repeat(count)))
    }

    /// Where a client continues that has read so many frames ahead of the log, after the begin of the run, its step and
    /// an entry with one frame: a position, and how many frames of the entry there.
    fn found(read: usize, rest: &[Entry]) -> Option<(u64, usize, bool)> {
        let begin = OtherEntry::Begin { run: "r1".into(), message_id: "a1".into() };
        let entries = [begin.into(), OtherEntry::Step.into(), frames(1)];
        let place =
            EventId { position: 3, frames: read, is_ahead: true, ..EventId::of_run(Epoch(1), 0) };
        let mut search = PlaceSearch::new(place);
        let _ = entries.iter().chain(rest).all(|entry| search.push(entry));
        let place = search.found()?.place;
        Some((place.position, place.frames, place.is_ahead))
    }

    #[test]
    fn a_client_that_has_read_text_ahead_of_the_log_continues_after_it_or_loads_the_chat() {
        let end: Entry = OtherEntry::End { run: "r1".into(), end: RunEnd::Stopped }.into();
        // The entries after those that the log held when the client read the text.
        for (read, rest, place) in [
            (2, &[frames(3)][..], Some((3, 2, false))),
            (3, &[frames(3)], Some((4, 0, false))),
            (3, &[frames(2), frames(2)], Some((4, 1, false))),
            (4, &[frames(2), frames(2), end.clone()], Some((5, 0, false))),
            // The server of the run stores the rest, or is lost.
            (3, &[], Some((3, 3, true))),
            (3, &[frames(2)], Some((4, 1, true))),
            // The text is lost.
            (3, &[frames(2), OtherEntry::HandedOver.into(), frames(2)], None),
            (1, std::slice::from_ref(&end), None),
            (3, &[frames(2), end.clone()], None),
            (1, &[OtherEntry::Step.into(), frames(2)], None),
        ] {
            assert_eq!(found(read, rest), place, "{read} {rest:?}");
        }
    }
}
