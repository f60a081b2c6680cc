//! [`Run`]: the run of a case, and the requests that the cases make.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::approval::LeaseHolderId;
use crate::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, LogPage, ReadLog, RunKey,
    TakeCondition, TakeResult, TakeRun,
};
use crate::chat::store::conformance_case::{
    CaseFailure, CaseResult, expect_equal, new_number, new_owner,
};
use crate::chat::store::run_store::{RunStore, RunStoreError};

pub(super) type Case = crate::chat::store::conformance_case::Case<dyn RunStore>;
pub(super) type Store = Arc<dyn RunStore>;

impl From<RunStoreError> for CaseFailure {
    fn from(error: RunStoreError) -> Self {
        CaseFailure(format!("{error}: {:?}", error.source()))
    }
}

/// A run and its store.
pub(super) struct Run {
    pub(super) store: Store,
    pub(super) key: RunKey,
    /// The lease of its holders.
    pub(super) lease: Duration,
}

impl Run {
    /// Begins a run of a new owner with a long lease.
    pub(super) async fn begin(store: Store) -> Result<Self, CaseFailure> {
        Self::begin_with_lease(store, LONG_LEASE).await
    }

    pub(super) async fn begin_with_lease(
        store: Store,
        lease: Duration,
    ) -> Result<Self, CaseFailure> {
        let run = Run { store, key: new_key(), lease };
        expect_equal("begin", run.begin_again(1, lease).await?, BeginResult::Begun(Fence(1)))?;
        Ok(run)
    }

    pub(super) async fn begin_again(
        &self,
        holder: u8,
        lease: Duration,
    ) -> Result<BeginResult, CaseFailure> {
        let begin =
            BeginRun { key: &self.key, holder: holder_id(holder), lease, max_user_runs: 16 };
        Ok(self.store.begin(begin).await?)
    }

    pub(super) async fn append(
        &self,
        fence: u64,
        position: u64,
        entries: &[LogEntry],
    ) -> Result<AppendResult, CaseFailure> {
        let fence = Fence(fence);
        let append = AppendEntries { key: &self.key, fence, position, entries, end: false };
        Ok(self.store.append(append).await?)
    }

    pub(super) async fn end(
        &self,
        fence: u64,
        position: u64,
        entries: &[LogEntry],
    ) -> Result<AppendResult, CaseFailure> {
        let fence = Fence(fence);
        let append = AppendEntries { key: &self.key, fence, position, entries, end: true };
        Ok(self.store.append(append).await?)
    }

    pub(super) async fn read(&self, after: u64, max_bytes: usize) -> Result<LogPage, CaseFailure> {
        let read = ReadLog { key: &self.key, after, max_bytes, is_reader: true };
        let page = self.store.read(read).await?;
        page.ok_or_else(|| CaseFailure("the run is not found".to_owned()))
    }

    pub(super) async fn take(
        &self,
        holder: u8,
        fence: u64,
        condition: TakeCondition,
    ) -> Result<TakeResult, CaseFailure> {
        self.take_for(holder, fence, condition, self.lease).await
    }

    pub(super) async fn take_for(
        &self,
        holder: u8,
        fence: u64,
        condition: TakeCondition,
        lease: Duration,
    ) -> Result<TakeResult, CaseFailure> {
        let (fence, holder) = (Fence(fence), holder_id(holder));
        Ok(self.store.take(TakeRun { key: &self.key, fence, holder, condition, lease }).await?)
    }

    /// Compares the whole log.
    pub(super) async fn expect_log(&self, expected: &[LogEntry]) -> CaseResult {
        expect_equal("the log", &*self.read(0, usize::MAX).await?.entries, expected)
    }
}

/// Fails unless the append was accepted.
pub(super) fn expect_appended(result: AppendResult) -> CaseResult {
    match result {
        AppendResult::Appended(_) => Ok(()),
        refused => Err(CaseFailure(format!("the append is {refused:?}"))),
    }
}

/// Returns the key of a run of a new owner.
pub(super) fn new_key() -> RunKey {
    let run = format!("run-{}", new_number()).into();
    RunKey { owner: new_owner(), chat: "chat".into(), run }
}

/// Returns frames with these texts.
pub(super) fn frames<const N: usize>(texts: [&str; N]) -> [LogEntry; N] {
    texts.map(|text| LogEntry::Frame(Bytes::copy_from_slice(text.as_bytes())))
}

pub(super) fn holder_id(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

/// A lease that does not pass during a case.
pub(super) const LONG_LEASE: Duration = Duration::from_secs(600);

/// A lease that passes during a case.
pub(super) const SHORT_LEASE: Duration = Duration::from_millis(150);
