//! [`LogStore`] of a [`SqliteStore`]: a row for each log, for each entry, and for each message of a snapshot.
//!
//! | module | content |
//! |---|---|
//! | `head` | the row of a log |
//! | `append` | appends |
//! | `reads` | loads, pages of entries and messages, lists |
//! | `snapshot` | snapshots |
//! | `deliveries` | what a sink has to get |
//! | `removal` | deletions and the sweep |

mod append;
mod deliveries;
mod head;
mod reads;
mod removal;
mod snapshot;

use std::time::Duration;

use rusqlite::Transaction;
use rusqlite::types::Type;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatPage, Epoch, LeftToServer, ListChats, LoadLog, LoadedLog, LogKey,
    LogPage, LogStore, PutSnapshot, ReadLogEntries, ReadMessages, Undelivered,
};

pub(crate) use self::head::KeyColumns;

use self::append::Append;
use self::snapshot::NewSnapshot;
use crate::SqliteStore;
use crate::file::Durability;

impl LogStore for SqliteStore {
    fn load<'a>(
        &'a self,
        load: LoadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>> {
        Box::pin(async move { self.load_log(load).await.map_err(ChatStoreError::new) })
    }

    fn messages<'a>(
        &'a self,
        read: ReadMessages<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, ChatStoreError>> {
        Box::pin(async move { self.read_messages(read).await.map_err(ChatStoreError::new) })
    }

    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>> {
        Box::pin(async move { self.read_entries(read).await.map_err(ChatStoreError::new) })
    }

    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>> {
        let new = Append::of(append);
        Box::pin(async move {
            let appended = self.write(new.durability(), new).await.map_err(ChatStoreError::new)?;
            if let AppendResult::Appended { head, .. } = &appended {
                self.inner.hints.add(append.key, Some((head.epoch, head.length)));
                if append.changes_list() {
                    self.inner.hints.add_list(&append.key.owner);
                }
            }
            Ok(appended)
        })
    }

    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        let new = NewSnapshot::of(put);
        Box::pin(async move {
            let put = |transaction: &Transaction<'_>, now| new.put(transaction, now);
            self.write(Durability::Synced, put).await.map_err(ChatStoreError::new)
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(
            async move { self.delete_log(key, epoch, control).await.map_err(ChatStoreError::new) },
        )
    }

    fn delete_user<'a>(
        &'a self,
        owner: &'a Principal,
    ) -> BoxFuture<'a, Result<usize, ChatStoreError>> {
        Box::pin(async move { self.delete_logs(owner).await.map_err(ChatStoreError::new) })
    }

    fn rename<'a>(
        &'a self,
        key: &'a LogKey,
        title: &'a str,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move { self.rename_log(key, title).await.map_err(ChatStoreError::new) })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(async move { self.list_logs(owner, list).await.map_err(ChatStoreError::new) })
    }

    fn undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> BoxFuture<'_, Result<Vec<Undelivered>, ChatStoreError>> {
        Box::pin(async move {
            self.take_undelivered(limit, retry_after).await.map_err(ChatStoreError::new)
        })
    }

    fn acknowledge<'a>(
        &'a self,
        delivered: &'a Undelivered,
    ) -> BoxFuture<'a, Result<Option<Undelivered>, ChatStoreError>> {
        Box::pin(async move { self.note_delivered(delivered).await.map_err(ChatStoreError::new) })
    }

    fn sweep(&self) -> BoxFuture<'_, Result<LeftToServer, ChatStoreError>> {
        Box::pin(async move {
            let removed = self.sweep().await;
            let left = self.left_to_server().await.map_err(ChatStoreError::new)?;
            // The failure was logged, and the server has something to do.
            if left == LeftToServer::default() {
                removed.map_err(ChatStoreError::new)?
            }
            Ok(left)
        })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async move { self.ping().await.map_err(ChatStoreError::new) })
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed(key, length))
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.hints.changed_list(owner))
    }
}

fn utf8(column: usize, bytes: Vec<u8>) -> rusqlite::Result<String> {
    let unreadable =
        |error| rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, Box::new(error));
    String::from_utf8(bytes).map_err(unreadable)
}

/// Returns a number that was stored.
pub(crate) fn unsigned(number: i64) -> u64 {
    number.try_into().unwrap_or(0)
}

/// Returns a number as SQLite stores it: the largest ones become one.
fn stored(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

fn millis(time: Duration) -> i64 {
    time.as_millis().try_into().unwrap_or(i64::MAX)
}

/// The kinds of entries as they are stored.
const FRAME: i64 = 0;
const NOTE: i64 = 1;
const CONTROL: i64 = 2;
