//! [`RunStore`] of a [`RedisStore`]: a hash with the states of a user's runs, and a list for each
//! log.

use std::time::Duration;

use bytes::Bytes;
use ui_message_stream::BoxFuture;
use ui_message_stream::chat::log::{
    AppendEntries, AppendRefusal, AppendResult, BeginResult, BeginRun, Fence, HolderStatus,
    LogEntry, LogPage, ReadLog, RunKey, RunState, TakeCondition, TakeRefusal, TakeResult, TakeRun,
};
use ui_message_stream::chat::store::{RunStore, RunStoreError};

use crate::chats::millis;
use crate::error::RedisStoreError;
use crate::hints::Progress;
use crate::keys::run_field;
use crate::scripts::Invocation;
use crate::{RedisStore, scripts};

impl RunStore for RedisStore {
    fn begin<'a>(
        &'a self,
        begin: BeginRun<'a>,
    ) -> BoxFuture<'a, Result<BeginResult, RunStoreError>> {
        Box::pin(async move {
            let run = self.run_keys(begin.key);
            let mut invocation = run.prepare(&scripts::RUN_BEGIN);
            invocation
                .arg(begin.holder.to_string())
                .arg(millis(begin.lease))
                .arg(begin.max_user_runs);
            let begun: String = self.run_script(&invocation).await?;
            // A reader may have looked for the run before it began.
            self.inner.hints.forget(&run.channel);
            match &*begun {
                "begun" => Ok(BeginResult::Begun(Fence(1))),
                "exists" => Ok(BeginResult::Exists),
                "too many" => Ok(BeginResult::TooManyRuns),
                _ => Err(unreadable()),
            }
        })
    }

    fn append<'a>(
        &'a self,
        append: AppendEntries<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, RunStoreError>> {
        Box::pin(async move {
            let run = self.run_keys(append.key);
            let AppendEntries { fence, position, entries, end, .. } = append;
            let mut invocation = run.prepare(&scripts::RUN_APPEND);
            invocation.arg(&run.channel).arg(fence.0).arg(position).arg(u8::from(end));
            for entry in entries {
                invocation.arg(stored_entry(entry));
            }
            let (result, unread, has_to_end): (String, u64, bool) =
                self.run_script(&invocation).await?;
            Ok(match &*result {
                "appended" => {
                    let length = position.saturating_add(entries.len() as u64);
                    let progress = Progress { length, fence: fence.0, is_over: end };
                    self.inner.hints.add(&run.channel, progress);
                    let unread = Duration::from_millis(unread);
                    AppendResult::Appended(HolderStatus { unread, has_to_end })
                }
                "taken" => AppendResult::Refused(AppendRefusal::Taken),
                "ended" => AppendResult::Refused(AppendRefusal::Ended),
                "gap" => AppendResult::Refused(AppendRefusal::Gap),
                "not found" => AppendResult::Refused(AppendRefusal::NotFound),
                _ => return Err(unreadable()),
            })
        })
    }

    fn read<'a>(
        &'a self,
        read: ReadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, RunStoreError>> {
        Box::pin(async move {
            let run = self.run_keys(read.key);
            let mut page = PartialPage::new(read.max_bytes);
            let known = self.inner.hints.known(&run.channel);
            // Redis serves others between two parts of a long page. What was read does not change.
            loop {
                let after = read.after.saturating_add(page.entries.len() as u64);
                let max_bytes = page.missing_bytes().min(MAX_PART_BYTES);
                let mut invocation = run.prepare(&scripts::RUN_READ);
                invocation.arg(after).arg(max_bytes).arg(u8::from(read.is_reader));
                let part: Option<(String, u64, u64, Vec<Vec<u8>>)> =
                    self.run_script(&invocation).await?;
                let Some((state, fence, length, entries)) = part else { return Ok(None) };
                let is_full = page.add(entries, max_bytes)?;
                let next = read.after.saturating_add(page.entries.len() as u64);
                if is_full || next >= length {
                    let (entries, fence, state) = (page.entries, Fence(fence), run_state(&state)?);
                    // Redis has lost entries. With what was known before, a reader would not wait
                    // for entries that Redis does not have.
                    if known.length > length || known.is_over && state != RunState::Ended {
                        self.inner.hints.forget(&run.channel);
                    }
                    return Ok(Some(LogPage { entries, length, fence, state }));
                }
            }
        })
    }

    fn take<'a>(&'a self, take: TakeRun<'a>) -> BoxFuture<'a, Result<TakeResult, RunStoreError>> {
        Box::pin(async move {
            let run = self.run_keys(take.key);
            let mut invocation = run.prepare(&scripts::RUN_TAKE);
            invocation
                .arg(&run.channel)
                .arg(take.fence.0)
                .arg(take.holder.to_string())
                .arg(u8::from(take.condition == TakeCondition::LeasePassed))
                .arg(millis(take.lease));
            let (result, fence): (String, u64) = self.run_script(&invocation).await?;
            Ok(match &*result {
                "taken" => {
                    let progress = Progress { fence, ..Progress::default() };
                    self.inner.hints.add(&run.channel, progress);
                    TakeResult::Taken(Fence(fence))
                }
                "other fence" => TakeResult::Refused(TakeRefusal::OtherFence(Fence(fence))),
                "leased" => TakeResult::Refused(TakeRefusal::LeaseRenewed),
                "ended" => TakeResult::Refused(TakeRefusal::Ended),
                "not found" => TakeResult::Refused(TakeRefusal::NotFound),
                _ => return Err(unreadable()),
            })
        })
    }

    fn changed<'a>(&'a self, key: &'a RunKey, after: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.follower.changed(self.run_keys(key).channel, after))
    }
}

