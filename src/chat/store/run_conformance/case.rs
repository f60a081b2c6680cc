//! [`Case`]: a test case of the suite, how it fails, and the requests that the cases make.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::approval::{LeaseHolderId, Principal};
use crate::boxed::BoxFuture;
use crate::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, LogPage, ReadLog, RunKey,
    TakeCondition, TakeResult, TakeRun,
};
use crate::chat::store::run_store::{RunStore, RunStoreError};

/// A test case: a name, and a function that runs it against a store.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) run: Box<dyn FnOnce(Store) -> CaseFuture + Send>,
}

pub(super) type Store = Arc<dyn RunStore>;
pub(super) type CaseResult = Result<(), CaseFailure>;
type CaseFuture = BoxFuture<'static, CaseResult>;

/// The reason why a case failed.
#[derive(Debug)]
pub(super) struct CaseFailure(pub(super) String);

impl Case {
    pub(super) fn new<Fut>(
        name: &'static str,
        run: impl FnOnce(Store) -> Fut + Send + 'static,
    ) -> Self
    where
        Fut: Future<Output = CaseResult> + Send + 'static,
    {
        Case { name, run: Box::new(move |store| Box::pin(run(store))) }
    }
}

impl From<RunStoreError> for CaseFailure {
    fn from(error: RunStoreError) -> Self {
        CaseFailure(format!("{error}: {:?}", error.source()))
    }
}

/// Returns a [`CaseFailure`] unless both values are equal.
pub(super) fn expect_equal<T: PartialEq + fmt::Debug>(
    what: &str,
    is: T,
    expected: T,
) -> CaseResult {
    if is == expected {
        return Ok(());
    }
    Err(CaseFailure(format!("{what} is {is:?}, expected {expected:?}")))
}

/// A run and its store.
pub(super) struct Run {
    pub(super) store: Store,
    pub(super) key: RunKey,
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
        let run = Run { store, key: new_key() };
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
        let (fence, holder) = (Fence(fence), holder_id(holder));
        Ok(self.store.take(TakeRun { key: &self.key, fence, holder, condition }).await?)
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
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let random = random();
    RunKey {
        owner: Principal::new(format!("owner {number} {random}")),
        chat: "chat".into(),
        run: format!("run-{number}-{random}").into(),
    }
}

/// Returns frames with these texts.
pub(super) fn frames<const N: usize>(texts: [&str; N]) -> [LogEntry; N] {
    texts.map(|text| LogEntry::Frame(Bytes::copy_from_slice(text.as_bytes())))
}

pub(super) fn holder_id(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

fn random() -> String {
    let mut bytes = [0; 8];
    // Without random bytes the number alone separates the owners.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A lease that does not pass during a case.
pub(super) const LONG_LEASE: Duration = Duration::from_secs(600);

/// A lease that passes during a case.
pub(super) const SHORT_LEASE: Duration = Duration::from_millis(150);
