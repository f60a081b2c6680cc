//! [`Checked`]: a step with the reply that it has to have.

use crate::store::rows::step::{Found, Item, Read, Sequence, Step, Version, Write};

/// A step, and the reply that it has to have.
pub(super) struct Checked {
    pub(super) step: Step,
    pub(super) is_applied: bool,
    pub(super) found: Vec<Found>,
}

/// A step of a partition that is applied.
pub(super) fn at(partition: &str) -> Checked {
    let step = Step { partition: partition.to_owned(), ..Step::default() };
    Checked { step, is_applied: true, found: Vec::new() }
}

impl Checked {
    pub(super) fn refused(self) -> Self {
        Checked { is_applied: false, ..self }
    }

    pub(super) fn expect(mut self, row: &str, version: Version) -> Self {
        self.step.expected.push((row.to_owned(), version));
        self
    }

    pub(super) fn write(mut self, write: Write) -> Self {
        self.step.writes.push(write);
        self
    }

    pub(super) fn put(self, row: &str, version: Version, text: &str) -> Self {
        self.write(Write::Put(row.to_owned(), version, bytes(text).into()))
    }

    pub(super) fn delete(self, row: &str) -> Self {
        self.write(Write::Delete(row.to_owned()))
    }

    pub(super) fn push(
        self,
        row: &str,
        sequence: Sequence,
        first: u64,
        at: Option<u64>,
        all: &str,
    ) -> Self {
        self.write(Write::Push { row: row.to_owned(), sequence, first, at, items: items(all) })
    }

    pub(super) fn keep(self, row: &str, sequence: Sequence, from: u64, until: u64) -> Self {
        self.write(Write::Keep { row: row.to_owned(), sequence, from, until })
    }

    pub(super) fn place(
        self,
        list: &'static str,
        member: &str,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Self {
        self.write(Write::Move { list, member: member.to_owned(), from, to })
    }

    pub(super) fn read(mut self, read: Read, found: Found) -> Self {
        self.step.reads.push(read);
        self.found.push(found);
        self
    }

    pub(super) fn none(self, row: &str) -> Self {
        self.read(Read::Row(row.to_owned()), Found::Row(None))
    }

    pub(super) fn row(self, row: &str, version: Version, text: &str) -> Self {
        self.read(Read::Row(row.to_owned()), Found::Row(Some((version, bytes(text).into()))))
    }

    pub(super) fn end(self, row: &str, sequence: Sequence, end: Option<u64>) -> Self {
        self.read(Read::End(row.to_owned(), sequence), Found::End(end))
    }

    /// Reads the items of the sequence 0 from a position on, up to a number of bytes.
    pub(super) fn page(
        self,
        (row, from): (&str, u64),
        max: usize,
        marked: bool,
        all: &[(u64, &str)],
    ) -> Self {
        let (row, only_marked) = (row.to_owned(), marked);
        let found = all.iter().map(|(position, text)| (*position, item(text))).collect();
        let read = Read::Items { row, sequence: 0, from, max_bytes: max, only_marked };
        self.read(read, Found::Items(found))
    }

    /// Reads all items of a sequence, of which the first one is at `first`, and its end.
    pub(super) fn all(self, row: &str, sequence: Sequence, first: u64, all: &str) -> Self {
        let found: Vec<_> = (first..).zip(items(all)).collect();
        let end = found.last().map(|(position, _)| position + 1);
        let (row, max_bytes, only_marked) = (row.to_owned(), usize::MAX, false);
        let read = Read::Items { row: row.clone(), sequence, from: 0, max_bytes, only_marked };
        self.end(&row, sequence, end).read(read, Found::Items(found))
    }

    pub(super) fn members(
        self,
        (list, is_descending): (&'static str, bool),
        after: Option<(u64, &str)>,
        limit: usize,
        all: &[(u64, &str)],
    ) -> Self {
        let owned = |(place, member): (u64, &str)| (place, member.to_owned());
        let found = Found::Members(all.iter().copied().map(owned).collect());
        self.read(Read::Members { list, after: after.map(owned), is_descending, limit }, found)
    }

    /// Reads a list.
    pub(super) fn list(self, list: &'static str, all: &[(u64, &str)]) -> Self {
        self.members((list, false), None, usize::MAX, all)
    }
}

/// Returns an item: the first character is the digit of its kind, and its bytes follow.
fn item(text: &str) -> Item {
    let (kind, rest) = text.split_at_checked(1).unwrap_or_default();
    Item { kind: kind.parse().unwrap_or_default(), bytes: bytes(rest).into() }
}

/// Returns the items between spaces.
fn items(text: &str) -> Vec<Item> {
    text.split(' ').filter(|it| !it.is_empty()).map(item).collect()
}

/// Returns the bytes that the characters below U+0100 stand for.
fn bytes(text: &str) -> Vec<u8> {
    text.chars().filter_map(|character| character.try_into().ok()).collect()
}
