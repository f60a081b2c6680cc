//! [`Log`]: the log of a case, and the requests that the cases make.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::report::{CaseFailure, CaseResult, expect_equal, new_owner};
use crate::store::{
    AppendLog, AppendResult, ChatSummary, EntryKind, Epoch, Expected, ListChats, ListedChat,
    LiveRunChange, LoadLog, LoadedLog, LogHead, LogKey, LogPage, LogStore, PutSnapshot,
    ReadLogEntries, ReadMessages, StoredEntry, Unchanged, UserLimits,
};
use ui_message_stream::approval::Principal;
use ui_message_stream::id::{ChatId, RunId};

pub(super) type Store = Arc<dyn LogStore>;

/// A log and its store.
#[derive(Clone)]
pub(super) struct Log {
    pub(super) store: Store,
    pub(super) key: LogKey,
    pub(super) epoch: Epoch,
}

/// An append, owned.
#[derive(Clone)]
pub(super) struct Append {
    pub(super) expected: Expected,
    pub(super) entries: Vec<StoredEntry>,
    pub(super) lease: Option<Duration>,
    pub(super) only_lost: bool,
    pub(super) run: Run,
    pub(super) listed: Option<(&'static str, bool)>,
    pub(super) keep_for: Option<Duration>,
    pub(super) limits: UserLimits,
    pub(super) is_for_sink: bool,
}

#[derive(Clone)]
pub(super) enum Run {
    Unchanged,
    Begins(RunId),
    Resumes(RunId),
    Ends,
}

impl Append {
    pub(super) fn new(expected: Expected, entries: &[StoredEntry]) -> Self {
        Append {
            expected,
            entries: entries.to_vec(),
            lease: None,
            only_lost: false,
            run: Run::Unchanged,
            listed: None,
            keep_for: None,
            limits: NO_LIMITS,
            is_for_sink: false,
        }
    }

    pub(super) fn beginning(self, run: &str, lease: Duration) -> Self {
        Append { run: Run::Begins(run.into()), lease: Some(lease), ..self }
    }

    pub(super) fn resuming(self, run: &str, lease: Duration) -> Self {
        Append { run: Run::Resumes(run.into()), lease: Some(lease), ..self }
    }

    pub(super) fn for_sink(self) -> Self {
        Append { is_for_sink: true, ..self }
    }

    pub(super) fn ending(self) -> Self {
        Append { run: Run::Ends, ..self }
    }
}

impl Log {
    /// Returns the log that a chat of a new owner may get.
    pub(super) fn none(store: Store) -> Self {
        Self::of(store, new_owner(), "chat")
    }

    pub(super) fn of(store: Store, owner: Principal, chat: &str) -> Self {
        Log { store, key: LogKey { owner, chat: ChatId::from(chat) }, epoch: Epoch(7) }
    }

    /// Creates a log with one control entry, of a new owner.
    pub(super) async fn created(store: Store) -> Result<Self, CaseFailure> {
        let log = Log::none(store);
        log.appended(log.create(&[control("created")])).await?;
        Ok(log)
    }

    /// Creates a log whose first entry begins a run.
    pub(super) async fn with_run(store: Store, lease: Duration) -> Result<Self, CaseFailure> {
        let log = Log::none(store);
        log.appended(log.create(&[control("begin")]).beginning("run", lease)).await?;
        Ok(log)
    }

    /// Returns the log of another chat of the same owner.
    pub(super) fn other(&self, chat: &str) -> Self {
        Self::of(Arc::clone(&self.store), self.key.owner.clone(), chat)
    }

    pub(super) fn create(&self, entries: &[StoredEntry]) -> Append {
        Append::new(Expected::NoLog(self.epoch), entries)
    }

    /// An append that compares the position.
    pub(super) fn at(&self, position: u64, entries: &[StoredEntry]) -> Append {
        Append::new(Expected::Position { epoch: self.epoch, position }, entries)
    }

    /// An append that compares the number of control entries.
    pub(super) fn after_control(&self, control: u64, entries: &[StoredEntry]) -> Append {
        Append::new(Expected::Control { epoch: self.epoch, control }, entries)
    }

    pub(super) async fn append(&self, append: Append) -> Result<AppendResult, CaseFailure> {
        let append = AppendLog {
            key: &self.key,
            expected: append.expected,
            entries: &append.entries,
            lease: append.lease,
            only_lost: append.only_lost,
            live_run: match &append.run {
                Run::Unchanged => LiveRunChange::None,
                Run::Begins(run) => LiveRunChange::Begins(run),
                Run::Resumes(run) => LiveRunChange::Resumes(run),
                Run::Ends => LiveRunChange::Ends,
            },
            listed: append.listed.map(|(title, has_questions)| ListedChat { title, has_questions }),
            keep_for: append.keep_for,
            limits: append.limits,
            is_for_sink: append.is_for_sink,
        };
        Ok(self.store.append(append).await?)
    }

