//! [`Rows`] of a [`PostgresStore`]: a row for each row, for each item of a sequence, and for each member of a list.
//!
//! A call is one statement: steps that only read see one moment, and others are a transaction with the locks of their
//! partitions. The items of a row that was deleted are deleted in short transactions after that.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream_chat::store::rows::{
    Found, Hint, Item, KnownLogs, Read, Reply, Rows, Sequence, Step, Write,
};
use ui_message_stream_chat::store::{ChatStoreError, LogKey};

use crate::batches::MAX_STEPS;
use crate::error::PostgresError;
use crate::hints::{list_digest, log_digest};
use crate::ledger::later;
use crate::{PostgresStore, Value, column, number, stored};

impl From<PostgresError> for ChatStoreError {
    fn from(error: PostgresError) -> Self {
        ChatStoreError::new(error)
    }
}

impl Rows for PostgresStore {
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>> {
        Box::pin(async move { Ok(self.run_steps(steps).await?) })
    }

    fn now(&self) -> Option<UnixMillis> {
        let now = later(
            self.inner.latest_time.load(Ordering::Acquire),
            self.inner.clock.expected_time()?,
        );
        now.try_into().ok().map(UnixMillis)
    }

    fn known(&self) -> &KnownLogs {
        &self.inner.known
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move { Ok(PostgresStore::ping(self).await?) })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move {
            let rest = self.sweep_rest().await;
            Ok(self.delete_removed().await.and(rest)?)
        })
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(log_digest(key), length))
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(list_digest(owner), 0))
    }
}

impl PostgresStore {
    async fn run_steps(&self, mut steps: Vec<Step>) -> Result<Vec<Reply>, PostgresError> {
        if steps.len() == 1
            && let Some(step) = steps.pop()
        {
            let step = Arc::new(step);
            return match self.run_in_batch(&step).await? {
                Some(reply) => Ok(vec![reply]),
                None => self.call_waiting(&[&step]).await,
            };
        }
        let mut replies = Vec::with_capacity(steps.len());
        for steps in steps.chunks(MAX_STEPS) {
            replies.extend(self.call_waiting(&steps.iter().collect::<Vec<_>>()).await?);
        }
        Ok(replies)
    }

    async fn call_waiting(&self, steps: &[&Step]) -> Result<Vec<Reply>, PostgresError> {
        let waits_for_locks = true;
        let replies = self.call(steps, waits_for_locks).await?;
        replies.into_iter().map(|reply| reply.ok_or(PostgresError::Unreadable("reply"))).collect()
    }

    /// Runs steps in one call. Returns `None` for those that were left out, because another transaction has locked what they
    /// change.
    pub(crate) async fn call(
        &self,
        steps: &[&Step],
        waits_for_locks: bool,
    ) -> Result<Vec<Option<Reply>>, PostgresError> {
        let is_write = steps.iter().any(|step| !step.writes.is_empty());
        let hints: Vec<Vec<_>> =
            steps.iter().map(|step| step.hints.iter().map(hint).collect()).collect();
        let locks = |step: &&Step| if is_write { locks(&self.inner.schema, step) } else { vec![] };
        let locks: Vec<_> = steps.iter().map(locks).collect();
        let call = Call::new(steps, &hints, &locks, waits_for_locks);
        let connection = self.connection().await?;
        let expected_time = self.inner.clock.expected_time();
        let mut values = call.values();
        if is_write {
            values.insert(1, (&expected_time, Type::INT8));
        } else {
            values.truncate(8);
        }
        let rows = self.query_on(connection, if is_write { RUN } else { READ }, &values).await?;
        let last = rows.last().ok_or(PostgresError::Unreadable("reply"))?;
        let told = column(last, 2)?;
        self.inner.clock.set(told);
        let replies = call.replies(steps, &rows, self.not_before(told))?;
        if column::<i16>(last, 3)? > 0 {
            self.delete_removed().await?;
        }
        Ok(replies)
    }

    /// Deletes the items of all rows that were deleted.
    async fn delete_removed(&self) -> Result<(), PostgresError> {
        for statement in [DELETE_ITEMS, FORGET_REMOVED] {
            self.delete_all(statement, MAX_DELETED).await?;
        }
        Ok(())
    }
}

