//! [`Partition`]: the rows and lists of a partition in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::store::rows::step::{Found, Item, Read, Sequence, Step, Version, Write};
use crate::store::rows::{ENTRIES, log_of_row};

/// The maximum numbers of bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) user: usize,
    pub(super) store: usize,
    pub(super) ended: usize,
}

#[derive(Default)]
pub(super) struct Partition {
    /// Most users have one chat.
    rows: HashMap<String, Box<StoredRow>>,
    lists: BTreeMap<&'static str, BTreeSet<(u64, String)>>,
    /// The bytes of the logs.
    pub(super) bytes: usize,
}

#[derive(Default)]
struct StoredRow {
    version: Version,
    bytes: Bytes,
    sequences: Vec<(Sequence, Items)>,
    /// Wakes those who wait for a change of the row. Each has a clone.
    changed: Option<Arc<Notify>>,
}

/// Items in pages, so that a long sequence grows without a copy of it.
struct Items {
    first: u64,
    end: u64,
    /// Each has the items of the positions between two multiples of [`PAGE`].
    pages: VecDeque<Vec<Item>>,
}

impl Partition {
    pub(super) fn is_empty(&self) -> bool {
        !self.has_rows() && self.lists.is_empty()
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Returns whether the rows have the expected versions, and no push is refused.
    pub(super) fn accepts(&self, step: &Step) -> bool {
        let version = |row: &String| self.rows.get(row).map_or(0, |row| row.version);
        let is_accepted = |write: &Write| match write {
            Write::Push { row, sequence, first, at: Some(at), .. } => {
                let stored = self.rows.get(row);
                stored.is_some_and(|stored| stored.end(*sequence).unwrap_or(*first) == *at)
            }
            Write::Push { row, .. } => self.rows.contains_key(row) || step.puts(row),
            _ => true,
        };
        step.expected.iter().all(|(row, expected)| version(row) == *expected)
            && step.writes.iter().all(is_accepted)
    }

    pub(super) fn write(&mut self, write: Write) {
        match write {
            Write::Put(row, version, bytes) => {
                let row_bytes = bytes_of_row(&row);
                let stored = self.rows.entry(row).or_insert_with(|| {
                    self.bytes += row_bytes;
                    Box::default()
                });
                (stored.version, stored.bytes) = (version, bytes);
                stored.notify();
            }
            Write::Delete(row) => {
                if let Some(stored) = self.rows.remove(&row) {
                    self.bytes -= stored.log_bytes() + bytes_of_row(&row);
                    stored.notify();
                }
            }
            Write::Push { row, sequence, first, items, .. } => {
                let Some(stored) = self.rows.get_mut(&row) else { return };
                self.bytes += bytes_of(&items);
                match stored.sequences.iter_mut().find(|(number, _)| *number == sequence) {
                    Some((_, stored)) => stored.extend(items),
                    None if items.is_empty() => {}
                    None => stored.sequences.push((sequence, Items::new(first, items))),
                }
                stored.notify();
            }
            Write::Keep { row, sequence, from, until } => {
                let Some(stored) = self.rows.get_mut(&row) else { return };
                let stored = &mut stored.sequences;
                let Some(at) = stored.iter().position(|(number, _)| *number == sequence) else {
                    return;
                };
                let (_, items) = &mut stored[at];
                self.bytes -= items.bytes_outside(from, until);
                items.keep(from, until);
                if items.pages.is_empty() {
                    stored.swap_remove(at);
                }
            }
            Write::Move { list, member, from, to } => {
                let members = self.lists.entry(list).or_default();
                from.map(|from| members.remove(&(from, member.clone())));
                members.extend(to.map(|to| (to, member)));
                if members.is_empty() {
                    self.lists.remove(list);
                }
            }
        }
    }

    pub(super) fn read(&self, read: &Read) -> Found {
        match read {
            Read::Row(row) => {
                Found::Row(self.rows.get(row).map(|row| (row.version, row.bytes.clone())))
            }
            Read::End(row, sequence) => {
                Found::End(self.rows.get(row).and_then(|row| row.end(*sequence)))
            }
            Read::Items { row, sequence, from, max_bytes, only_marked } => {
                let mut bytes = 0;
                let items = self.rows.get(row).and_then(|row| row.items(*sequence)).into_iter();
                let items = items.flat_map(|items| items.range(*from, u64::MAX));
                let items = items.filter(|(_, item)| !only_marked || item.kind > 0).enumerate();
                let page = items.take_while(|(count, (_, item))| {
                    bytes += item.bytes.len();
                    *count == 0 || bytes <= *max_bytes
                });
                Found::Items(page.map(|(_, (at, item))| (at, item.clone())).collect())
            }
            Read::Members { list, after, is_descending, limit } => {
                let after = after.clone().map_or(Bound::Unbounded, Bound::Excluded);
                let members = self.lists.get(list).into_iter();
                Found::Members(if *is_descending {
                    let members =
                        members.flat_map(|it| it.range((Bound::Unbounded, after.clone())).rev());
                    members.take(*limit).cloned().collect()
                } else {
                    let members =
                        members.flat_map(|it| it.range((after.clone(), Bound::Unbounded)));
                    members.take(*limit).cloned().collect()
                })
            }
        }
    }

    /// Returns what wakes those who wait for the log of a row to be longer. `None` if it is, or is gone.
    pub(super) fn changed(&mut self, row: &str, length: u64) -> Option<Arc<Notify>> {
        let stored = self.rows.get_mut(row)?;
        let end = stored.end(ENTRIES);
        let end = end.or_else(|| log_of_row(&stored.bytes, None).ok().map(|(_, length)| length));
        end.filter(|end| *end <= length)?;
        Some(Arc::clone(stored.changed.get_or_insert_default()))
    }

    /// Returns the first members of a list.
    pub(super) fn members(&self, list: &str) -> impl Iterator<Item = &str> {
        self.lists.get(list).into_iter().flatten().map(|(_, member)| &**member)
    }

    pub(super) fn row(&self, row: &str) -> Option<(Version, &Bytes)> {
        self.rows.get(row).map(|row| (row.version, &row.bytes))
    }

    /// Returns the bytes of a log.
    pub(super) fn log_bytes(&self, row: &str) -> usize {
        self.rows.get(row).map_or(0, |stored| stored.log_bytes() + bytes_of_row(row))
    }

    /// Returns the bytes that writes add and remove.
    pub(super) fn growth(&self, writes: &[Write]) -> (usize, usize) {
        let (mut added, mut removed) = (0, 0);
        for write in writes {
            match write {
                Write::Put(row, ..) if !self.rows.contains_key(row) => added += bytes_of_row(row),
                Write::Push { items, .. } => added += bytes_of(items),
                Write::Keep { row, sequence, from, until } => {
                    let items = self.rows.get(row).and_then(|row| row.items(*sequence));
                    removed += items.map_or(0, |items| items.bytes_outside(*from, *until));
                }
                _ => {}
            }
        }
        (added, removed)
    }
}

impl StoredRow {
    fn items(&self, sequence: Sequence) -> Option<&Items> {
        let mut sequences = self.sequences.iter();
        sequences.find(|(number, _)| *number == sequence).map(|(_, items)| items)
    }

