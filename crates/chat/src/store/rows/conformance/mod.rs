//! [`check`]: tests whether a database keeps the guarantees of [`Rows`], step by step.
//!
//! Not tested is what needs time, a crash or a second process.

mod cases;

use super::database::Rows;
use super::step::{Found, Item, Read, Sequence, Step, Version, Write};
use crate::store::conformance::report::{
    CaseFailure, CaseResult, Report, expect_equal, new_number,
};
use ui_message_stream::approval::UnixMillis;

/// Runs every case against a database, and returns the number of cases.
///
/// `store` is called once for each case. It may return the same database each time: the cases use new partitions, and
/// leave rows in them. This needs a tokio runtime whose time is not paused.
///
/// # Panics
/// If a case fails. The panic follows after all cases have run. Its message holds the name of each failed case, the step
/// that had another reply, and both replies.
pub async fn check<S: Rows>(store: impl AsyncFn() -> S) -> usize {
    let mut report = Report::default();
    for (name, case) in cases::CASES {
        report.run(name, run(store().await, *case)).await;
    }
    report.finish()
}

/// Runs the steps of a case in one call, and each in its own, in a new partition each time.
async fn run(store: impl Rows, case: fn(&str) -> Vec<Checked>) -> CaseResult {
    for (is_one_call, can_wait) in [(true, false), (false, false), (true, true), (false, true)] {
        let steps = case(&new_number());
        let calls = if is_one_call { "all in one call" } else { "one a call" };
        let (mut number, mut time) = (0, FIRST_TIME);
        for steps in steps.chunks(if is_one_call { steps.len() } else { 1 }) {
            let (call, known) = (format!("the call from step {} on", number + 1), store.now());
            let run = steps.iter().map(|it| Step { can_wait, ..it.step.clone() }).collect();
            let replies = store.run(run).await.map_err(|error| {
                let CaseFailure(why) = error.into();
                CaseFailure(format!("{call} is an error: {why}"))
            })?;
            expect_equal(&format!("the number of replies to {call}"), replies.len(), steps.len())?;
            for (Checked { step, is_applied, found }, reply) in steps.iter().zip(replies) {
                number += 1;
                let of = format!("of step {number} ({calls})");
                expect_equal(
                    &format!("is_applied {of}, {step:?},"),
                    reply.is_applied,
                    *is_applied,
                )?;
                for ((read, expected), found) in step.reads.iter().zip(found).zip(&reply.found) {
                    expect_equal(&format!("the answer {of} to {read:?}"), found, expected)?;
                }
                expect_equal(&format!("the answers {of}"), reply.found.len(), found.len())?;
                let times = time.max(known.unwrap_or_default())..=LAST_TIME;
                if !times.contains(&reply.now) {
                    let why = format!("now {of} is {:?}, not within {times:?}", reply.now);
                    return Err(CaseFailure(why));
                }
                time = reply.now;
            }
        }
    }
    Ok(())
}

/// A step, and the reply that it has to have.
struct Checked {
    step: Step,
    is_applied: bool,
    found: Vec<Found>,
}

/// A step of a partition that is applied.
fn at(partition: &str) -> Checked {
    let step = Step { partition: partition.to_owned(), ..Step::default() };
    Checked { step, is_applied: true, found: Vec::new() }
}

impl Checked {
    fn refused(self) -> Self {
        Checked { is_applied: false, ..self }
    }

    fn expect(mut self, row: &str, version: Version) -> Self {
        self.step.expected.push((row.to_owned(), version));
        self
    }

    fn write(mut self, write: Write) -> Self {
        self.step.writes.push(write);
        self
    }

    fn put(self, row: &str, version: Version, text: &str) -> Self {
        self.write(Write::Put(row.to_owned(), version, bytes(text).into()))
    }

    fn delete(self, row: &str) -> Self {
        self.write(Write::Delete(row.to_owned()))
    }

    fn push(self, row: &str, sequence: Sequence, first: u64, at: Option<u64>, all: &str) -> Self {
        self.write(Write::Push { row: row.to_owned(), sequence, first, at, items: items(all) })
    }

    fn keep(self, row: &str, sequence: Sequence, from: u64, until: u64) -> Self {
        self.write(Write::Keep { row: row.to_owned(), sequence, from, until })
    }

    fn place(self, list: &'static str, member: &str, from: Option<u64>, to: Option<u64>) -> Self {
        self.write(Write::Move { list, member: member.to_owned(), from, to })
    }

    fn read(mut self, read: Read, found: Found) -> Self {
        self.step.reads.push(read);
        self.found.push(found);
        self
    }

    fn none(self, row: &str) -> Self {
        self.read(Read::Row(row.to_owned()), Found::Row(None))
    }

    fn row(self, row: &str, version: Version, text: &str) -> Self {
        self.read(Read::Row(row.to_owned()), Found::Row(Some((version, bytes(text).into()))))
    }

    fn end(self, row: &str, sequence: Sequence, end: Option<u64>) -> Self {
        self.read(Read::End(row.to_owned(), sequence), Found::End(end))
    }

    /// Reads the items of the sequence 0 from a position on, up to a number of bytes.
    fn page(self, (row, from): (&str, u64), max: usize, marked: bool, all: &[(u64, &str)]) -> Self {
        let (row, only_marked) = (row.to_owned(), marked);
        let found = all.iter().map(|(position, text)| (*position, item(text))).collect();
        let read = Read::Items { row, sequence: 0, from, max_bytes: max, only_marked };
        self.read(read, Found::Items(found))
    }

    /// Reads all items of a sequence, of which the first one is at `first`, and its end.
    fn all(self, row: &str, sequence: Sequence, first: u64, all: &str) -> Self {
        let found: Vec<_> = (first..).zip(items(all)).collect();
        let end = found.last().map(|(position, _)| position + 1);
        let (row, max_bytes, only_marked) = (row.to_owned(), usize::MAX, false);
        let read = Read::Items { row: row.clone(), sequence, from: 0, max_bytes, only_marked };
        self.end(&row, sequence, end).read(read, Found::Items(found))
    }

    fn members(
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
    fn list(self, list: &'static str, all: &[(u64, &str)]) -> Self {
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

/// Milliseconds since 1970 are after this, and seconds are not.
const FIRST_TIME: UnixMillis = UnixMillis(1 << 40);

/// Milliseconds since 1970 are before this, and microseconds are not.
const LAST_TIME: UnixMillis = UnixMillis(1 << 43);

#[cfg(test)]
mod tests {
    use super::check;
    use crate::store::InMemoryLogStore;

    #[tokio::test]
    async fn rows_in_memory_pass_the_conformance_suite() {
        check(async || InMemoryLogStore::new()).await;
    }
}
