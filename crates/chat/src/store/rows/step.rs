//! [`Step`]: what a database of rows runs, and its reply.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::store::{Epoch, LogKey};
use ui_message_stream::approval::UnixMillis;

/// Writes and reads of one partition, in one atomic step.
///
/// Names of partitions and rows, and members of lists, are any text: they may be empty and may have the character
/// U+0000. They are compared by their bytes.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// The partition.
    pub partition: String,
    /// Rows and the versions that they have to have. If one has another, nothing is written, and the step is not
    /// applied. The same holds if a [`Write::Push`] is refused.
    pub expected: Vec<(String, Version)>,
    /// What is written, in this order, after all is compared. A step never deletes a row that it puts or pushes to, and
    /// puts a new row before it pushes to it.
    pub writes: Vec<Write>,
    /// What is read after that, also if nothing was written.
    pub reads: Vec<Read>,
    /// What those who wait for changes have to know if the step is applied.
    pub hints: Vec<Hint>,
    /// No other server decides on what is written, and no user waits for it. If the power fails it may be lost, but
    /// not what was written before by a step that cannot wait.
    pub can_wait: bool,
}

impl Step {
    /// Returns whether the step writes this row.
    pub fn puts(&self, row: &str) -> bool {
        self.writes.iter().any(|write| matches!(write, Write::Put(put, ..) if put == row))
    }
}

/// A write of a [`Step`].
#[derive(Debug, Clone)]
pub enum Write {
    /// Writes a row. Its sequences stay.
    Put(String, Version, Bytes),
    /// Deletes a row with its sequences, if there is one.
    Delete(String),
    /// Adds items at the end of a sequence. It is refused if there is no such row, unless the step puts it. With an
    /// expected position it is refused if the row was not stored before, or if the sequence does not end there; one
    /// without items ends at `first`. Without items it is only compared.
    Push {
        /// The row.
        row: String,
        /// The number of the sequence.
        sequence: Sequence,
        /// The position of the first item, if the sequence has none.
        first: u64,
        /// Where the sequence has to end.
        at: Option<u64>,
        /// The items.
        items: Vec<Item>,
    },
    /// Removes the items of a sequence before `from`, and those at `until` and after it. The next item after that has
    /// the position after the last one that stays; if none stays, it has the `first` of its [`Write::Push`].
    Keep {
        /// The row.
        row: String,
        /// The number of the sequence.
        sequence: Sequence,
        /// The position of the first item that stays.
        from: u64,
        /// The position after the last item that stays.
        until: u64,
    },
    /// Moves a member of a list to another place: removes it from one place, if it is there, and adds it at the other,
    /// if it is not there. A member may have several places. A place is any number below 2<sup>63</sup>: a time, in
    /// milliseconds or finer.
    Move {
        /// The list.
        list: &'static str,
        /// The member.
        member: String,
        /// Where it is removed.
        from: Option<u64>,
        /// Where it is added.
        to: Option<u64>,
    },
}

/// A read of a [`Step`].
#[derive(Debug, Clone)]
pub enum Read {
    /// A row. The answer is [`Found::Row`].
    Row(String),
    /// The position after the last item of a sequence. The answer is [`Found::End`].
    End(String, Sequence),
    /// Items. The answer is [`Found::Items`].
    Items {
        /// The row.
        row: String,
        /// The number of the sequence.
        sequence: Sequence,
        /// The position of the first item.
        from: u64,
        /// There is at least one item, if there is one from here on, and no further one beyond this number of bytes.
        /// A page of many small items may have fewer, but `usize::MAX` means all.
        max_bytes: usize,
        /// Leaves out the items whose kind is zero.
        only_marked: bool,
    },
    /// Members of a list, in the order of their places and then of their bytes. The answer is [`Found::Members`].
    Members {
        /// The list.
        list: &'static str,
        /// The place after which they begin, which may be any number.
        after: Option<(u64, String)>,
        /// Whether the last ones come first.
        is_descending: bool,
        /// The maximum number.
        limit: usize,
    },
}

/// The number of a sequence of a row: 0 to 3.
pub type Sequence = u8;

/// An item of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// A number from 0 to 2.
    pub kind: u8,
    /// Its content.
    pub bytes: Bytes,
}

/// The reply to a [`Step`].
#[derive(Debug, Clone)]
pub struct Reply {
    /// The time of the clock of the database.
    pub now: UnixMillis,
    /// Whether the writes were applied.
    pub is_applied: bool,
    /// An answer for each read.
    pub found: VecDeque<Found>,
}

/// The answer to a [`Read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The version and the bytes of a row.
    Row(Option<(Version, Bytes)>),
    /// The end of a sequence. `None` if it has no items.
    End(Option<u64>),
    /// Items with their positions.
    Items(Vec<(u64, Item)>),
    /// Members with their places.
    Members(Vec<(u64, String)>),
}

/// What a step has changed, for those who wait for changes.
#[derive(Debug, Clone)]
pub struct Hint {
    /// The chat.
    pub key: LogKey,
    /// The epoch and the length of its log after the step. `None` if it was deleted. The length is a lower bound.
    pub log: Option<(Epoch, u64)>,
    /// Whether lists of the owner were changed.
    pub is_list: bool,
}

/// Which write has written a row: a random number below 2<sup>53</sup>, so that no write is taken for another one,
/// also after the row was deleted. Zero stands for no row.
pub type Version = u64;
