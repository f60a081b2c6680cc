//! [`Rows`] of a [`RedisStore`]: a hash for each row, a list for each sequence of it, and a sorted set for each list of
//! members.
//!
//! A script runs steps of one slot: without slots, all steps of a run. Steps of several slots that only read are sent
//! together, and others one after the other. Items of more than 512 KiB are read in parts, between which Redis serves
//! others.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use futures_util::future::try_join_all;
use redis::{FromRedisValue, ToRedisArgs, Value};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream_chat::store::rows::{
    ENTRIES, Found, Hint, Item, KnownLogs, Read, Reply, Rows, Sequence, Step, Version, Write,
    row_of,
};
use ui_message_stream_chat::store::{ChatStoreError, Epoch, LogKey, StoredEntry};

use crate::RedisStore;
use crate::error::RedisStoreError;
use crate::hints::entries_in_hint;
use crate::keys::PartitionKeys;
use crate::scripts::{self, Arguments};

impl Rows for RedisStore {
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>> {
        Box::pin(async move { self.run_steps(&steps).await.map_err(ChatStoreError::new) })
    }

    fn now(&self) -> Option<UnixMillis> {
        self.inner.clock.now()
    }

    fn known(&self) -> &KnownLogs {
        &self.inner.known
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move { self.ping().await.map_err(ChatStoreError::new) })
    }

    fn list_partitions(&self) -> u64 {
        if self.inner.connection.is_single() { 1 } else { LIST_PARTITIONS }
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.follower.changed(self.channel_of(key), length))
    }

    fn hinted_entries(&self, key: &LogKey, epoch: Epoch, position: u64) -> Vec<StoredEntry> {
        self.inner.hints.entries(&self.channel_of(key), epoch, position)
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        // A message on this channel holds no length.
        Box::pin(self.inner.follower.changed(self.inner.keys.user(owner).channel_of_lists(), 0))
    }
}

impl RedisStore {
    /// Returns the channel of a log.
    fn channel_of(&self, key: &LogKey) -> String {
        self.inner.keys.user(&key.owner).channel(&row_of(&key.chat))
    }

    async fn run_steps(&self, steps: &[Step]) -> Result<Vec<Reply>, RedisStoreError> {
        let is_single = self.inner.connection.is_single();
        if let [step] = steps
            && (is_single && step.can_wait && !step.writes.is_empty())
        {
            let answer = self.run_with_others(self.arguments(step, usize::MAX)).await?;
            return Ok(self.reply(step, answer).await?.into_iter().collect());
        }
        let is_same = |one: &Step, next: &Step| is_single || one.partition == next.partition;
        let calls = steps.chunk_by(is_same).flat_map(|steps| steps.chunks(MAX_STEPS));
        if steps.iter().all(|step| step.writes.is_empty()) {
            let replies = try_join_all(calls.map(|steps| self.read(steps))).await?;
            return Ok(replies.into_iter().flatten().collect());
        }
        let mut replies = Vec::new();
        for steps in calls {
            let arguments = steps.iter().map(|step| self.arguments(step, usize::MAX));
            let answers = self.call_in_order(Calls::Run, arguments.collect()).await?;
            for (step, answer) in steps.iter().zip(answers) {
                replies.extend(self.reply(step, answer).await?);
            }
        }
        Ok(replies)
    }

    /// Runs steps that only read.
    async fn read(&self, steps: &[Step]) -> Result<Vec<Reply>, RedisStoreError> {
        let known: Vec<_> = steps.iter().map(|step| self.known_ends(step)).collect();
        let arguments = steps.iter().map(|step| self.arguments(step, MAX_PART_BYTES));
        let answers = self.call_in_order(Calls::Reads, arguments.collect()).await?;
        let mut replies = Vec::new();
        for ((step, known), answer) in steps.iter().zip(known).zip(answers) {
            let mut reply = self.reply(step, answer).await?;
            if reply.is_none() {
                // The row has changed while its items were read: they are read in one part.
                let whole = vec![self.arguments(step, usize::MAX)];
                for answer in self.call_in_order(Calls::Reads, whole).await? {
                    reply = self.reply(step, answer).await?;
                }
            }
            let reply = reply.ok_or(RedisStoreError::Unreadable("reply"))?;
            // If Redis has lost entries, a reader would not wait for those that Redis does not have.
            for (read, channel, known) in known {
                if matches!(reply.found.get(read), Some(Found::End(Some(end))) if *end < known) {
                    self.inner.hints.forget(&channel);
                }
            }
            replies.push(reply);
        }
        Ok(replies)
    }

