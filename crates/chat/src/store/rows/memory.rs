//! [`MemoryRows`]: rows in memory, for tests, and as an example of a database.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::Mutex;

use bytes::Bytes;

use super::database::Rows;
use super::known_logs::{KnownLogs, lock};
use super::step::{Found, Item, Read, Reply, Sequence, Step, Version, Write};
use crate::store::{ChatStoreError, system_time};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::UnixMillis;

/// Rows in memory, without limits. They give no hints.
#[derive(Default)]
pub struct MemoryRows {
    partitions: Mutex<HashMap<String, Partition>>,
    /// The time of a test. Otherwise the time is that of the system.
    now: Mutex<Option<UnixMillis>>,
    max_ended_bytes: Option<usize>,
    known: KnownLogs,
}

#[derive(Default)]
struct Partition {
    rows: HashMap<String, StoredRow>,
    lists: HashMap<&'static str, BTreeSet<(u64, String)>>,
}

#[derive(Default)]
struct StoredRow {
    version: Version,
    bytes: Bytes,
    sequences: HashMap<Sequence, BTreeMap<u64, Item>>,
}

impl fmt::Debug for MemoryRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRows").finish_non_exhaustive()
    }
}

impl MemoryRows {
    /// Creates a store without rows, whose clock stands at `now`.
    pub fn with_test_clock(now: UnixMillis) -> Self {
        MemoryRows { now: Mutex::new(Some(now)), ..Self::default() }
    }

    /// Sets how many bytes are kept of runs that have ended.
    #[must_use]
    pub fn with_max_ended_bytes(self, bytes: usize) -> Self {
        MemoryRows { max_ended_bytes: Some(bytes), ..self }
    }

    /// Sets the clock. A time before the current one has no effect.
    pub fn set_test_time(&self, now: UnixMillis) {
        let mut time = lock(&self.now);
        *time = time.map(|time| now.max(time));
    }

    fn time(&self) -> UnixMillis {
        lock(&self.now).unwrap_or_else(system_time)
    }
}

impl Rows for MemoryRows {
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>> {
        let mut partitions = lock(&self.partitions);
        let now = self.time();
        let replies = steps.into_iter().map(|step| {
            let partition = partitions.entry(step.partition.clone()).or_default();
            let is_applied = partition.has_expected(&step);
            if is_applied {
                step.writes.into_iter().for_each(|write| partition.write(write));
            }
            let found = step.reads.iter().map(|read| partition.read(read)).collect();
            Reply { now, is_applied, found }
        });
        Box::pin(ready(Ok(replies.collect())))
    }

    fn now(&self) -> Option<UnixMillis> {
        Some(self.time())
    }

    fn known(&self) -> &KnownLogs {
        &self.known
    }

    fn max_ended_bytes(&self) -> usize {
        self.max_ended_bytes.unwrap_or(usize::MAX)
    }

    fn list_partitions(&self) -> u64 {
        3
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(ready(Ok(())))
    }
}

impl Partition {
    fn has_expected(&self, step: &Step) -> bool {
        let version = |row: &String| self.rows.get(row).map_or(0, |row| row.version);
        let is_expected = |(row, expected): &(_, _)| version(row) == *expected;
        let is_accepted = |write: &Write| match write {
            Write::Push { row, sequence, first, at: Some(at), .. } => {
                self.rows.contains_key(row) && self.end(row, *sequence).unwrap_or(*first) == *at
            }
            Write::Push { row, .. } => self.rows.contains_key(row) || step.puts(row),
            _ => true,
        };
        step.expected.iter().all(is_expected) && step.writes.iter().all(is_accepted)
    }

    fn items(&self, row: &str, sequence: Sequence) -> Option<&BTreeMap<u64, Item>> {
        self.rows.get(row)?.sequences.get(&sequence)
    }

    fn end(&self, row: &str, sequence: Sequence) -> Option<u64> {
        self.items(row, sequence)?.last_key_value().map(|(last, _)| last + 1)
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Put(row, version, bytes) => {
                let stored = self.rows.entry(row).or_default();
                (stored.version, stored.bytes) = (version, bytes);
            }
            Write::Delete(row) => drop(self.rows.remove(&row)),
            Write::Push { row, sequence, first, items, .. } => {
                let end = self.end(&row, sequence).unwrap_or(first);
                let stored = self.rows.entry(row).or_default();
                stored.sequences.entry(sequence).or_default().extend((end..).zip(items));
            }
            Write::Keep { row, sequence, from, until } => {
                let stored = self.rows.get_mut(&row);
                if let Some(items) = stored.and_then(|row| row.sequences.get_mut(&sequence)) {
                    items.retain(|position, _| from <= *position && *position < until);
                }
            }
            Write::Move { list, member, from, to } => {
                let list = self.lists.entry(list).or_default();
                from.map(|from| list.remove(&(from, member.clone())));
                list.extend(to.map(|to| (to, member)));
            }
        }
    }

    fn read(&self, read: &Read) -> Found {
        match read {
            Read::Row(row) => {
                Found::Row(self.rows.get(row).map(|row| (row.version, row.bytes.clone())))
            }
            Read::End(row, sequence) => Found::End(self.end(row, *sequence)),
            Read::Items { row, sequence, from, max_bytes, only_marked } => {
                let mut bytes = 0;
                let items = self.items(row, *sequence).into_iter();
                let items = items.flat_map(|items| items.range(from..));
                let items = items.filter(|(_, item)| !only_marked || item.kind > 0).enumerate();
                let page = items.take_while(|(count, (_, item))| {
                    bytes += item.bytes.len();
                    *count == 0 || bytes <= *max_bytes
                });
                Found::Items(page.map(|(_, (at, item))| (*at, item.clone())).collect())
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
}