    /// Fails unless the append is accepted. Returns the head.
    pub(super) async fn appended(&self, append: Append) -> Result<LogHead, CaseFailure> {
        match self.append(append).await? {
            AppendResult::Appended { head, .. } => Ok(head),
            refused => Err(CaseFailure(format!("the append is {refused:?}"))),
        }
    }

    pub(super) async fn expect_conflict(&self, append: Append) -> CaseResult {
        expect_equal("the append", self.append(append).await?, AppendResult::Conflict)
    }

    pub(super) async fn load(&self) -> Result<Option<LoadedLog>, CaseFailure> {
        let load = LoadLog { key: &self.key, has_frames: true, has_messages: true };
        Ok(self.store.load(load).await?)
    }

    pub(super) async fn loaded(&self) -> Result<LoadedLog, CaseFailure> {
        self.load().await?.ok_or_else(|| CaseFailure("there is no log".to_owned()))
    }

    /// Compares the entries that a load returns.
    pub(super) async fn expect_entries(&self, expected: &[StoredEntry]) -> CaseResult {
        let entries = self.loaded().await?.entries.into_iter().map(|(_, entry)| entry);
        expect_equal("the log", entries.collect::<Vec<_>>(), expected.to_vec())
    }

    pub(super) async fn expect_none(&self) -> CaseResult {
        expect_equal("the load", self.load().await?.map(|log| log.head.length), None)
    }

    pub(super) async fn read(
        &self,
        position: u64,
        max_bytes: usize,
    ) -> Result<Option<LogPage>, CaseFailure> {
        self.read_as(position, max_bytes, false).await
    }

    pub(super) async fn read_as(
        &self,
        position: u64,
        max_bytes: usize,
        is_reader: bool,
    ) -> Result<Option<LogPage>, CaseFailure> {
        let key = &self.key;
        let epoch = self.epoch;
        let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader };
        Ok(self.store.read(read).await?)
    }

    pub(super) async fn put(
        &self,
        position: u64,
        unchanged: Option<Unchanged>,
        changed: &[&str],
    ) -> Result<bool, CaseFailure> {
        let changed: Vec<String> = changed.iter().map(|&message| message.to_owned()).collect();
        let key = &self.key;
        let epoch = self.epoch;
        let head = "{\"n\":1}";
        let changed = &*changed;
        let put = PutSnapshot { key, epoch, position, head, unchanged, changed };
        Ok(self.store.put_snapshot(put).await?)
    }

    pub(super) async fn messages(
        &self,
        position: u64,
        first: usize,
        max_bytes: usize,
    ) -> Result<Option<Vec<String>>, CaseFailure> {
        let key = &self.key;
        let epoch = self.epoch;
        Ok(self.store.messages(ReadMessages { key, epoch, position, first, max_bytes }).await?)
    }

    pub(super) async fn delete(&self, control: u64) -> Result<bool, CaseFailure> {
        Ok(self.store.delete(&self.key, self.epoch, control).await?)
    }

    /// Lists all chats of the owner, in pages of two.
    pub(super) async fn list(&self, search: Option<&str>) -> Result<Vec<ChatSummary>, CaseFailure> {
        let mut chats = Vec::new();
        let mut after = None;
        loop {
            let list = ListChats { limit: 2, after: after.as_ref(), search };
            let page = self.store.list(&self.key.owner, list).await?;
            expect_equal("the length of a page", page.chats.len() <= 2, true)?;
            chats.extend(page.chats);
            after = page.next;
            if after.is_none() {
                return Ok(chats);
            }
        }
    }

    /// Compares the ids of the listed chats.
    pub(super) async fn expect_listed(&self, search: Option<&str>, ids: &[&str]) -> CaseResult {
        let chats = self.list(search).await?.into_iter().map(|chat| chat.id.to_string());
        let ids: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
        expect_equal("the list", chats.collect::<Vec<_>>(), ids)
    }

    /// Waits until the lease of the live run has passed.
    pub(super) async fn wait_until_lost(&self) -> CaseResult {
        while !self.loaded().await?.head.is_lost {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until there is no log.
    pub(super) async fn wait_until_gone(&self) -> CaseResult {
        while self.load().await?.is_some() {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

pub(super) fn frame(text: &str) -> StoredEntry {
    entry(EntryKind::Frame, text)
}

pub(super) fn note(text: &str) -> StoredEntry {
    entry(EntryKind::Note, text)
}

pub(super) fn control(text: &str) -> StoredEntry {
    entry(EntryKind::Control, text)
}

fn entry(kind: EntryKind, text: &str) -> StoredEntry {
    StoredEntry { kind, bytes: text.to_owned().into() }
}

/// A time that does not pass during a case.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// A time that passes during a case.
pub(super) const SHORT: Duration = Duration::from_millis(150);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

const NO_LIMITS: UserLimits = UserLimits { chats: 1000, runs: 1000, unread: LONG };