    /// Returns the logs whose end a step reads: the number of the read, the channel, and how many entries are known.
    fn known_ends(&self, step: &Step) -> Vec<(usize, String, u64)> {
        let keys = self.inner.keys.partition(&step.partition);
        let ends = step.reads.iter().enumerate().filter_map(|(number, read)| match read {
            Read::End(row, ENTRIES) => Some((number, keys.channel(row))),
            _ => None,
        });
        let known = ends.map(|(number, channel)| {
            let known = self.inner.hints.known(&channel);
            (number, channel, known)
        });
        known.collect()
    }

    /// Calls the script for steps of one slot. Returns the answer to each that was run.
    pub(crate) async fn call(
        &self,
        calls: Calls,
        steps: Vec<Arguments>,
    ) -> Result<Vec<Result<Answer, RedisStoreError>>, RedisStoreError> {
        // By which time the steps were decided.
        let noted =
            self.now().filter(|_| calls != Calls::Reads && self.inner.connection.is_single());
        let mut arguments = vec![Arguments::default()];
        arguments[0].arg(u8::from(calls != Calls::Batch)).arg(noted.unwrap_or_default().0);
        arguments.extend(steps);
        let is_of_shards = self.inner.follower.is_of_shards();
        let script = scripts::steps(calls == Calls::Reads, is_of_shards).with(arguments);
        let answers = self.inner.connection.run(&script).await?;
        let (seconds, micros, answers): (u64, u64, Vec<(i8, Vec<Value>)>) = answers;
        let now = UnixMillis(seconds * 1000 + micros / 1000);
        self.inner.clock.note(now);
        let answer = |(result, found)| match result {
            0 | 1 => Ok(Answer { now, is_applied: result == 1, found }),
            _ => Err(RedisStoreError::wrong_type()),
        };
        Ok(answers.into_iter().map(answer).collect())
    }

    /// Returns the answers to all steps, or the error of the first one that failed.
    async fn call_in_order(
        &self,
        calls: Calls,
        steps: Vec<Arguments>,
    ) -> Result<Vec<Answer>, RedisStoreError> {
        self.call(calls, steps).await?.into_iter().collect()
    }

    /// Reads the answer to a step, and what is missing of its items, and wakes the readers of what it has changed.
    /// Returns `None` if the row of the items has changed since.
    async fn reply(&self, step: &Step, answer: Answer) -> Result<Option<Reply>, RedisStoreError> {
        let Answer { now, is_applied, found: answers } = answer;
        let mut found = VecDeque::new();
        for (read, answer) in step.reads.iter().zip(answers) {
            found.push_back(match read {
                Read::Row(_) => {
                    let row: Option<(Version, Vec<u8>)> = parsed(answer)?;
                    Found::Row(row.map(|(version, bytes)| (version, bytes.into())))
                }
                Read::End(..) => Found::End(parsed(answer)?),
                Read::Items { row, sequence, max_bytes, only_marked, .. } => {
                    let (mut items, mut bytes, mut part) = (Vec::new(), 0, answer);
                    // Items are read until there are no more, or as many bytes as there may be.
                    while let Some((version, from)) = add(&mut items, &mut bytes, part, *max_bytes)?
                    {
                        let (row, sequence, max_bytes) = (row.clone(), *sequence, *max_bytes);
                        let rest = Step {
                            partition: step.partition.clone(),
                            expected: vec![(row.clone(), version)],
                            reads: vec![Read::Items {
                                row,
                                sequence,
                                from,
                                max_bytes: max_bytes.saturating_sub(bytes),
                                only_marked: *only_marked,
                            }],
                            ..Step::default()
                        };
                        let arguments = vec![self.arguments(&rest, MAX_PART_BYTES)];
                        let rest = self.call_in_order(Calls::Reads, arguments).await?.pop();
                        let mut rest = rest.ok_or(RedisStoreError::Unreadable("reply"))?;
                        if !rest.is_applied {
                            return Ok(None);
                        }
                        part = rest.found.pop().ok_or(RedisStoreError::Unreadable("reply"))?;
                    }
                    Found::Items(items)
                }
                Read::Members { .. } => {
                    let members: Vec<Vec<u8>> = parsed(answer)?;
                    Found::Members(members.into_iter().map(member).collect::<Result<_, _>>()?)
                }
            });
        }
        if is_applied {
            step.hints.iter().for_each(|hint| self.wake(step, hint));
        }
        Ok(Some(Reply { now, is_applied, found }))
    }

    /// Wakes the readers of this process.
    fn wake(&self, step: &Step, hint: &Hint) {
        let keys = self.inner.keys.partition(&step.partition);
        let channel = keys.channel(&row_of(&hint.key.chat));
        if hint.log.is_none() || is_of_new_log(step, hint) {
            self.inner.hints.forget(&channel);
        }
        if let Some((_, length)) = hint.log {
            self.inner.hints.add(&channel, length);
        }
        if hint.is_list {
            self.inner.hints.forget(&keys.channel_of_lists());
        }
    }