/// The arrays of a call. A lock, a comparison, a write or a read is an operation: the number of its step, from 1, its code,
/// and its values.
#[derive(Default)]
struct Call<'s> {
    partitions: Vec<&'s [u8]>,
    steps: Vec<i32>,
    codes: Vec<i16>,
    names: Vec<&'s [u8]>,
    sequences: Vec<i16>,
    firsts: Vec<i64>,
    seconds: Vec<Option<i64>>,
    bodies: Vec<&'s [u8]>,
    item_kinds: Vec<i16>,
    items: Vec<&'s [u8]>,
    /// The number of the operation of the first read of each step.
    first_reads: Vec<i32>,
}

impl<'s> Call<'s> {
    fn new(
        steps: &[&'s Step],
        hints: &'s [Vec<(u64, String)>],
        locks: &[Vec<u64>],
        waits_for_locks: bool,
    ) -> Self {
        let mut call = Call::default();
        if waits_for_locks {
            let all: BTreeSet<_> = locks.iter().flatten().collect();
            all.into_iter().for_each(|lock| call.add(LOCK, "", 0, (*lock, None), &[]));
        }
        for ((step, hints), locks) in steps.iter().zip(hints).zip(locks) {
            call.partitions.push(step.partition.as_bytes());
            for lock in locks.iter().filter(|_| !waits_for_locks) {
                call.add(TRY_LOCK, "", 0, (*lock, None), &[]);
            }
            for (row, version) in &step.expected {
                call.add(COMPARE_VERSION, row, 0, (*version, None), &[]);
            }
            step.writes.iter().for_each(|write| call.compare(step, write));
            step.writes.iter().for_each(|write| call.write(write));
            for (length, hint) in hints.iter().filter(|_| !step.writes.is_empty()) {
                call.add(HINT, "", 0, (*length, None), hint.as_bytes());
            }
            call.first_reads.push(call.codes.len().try_into().map_or(i32::MAX, |it: i32| it + 1));
            step.reads.iter().for_each(|read| call.read(read));
        }
        call
    }

    /// Adds an operation of the last step.
    fn add(
        &mut self,
        code: i16,
        name: &'s str,
        sequence: Sequence,
        (first, second): (u64, Option<u64>),
        body: &'s [u8],
    ) {
        let numbers = (stored(first), second.map(stored));
        self.add_stored(code, name.as_bytes(), sequence, numbers, body);
    }

    fn add_stored(
        &mut self,
        code: i16,
        name: &'s [u8],
        sequence: Sequence,
        (first, second): (i64, Option<i64>),
        body: &'s [u8],
    ) {
        self.steps.push(self.partitions.len().try_into().unwrap_or(i32::MAX));
        self.codes.push(code);
        self.names.push(name);
        self.sequences.push(sequence.into());
        self.firsts.push(first);
        self.seconds.push(second);
        self.bodies.push(body);
    }

    fn compare(&mut self, step: &Step, write: &'s Write) {
        if let Write::Push { row, sequence, first, at, .. } = write
            && (at.is_some() || !step.puts(row))
        {
            self.add(COMPARE_END, row, *sequence, (*first, *at), &[]);
        }
    }

    fn write(&mut self, write: &'s Write) {
        match write {
            Write::Put(row, version, bytes) => self.add(PUT, row, 0, (*version, None), bytes),
            Write::Delete(row) => self.add(DELETE, row, 0, (0, None), &[]),
            Write::Push { row, sequence, first, at, items } => {
                let code = if at.is_some() { PUSH_AT } else { PUSH };
                let numbers = (at.unwrap_or(*first), Some(items.len() as u64));
                self.add(code, row, *sequence, numbers, &[]);
                self.item_kinds.extend(items.iter().map(|item| i16::from(item.kind)));
                self.items.extend(items.iter().map(|item| &item.bytes[..]));
            }
            Write::Keep { row, sequence, from, until } => {
                let until = Some(*until).filter(|until| *until < u64::MAX);
                self.add(KEEP, row, *sequence, (*from, until), &[]);
            }
            Write::Move { list, member, from, to } => {
                for (code, place) in [(LEAVE, from), (ENTER, to)] {
                    if let Some(place) = place {
                        self.add(code, member, 0, (*place, None), list.as_bytes());
                    }
                }
            }
        }
    }

    fn read(&mut self, read: &'s Read) {
        match read {
            Read::Row(row) => self.add(READ_ROW, row, 0, (0, None), &[]),
            Read::End(row, sequence) => self.add(READ_END, row, *sequence, (0, None), &[]),
            Read::Items { row, sequence, from, max_bytes, only_marked } => {
                let code = if *only_marked { READ_MARKED } else { READ_ITEMS };
                let max_bytes = Some(*max_bytes as u64).filter(|max| *max < u64::MAX);
                self.add(code, row, *sequence, (*from, max_bytes), &[]);
            }
            Read::Members { list, after, is_descending, limit } => {
                let code = if *is_descending { READ_LAST } else { READ_FIRST };
                let (place, member) = match after {
                    Some((at, member)) if *at <= i64::MAX as u64 => {
                        (stored(*at), member.as_bytes())
                    }
                    None if !is_descending => (-1, &[][..]),
                    // After all places: no member has this byte.
                    _ => (i64::MAX, &[0xff][..]),
                };
                let limit = Some(stored(*limit as u64));
                self.add_stored(code, member, 0, (place, limit), list.as_bytes());
            }
        }
    }

    fn values(&self) -> Vec<Value<'_>> {
        vec![
            (&self.partitions, Type::BYTEA_ARRAY),
            (&self.steps, Type::INT4_ARRAY),
            (&self.codes, Type::INT2_ARRAY),
            (&self.names, Type::BYTEA_ARRAY),
            (&self.sequences, Type::INT2_ARRAY),
            (&self.firsts, Type::INT8_ARRAY),
            (&self.seconds, Type::INT8_ARRAY),
            (&self.bodies, Type::BYTEA_ARRAY),
            (&self.item_kinds, Type::INT2_ARRAY),
            (&self.items, Type::BYTEA_ARRAY),
        ]
    }