impl RedisStore {
    fn run_keys(&self, key: &RunKey) -> RunKeys {
        let (keys, field) = (self.inner.keys.user(&key.owner), run_field(key));
        let (log, channel) = (keys.log(&field), keys.channel(&field));
        RunKeys { runs: keys.runs(), removals: keys.removals(), log, channel, field }
    }

    async fn run_script<T: redis::FromRedisValue + Send>(
        &self,
        script: &Invocation<'_>,
    ) -> Result<T, RunStoreError> {
        self.inner.connection.run(script).await.map_err(RunStoreError::new)
    }
}

/// The names of what belongs to a run.
struct RunKeys {
    /// The states of all runs of the user.
    runs: String,
    /// The list of these runs by the time of their removal.
    removals: String,
    /// The state of the run among them.
    field: String,
    log: String,
    channel: String,
}

impl RunKeys {
    /// Prepares a script with the keys and the argument that all scripts of runs have.
    fn prepare<'s>(&self, script: &'s scripts::Script) -> Invocation<'s> {
        let mut invocation = script.prepare_invoke();
        invocation.key(&self.runs).key(&self.log).key(&self.removals).arg(&self.field);
        invocation
    }
}

/// The entries of a page that are read so far.
struct PartialPage {
    entries: Vec<LogEntry>,
    /// The bytes of the entries. An empty entry counts as one byte.
    bytes: usize,
    max_bytes: usize,
}

impl PartialPage {
    fn new(max_bytes: usize) -> Self {
        PartialPage { entries: Vec::new(), bytes: 0, max_bytes }
    }

    fn missing_bytes(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes)
    }

    /// Adds a part, which was read with this limit. Returns whether the page is full.
    fn add(&mut self, part: Vec<Vec<u8>>, max_bytes: usize) -> Result<bool, RunStoreError> {
        for stored in part {
            let entry = read_entry(stored)?;
            let bytes = self.bytes.saturating_add(entry.bytes().len().max(1));
            // A part has at least one entry, and a page, too.
            if bytes > self.max_bytes && !self.entries.is_empty() {
                return Ok(true);
            }
            self.bytes = bytes;
            self.entries.push(entry);
        }
        // A part that has the limit of the page holds all that fits into the page.
        Ok(self.missing_bytes() == 0 || max_bytes < MAX_PART_BYTES)
    }
}

/// Returns an entry as it is stored: its kind, and its bytes.
fn stored_entry(entry: &LogEntry) -> Vec<u8> {
    let kind = match entry {
        LogEntry::Frame(_) => FRAME,
        LogEntry::Note(_) => NOTE,
    };
    let mut stored = Vec::with_capacity(1 + entry.bytes().len());
    stored.push(kind);
    stored.extend_from_slice(entry.bytes());
    stored
}

fn read_entry(stored: Vec<u8>) -> Result<LogEntry, RunStoreError> {
    let mut bytes = Bytes::from(stored);
    match bytes.first() {
        Some(&FRAME) => Ok(LogEntry::Frame(bytes.split_off(1))),
        Some(&NOTE) => Ok(LogEntry::Note(bytes.split_off(1))),
        _ => Err(unreadable()),
    }
}

fn run_state(name: &str) -> Result<RunState, RunStoreError> {
    match name {
        "leased" => Ok(RunState::Leased),
        "lapsed" => Ok(RunState::LeasePassed),
        "ended" => Ok(RunState::Ended),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> RunStoreError {
    RunStoreError::new(RedisStoreError::Unreadable("run"))
}

const FRAME: u8 = b'F';
const NOTE: u8 = b'N';

/// The maximum number of bytes of a part of a page.
const MAX_PART_BYTES: usize = 512 << 10;