    /// Returns a step as the script reads it, which looks at items of so many bytes.
    fn arguments(&self, step: &Step, max_part: usize) -> Arguments {
        let keys = self.inner.keys.partition(&step.partition);
        let mut call = Call { keys, numbers: HashMap::new(), arguments: Arguments::default() };
        call.comparisons(step);
        let is_of_shards = self.inner.follower.is_of_shards();
        call.writes(step, is_of_shards || self.inner.connection.is_single());
        step.reads.iter().for_each(|read| call.read(read, max_part));
        let Call { numbers, mut arguments, .. } = call;
        let count = [arguments.args.len(), numbers.len()].map(|count| count.to_string().into());
        arguments.args.splice(0..0, count);
        arguments
    }
}

/// What steps of a call are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Those of a run that only reads.
    Reads,
    /// Those of a run: none follows one that fails.
    Run,
    /// Each of another run.
    Batch,
}

/// The answer of the script to a step.
pub(crate) struct Answer {
    now: UnixMillis,
    is_applied: bool,
    found: Vec<Value>,
}

/// A step that becomes the arguments of the script.
struct Call {
    keys: PartitionKeys,
    numbers: HashMap<String, usize>,
    arguments: Arguments,
}

impl Call {
    fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.arguments.arg(arg);
        self
    }

    fn key(&mut self, key: String) -> &mut Self {
        let next = self.numbers.len() + 1;
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                self.arguments.key(&key);
                self.numbers.insert(key, next);
                next
            }
        };
        self.arg(number)
    }

    fn row(&mut self, row: &str) -> &mut Self {
        self.key(self.keys.row(row))
    }

    fn sequence(&mut self, row: &str, sequence: Sequence) -> &mut Self {
        let list = self.keys.sequence(row, sequence);
        self.row(row).arg(sequence).key(list)
    }

    fn comparisons(&mut self, step: &Step) {
        let count = self.arguments.args.len();
        let mut comparisons = step.expected.len();
        for (row, version) in &step.expected {
            self.arg("is").row(row).arg(version);
        }
        for write in &step.writes {
            if let Write::Push { row, sequence, first, at, .. } = write
                && (at.is_some() || !step.puts(row))
            {
                let at = at.map(|at| at.to_string()).unwrap_or_default();
                self.arg("ends").sequence(row, *sequence).arg(first).arg(at);
                comparisons += 1;
            }
        }
        self.arguments.args.insert(count, comparisons.to_string().into());
    }

    fn writes(&mut self, step: &Step, are_items_hinted: bool) {
        let begin = self.arguments.args.len();
        let mut pushed = None;
        let mut writes: Vec<&Write> = step.writes.iter().collect();
        // If Redis is without memory, it refuses the first write that needs some, unless one that needs none is before
        // it. So a step that adds something fails as a whole, and one that removes something does not.
        let adds = writes.iter().any(|write| matches!(write, Write::Push { .. }));
        writes.sort_by_key(|write| match write {
            Write::Put(..) => !adds,
            Write::Delete(_) | Write::Keep { .. } => adds,
            _ => true,
        });
        for write in writes {
            match write {
                Write::Put(row, version, bytes) => {
                    self.arg("put").row(row).arg(version).arg(&bytes[..]);
                }
                Write::Delete(row) => {
                    self.arg("delete").row(row);
                    for sequence in SEQUENCES {
                        self.key(self.keys.sequence(row, sequence));
                    }
                }
                Write::Push { row, sequence, first, items, .. } => {
                    self.arg("push").sequence(row, *sequence).arg(first).arg(items.len());
                    let items: Vec<_> = items.iter().map(stored).collect();
                    self.arguments.args.extend_from_slice(&items);
                    pushed = Some(items).filter(|items| !items.is_empty());
                }
                Write::Keep { row, sequence, from, until } => {
                    self.arg("keep").sequence(row, *sequence).arg(from).arg(until);
                }
                Write::Move { list, member, from, to } => {
                    let from = from.filter(|from| Some(*from) != *to);
                    for (change, at) in [("enter", *to), ("leave", from)] {
                        if let Some(at) = at {
                            let list = self.keys.list(list);
                            self.arg(change).key(list).arg(place(at, member));
                        }
                    }
                }
            }
        }
        for hint in &step.hints {
            let channel = self.keys.channel(&row_of(&hint.key.chat));
            match hint.log {
                None => drop(self.arg("tell").arg(&channel).arg("deleted")),
                Some(_) if is_of_new_log(step, hint) => {
                    self.arg("tell").arg(&channel).arg("created");
                }
                Some(_) => {}
            }
            if let (Some((epoch, _)), Some(items)) = (hint.log, &pushed) {
                // A command `PUBLISH` in a cluster reaches all nodes, so it carries no entries.
                let said = Some(items).filter(|_| are_items_hinted);
                let said = said.map_or_else(String::new, |items| entries_in_hint(epoch, items));
                self.arg("tell_pushed").arg(channel).arg(said);
            }
            if hint.is_list {
                let channel = self.keys.channel_of_lists();
                self.arg("tell").arg(channel).arg("changed");
            }
        }
        let count = self.arguments.args.len() - begin;
        self.arguments.args.insert(begin, count.to_string().into());
    }

    fn read(&mut self, read: &Read, max_part: usize) {
        match read {
            Read::Row(row) => drop(self.arg("row").row(row)),
            Read::End(row, sequence) => drop(self.arg("ending").sequence(row, *sequence)),
            Read::Items { row, sequence, from, max_bytes, only_marked } => {
                self.arg("items").sequence(row, *sequence).arg(from);
                self.arg(*max_bytes).arg(max_part).arg(u8::from(*only_marked));
            }
            Read::Members { list, after, is_descending, limit } => {
                let (command, first, last) = match is_descending {
                    true => ("ZREVRANGEBYLEX", "+", "-"),
                    false => ("ZRANGEBYLEX", "-", "+"),
                };
                let after = after.as_ref().map(|(at, after)| [b"(", &*place(*at, after)].concat());
                let list = self.keys.list(list);
                self.arg("members").arg(command).key(list);
                self.arg(after.unwrap_or_else(|| first.into())).arg(last);
                self.arg(i64::try_from(*limit).unwrap_or(i64::MAX));
            }
        }
    }
}