    fn replies(
        &self,
        steps: &[&Step],
        rows: &[Row],
        now: UnixMillis,
    ) -> Result<Vec<Option<Reply>>, PostgresError> {
        let reply = |step: &&Step| {
            let found = step.reads.iter().map(|read| match read {
                Read::Row(_) => Found::Row(None),
                Read::End(..) => Found::End(None),
                Read::Items { .. } => Found::Items(Vec::new()),
                Read::Members { .. } => Found::Members(Vec::new()),
            });
            Some(Reply { now, is_applied: true, found: found.collect() })
        };
        let mut replies: Vec<_> = steps.iter().map(reply).collect();
        for row in rows {
            let [step, operation]: [i32; 2] = [column(row, 0)?, column(row, 1)?];
            let step = usize::try_from(step).unwrap_or(0).wrapping_sub(1);
            let of_step = replies.get_mut(step).zip(self.first_reads.get(step));
            let Some((reply, first)) = of_step else { continue };
            let read = usize::try_from(operation - first).ok();
            let found = reply.as_mut().zip(read).and_then(|(reply, at)| reply.found.get_mut(at));
            let bytes = || Ok(Bytes::copy_from_slice(column(row, 4)?));
            match found {
                Some(Found::Row(found)) => *found = Some((number(row, 2)?, bytes()?)),
                Some(Found::End(end)) => *end = Some(number(row, 2)?),
                Some(Found::Items(items)) => {
                    let kind = u8::try_from(column::<i16>(row, 3)?).unwrap_or(u8::MAX);
                    items.push((number(row, 2)?, Item { kind, bytes: bytes()? }));
                }
                Some(Found::Members(members)) => {
                    let member = String::from_utf8(column(row, 4)?);
                    let member = member.map_err(|_| PostgresError::Unreadable("member"))?;
                    members.push((number(row, 2)?, member));
                }
                None if column::<i16>(row, 3)? == LOCKED => *reply = None,
                None => reply.iter_mut().for_each(|reply| reply.is_applied = false),
            }
        }
        Ok(replies)
    }
}

/// The clock of Postgres, as this process knows it.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Option<(i64, Instant)>>);