    fn end(&self, sequence: Sequence) -> Option<u64> {
        self.items(sequence).map(|items| items.end)
    }

    fn log_bytes(&self) -> usize {
        self.sequences.iter().map(|(_, items)| bytes_of(items.pages.iter().flatten())).sum()
    }

    fn notify(&self) {
        self.changed.iter().for_each(|changed| changed.notify_waiters());
    }
}

impl Items {
    fn new(first: u64, items: Vec<Item>) -> Self {
        let mut new = Items { first, end: first, pages: VecDeque::new() };
        new.extend(items);
        new
    }

    fn extend(&mut self, items: Vec<Item>) {
        for item in items {
            match self.pages.back_mut() {
                Some(page) if !self.end.is_multiple_of(PAGE) => page.push(item),
                _ => self.pages.push_back(vec![item]),
            }
            self.end += 1;
        }
    }

    /// Returns the items from one position to before another one, with their positions.
    fn range(&self, from: u64, until: u64) -> impl Iterator<Item = (u64, &Item)> {
        let from = from.clamp(self.first, self.end);
        let page = from / PAGE;
        let before = usize::try_from(page - self.first / PAGE).unwrap_or(usize::MAX);
        let items = (self.first.max(page * PAGE)..).zip(self.pages.iter().skip(before).flatten());
        items.skip_while(move |(at, _)| *at < from).take_while(move |(at, _)| *at < until)
    }

    /// Returns the bytes of the items before `from`, and of those at `until` and after it.
    fn bytes_outside(&self, from: u64, until: u64) -> usize {
        let outside = self.range(0, from).chain(self.range(from.max(until), u64::MAX));
        outside.map(|(_, item)| item.bytes.len()).sum()
    }

    /// Removes the items before `from`, and those at `until` and after it.
    fn keep(&mut self, from: u64, until: u64) {
        while self.end > until.max(self.first)
            && let Some(page) = self.pages.back_mut()
        {
            page.pop();
            self.end -= 1;
            if page.is_empty() {
                self.pages.pop_back();
            }
        }
        while self.first < from
            && let Some(page) = self.pages.front_mut()
        {
            let removed = page.len().min(usize::try_from(from - self.first).unwrap_or(usize::MAX));
            page.drain(..removed);
            self.first += removed as u64;
            if page.is_empty() {
                self.pages.pop_front();
            }
        }
    }
}

pub(super) fn bytes_of<'a>(items: impl IntoIterator<Item = &'a Item>) -> usize {
    items.into_iter().map(|item| item.bytes.len()).sum()
}

/// How many items a page has.
const PAGE: u64 = 64;

/// What a row counts beside its items: 1 KiB if it is the one of a chat.
fn bytes_of_row(row: &str) -> usize {
    if row.starts_with('h') { 1 << 10 } else { 0 }
}