/// Whether the step creates the log.
fn is_of_new_log(step: &Step, hint: &Hint) -> bool {
    let row = row_of(&hint.key.chat);
    hint.log.is_some() && step.expected.iter().any(|(name, version)| *name == row && *version == 0)
}

/// Returns a member as it is stored: its bytes follow its place.
fn place(at: u64, member: &str) -> Vec<u8> {
    [&at.to_be_bytes(), member.as_bytes()].concat()
}

fn member(mut stored: Vec<u8>) -> Result<(u64, String), RedisStoreError> {
    let unreadable = || RedisStoreError::Unreadable("list");
    let at = *stored.first_chunk().ok_or_else(unreadable)?;
    let member = String::from_utf8(stored.split_off(8)).map_err(|_| unreadable())?;
    Ok((u64::from_be_bytes(at), member))
}

/// Returns an item as it is stored: its bytes follow the digit of its kind.
fn stored(item: &Item) -> Vec<u8> {
    [&[b'0' + item.kind], &item.bytes[..]].concat()
}

fn item(stored: Vec<u8>) -> Result<Item, RedisStoreError> {
    let mut bytes = Bytes::from(stored);
    let kind = bytes.first().and_then(|kind| kind.checked_sub(b'0'));
    let kind = kind.ok_or(RedisStoreError::Unreadable("item"))?;
    Ok(Item { kind, bytes: bytes.split_off(1) })
}

/// Adds the items of a part to those before it, and their bytes. Returns the version of the row and where the next part
/// begins, if there may be one.
fn add(
    items: &mut Vec<(u64, Item)>,
    bytes: &mut usize,
    part: Value,
    max_bytes: usize,
) -> Result<Option<(Version, u64)>, RedisStoreError> {
    type Part = (Option<Version>, Option<u64>, Vec<Vec<u8>>, Vec<u64>);
    let (version, next, stored, positions): Part = parsed(part)?;
    for (position, stored) in positions.into_iter().zip(stored) {
        let item = item(stored)?;
        *bytes = bytes.saturating_add(item.bytes.len());
        if *bytes > max_bytes && !items.is_empty() {
            return Ok(None);
        }
        items.push((position, item));
    }
    Ok(version.zip(next))
}

fn parsed<T: FromRedisValue>(value: Value) -> Result<T, RedisStoreError> {
    T::from_redis_value(value).map_err(|_| RedisStoreError::Unreadable("reply"))
}

/// The sequences of a row that the script knows.
const SEQUENCES: [Sequence; 4] = [0, 1, 2, 3];

/// The maximum number of steps in a call, for which all others wait: about a millisecond.
pub(crate) const MAX_STEPS: usize = 64;

/// The maximum number of bytes of a part.
const MAX_PART_BYTES: usize = 512 << 10;

/// In Redis Cluster, over how many slots each list of the chats of all users is spread.
const LIST_PARTITIONS: u64 = 16;