impl Clock {
    fn set(&self, now: i64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// Returns a time that is not after the one of Postgres, unless its clock was set back, and less than a second before it,
    /// unless it was set forward. Postgres refuses what was decided by such a time if its clock was set.
    fn expected_time(&self) -> Option<i64> {
        let (now, since) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let passed = since.elapsed();
        // The clocks of two machines differ by less than a step in this time.
        let steps = i64::try_from(passed.as_millis() / CLOCK_STEP.as_millis()).ok()?;
        (passed < MAX_CLOCK_AGE).then(|| now + steps * CLOCK_STEP.as_millis() as i64)
    }
}

/// Returns a hint as it is sent: the length of the log, and what follows it.
fn hint(Hint { key, log, is_list }: &Hint) -> (u64, String) {
    let mut hint = format!(" {} {}", u8::from(log.is_none()), log_digest(key));
    if *is_list {
        hint.extend([" ", &list_digest(&key.owner)]);
    }
    (log.map_or(0, |(_, length)| length), hint)
}

/// Returns the locks that a step needs: that of its partition, or those of the members that it moves if it does nothing else,
/// so that lists of the chats of all users have no lock of their own.
fn locks(schema: &str, step: &Step) -> Vec<u64> {
    // Those that share a lock wait for each other.
    let lock = |names: &[&str]| {
        let begin = Sha256::new_with_prefix(schema);
        let digest = names.iter().fold(begin, |it, name| it.chain_update([0]).chain_update(name));
        digest.finalize().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes) >> 1)
    };
    let moved: Option<Vec<_>> = step
        .writes
        .iter()
        .map(|write| match write {
            Write::Move { list, member, .. } => Some(lock(&[&step.partition, list, member])),
            _ => None,
        })
        .collect();
    let moves_only = step.expected.is_empty() && step.reads.is_empty();
    moved.filter(|_| moves_only).unwrap_or_else(|| vec![lock(&[&step.partition])])
}

// The codes of operations, as run_steps and answers take them.
const LOCK: i16 = 0;
const TRY_LOCK: i16 = 1;
const COMPARE_VERSION: i16 = 2;
const COMPARE_END: i16 = 3;
const PUT: i16 = 4;
const DELETE: i16 = 5;
const PUSH_AT: i16 = 6;
const PUSH: i16 = 7;
const KEEP: i16 = 8;
const LEAVE: i16 = 9;
const ENTER: i16 = 10;
const HINT: i16 = 11;
const READ_ROW: i16 = 12;
const READ_END: i16 = 13;
const READ_ITEMS: i16 = 14;
const READ_MARKED: i16 = 15;
const READ_FIRST: i16 = 16;
const READ_LAST: i16 = 17;

/// The kind of an answer for a step that was left out.
const LOCKED: i16 = 2;

const RUN: &str = "SELECT * FROM SCHEMA.run_steps($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const READ: &str = "SELECT step, number::INT, answer.* \
    FROM unnest($2, $3, $4, $5, $6, $7, $8) WITH ORDINALITY \
        AS operation (step, code, name, sequence, first, second, body, number) \
    CROSS JOIN LATERAL SCHEMA.answers(code, $1[step], name, sequence, first, second, body) AS answer \
    UNION ALL SELECT 0, 0, SCHEMA.now_ms(), 0::SMALLINT, NULL";
/// The subqueries have limits, so that they use the index of the items, however many there are.
const DELETE_ITEMS: &str = "DELETE FROM SCHEMA.items WHERE ctid = ANY (ARRAY(SELECT item.ctid FROM SCHEMA.removed_rows \
        CROSS JOIN LATERAL (SELECT items.ctid FROM SCHEMA.items WHERE row_id = id LIMIT $1::BIGINT) AS item \
        LIMIT $1)) RETURNING row_id";
const FORGET_REMOVED: &str = "DELETE FROM SCHEMA.removed_rows WHERE id IN (SELECT id FROM SCHEMA.removed_rows \
        WHERE (SELECT 1 FROM SCHEMA.items WHERE row_id = id LIMIT 1) IS NULL \
        LIMIT $1::BIGINT FOR UPDATE SKIP LOCKED) RETURNING id";

/// How many items a transaction deletes at most.
const MAX_DELETED: i64 = 1000;

/// The precision of [`Clock`].
const CLOCK_STEP: Duration = Duration::from_millis(100);

/// A time that was read longer ago is not known any more.
const MAX_CLOCK_AGE: Duration = Duration::from_secs(60);
