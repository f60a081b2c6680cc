//! [`LogDouble`]: a store of logs in front of another one, which a test lets fail, wait or count.

use std::ops::Deref;
use std::time::Duration;

use ui_message_stream::BoxFuture;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatPage, Epoch, LeftToServer, ListChats, LoadLog, LoadedLog, LogKey,
    LogPage, LogStore, PutSnapshot, ReadLogEntries, ReadMessages, StoredEntry, Undelivered,
};

/// What a store returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, ChatStoreError>>;

/// What a store does differently from the store behind it.
pub trait Intercepts: Send + Sync + std::fmt::Debug + 'static {
    /// The store behind it.
    fn store(&self) -> &dyn LogStore;

    /// Loads a log.
    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        self.store().load(load)
    }

    /// Reads entries.
    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        self.store().read(read)
    }

    /// Appends entries.
    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        self.store().append(append)
    }

    /// Stores a snapshot.
    fn put_snapshot<'a>(&'a self, put: PutSnapshot<'a>) -> Answer<'a, bool> {
        self.store().put_snapshot(put)
    }

    /// Deletes a log.
    fn delete<'a>(&'a self, key: &'a LogKey, epoch: Epoch, control: u64) -> Answer<'a, bool> {
        self.store().delete(key, epoch, control)
    }

    /// Removes what is kept no longer.
    fn sweep(&self) -> Answer<'_, LeftToServer> {
        self.store().sweep()
    }

    /// Reads what a sink has not got.
    fn undelivered(&self, limit: usize, retry_after: Duration) -> Answer<'_, Vec<Undelivered>> {
        self.store().undelivered(limit, retry_after)
    }

    /// Takes what a sink has got.
    fn acknowledge<'a>(&'a self, delivered: &'a Undelivered) -> Answer<'a, Option<Undelivered>> {
        self.store().acknowledge(delivered)
    }

    /// Lists the chats of an owner.
    fn list<'a>(&'a self, owner: &'a Principal, list: ListChats<'a>) -> Answer<'a, ChatPage> {
        self.store().list(owner, list)
    }

    /// Waits for a change.
    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        self.store().changed(key, length)
    }

    /// Waits for a change of the list of an owner.
    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        self.store().changed_list(owner)
    }
}

/// The store that a server uses.
#[derive(Debug, Default)]
pub struct LogDouble<T>(pub T);

impl<T> Deref for LogDouble<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Intercepts> LogStore for LogDouble<T> {
    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        self.0.load(load)
    }

    fn messages<'a>(&'a self, read: ReadMessages<'a>) -> Answer<'a, Option<Vec<String>>> {
        self.store().messages(read)
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        self.0.read(read)
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        self.0.append(append)
    }

    fn put_snapshot<'a>(&'a self, put: PutSnapshot<'a>) -> Answer<'a, bool> {
        self.0.put_snapshot(put)
    }

    fn delete<'a>(&'a self, key: &'a LogKey, epoch: Epoch, control: u64) -> Answer<'a, bool> {
        self.0.delete(key, epoch, control)
    }

    fn delete_user<'a>(&'a self, owner: &'a Principal) -> Answer<'a, usize> {
        self.store().delete_user(owner)
    }

    fn rename<'a>(&'a self, key: &'a LogKey, title: &'a str) -> Answer<'a, bool> {
        self.store().rename(key, title)
    }

    fn list<'a>(&'a self, owner: &'a Principal, list: ListChats<'a>) -> Answer<'a, ChatPage> {
        self.0.list(owner, list)
    }

    fn undelivered(&self, limit: usize, retry_after: Duration) -> Answer<'_, Vec<Undelivered>> {
        self.0.undelivered(limit, retry_after)
    }

    fn acknowledge<'a>(&'a self, delivered: &'a Undelivered) -> Answer<'a, Option<Undelivered>> {
        self.0.acknowledge(delivered)
    }

    fn sweep(&self) -> Answer<'_, LeftToServer> {
        self.0.sweep()
    }

    fn ping(&self) -> Answer<'_, ()> {
        self.store().ping()
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        self.0.changed(key, length)
    }

    fn hinted_entries(&self, key: &LogKey, epoch: Epoch, position: u64) -> Vec<StoredEntry> {
        self.store().hinted_entries(key, epoch, position)
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        self.0.changed_list(owner)
    }
}
