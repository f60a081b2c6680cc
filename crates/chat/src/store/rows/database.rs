//! [`Rows`]: a database of rows.

use std::fmt;

use tokio::time::sleep;

use super::known_logs::KnownLogs;
use super::step::{Reply, Step};
use crate::store::log_store::DEFAULT_POLL_INTERVAL;
use crate::store::{ChatStoreError, Epoch, LogKey, StoredEntry};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};

/// A database of rows. Each type that implements it is a [`LogStore`](crate::store::LogStore).
pub trait Rows: Send + Sync + fmt::Debug + 'static {
    /// Runs steps in their order. Each is atomic and is compared alone: one that is not applied does not keep the next
    /// ones from it. After an error, no later step is run. Returns a reply for each.
    ///
    /// A step is never run again by the database, not even after a lost reply: its caller decides again.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the database cannot be read or written. Steps may have been applied, or may still be.
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>>;

    /// Returns the time of the clock of the database, if it is known without a request. It is at most a second
    /// late, and never ahead: leases begin at it. The default returns `None`: each append of frames then reads first.
    fn now(&self) -> Option<UnixMillis> {
        None
    }

    /// Returns what this process knows of the logs.
    fn known(&self) -> &KnownLogs;

    /// Checks that the database can be read and written.
    ///
    /// # Errors
    /// [`ChatStoreError`] if it cannot.
    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>>;

    /// Removes what is not needed any more and is not of logs.
    ///
    /// # Errors
    /// [`ChatStoreError`] if it cannot be removed.
    fn sweep(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async { Ok(()) })
    }

    /// Makes a place for another chat of a user who has the maximum number, if the database may lose chats. Returns
    /// whether there is one. The default returns `false`.
    ///
    /// # Errors
    /// [`ChatStoreError`] if the database cannot be read or written.
    fn make_place<'a>(
        &'a self,
        _owner: &'a Principal,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async { Ok(false) })
    }

    /// Returns over how many partitions each list of the chats of all users is spread, by a hash of their owners. A
    /// database whose partitions are on several machines has more than one. A read of a list is a step for each. The
    /// number of a stored database never changes: what is listed in other partitions is not found.
    fn list_partitions(&self) -> u64 {
        1
    }

    /// Returns how many bytes are kept of runs that this process has ended.
    fn max_ended_bytes(&self) -> usize {
        usize::MAX
    }

    /// See [`LogStore::changed`](crate::store::LogStore::changed).
    fn changed<'a>(&'a self, _key: &'a LogKey, _length: u64) -> BoxFuture<'a, ()> {
        Box::pin(sleep(DEFAULT_POLL_INTERVAL))
    }

    /// See [`LogStore::changed_list`](crate::store::LogStore::changed_list).
    fn changed_list<'a>(&'a self, _owner: &'a Principal) -> BoxFuture<'a, ()> {
        Box::pin(sleep(DEFAULT_POLL_INTERVAL))
    }

    /// See [`LogStore::hinted_entries`](crate::store::LogStore::hinted_entries).
    fn hinted_entries(&self, _key: &LogKey, _epoch: Epoch, _position: u64) -> Vec<StoredEntry> {
        Vec::new()
    }
}
