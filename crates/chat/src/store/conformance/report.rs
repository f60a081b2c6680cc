//! [`Case`]: a test case of the conformance suite of [`LogStore`], and the [`Report`] of a suite.

use std::error::Error as _;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::store::{ChatStoreError, LogStore};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::Principal;

/// A test case: a name, and a function that runs it against a store.
pub(super) struct Case {
    pub(super) name: &'static str,
    run: Box<dyn FnOnce(Arc<dyn LogStore>) -> BoxFuture<'static, CaseResult> + Send>,
}

pub(in crate::store) type CaseResult = Result<(), CaseFailure>;

/// The reason why a case failed.
#[derive(Debug)]
pub(in crate::store) struct CaseFailure(pub(in crate::store) String);

impl From<ChatStoreError> for CaseFailure {
    fn from(error: ChatStoreError) -> Self {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        CaseFailure(format!("{error}{cause}"))
    }
}

impl Case {
    pub(super) fn new<Fut>(
        name: &'static str,
        run: impl FnOnce(Arc<dyn LogStore>) -> Fut + Send + 'static,
    ) -> Self
    where
        Fut: Future<Output = CaseResult> + Send + 'static,
    {
        Case { name, run: Box::new(move |store| Box::pin(run(store))) }
    }

    pub(super) fn run(self, store: Arc<dyn LogStore>) -> BoxFuture<'static, CaseResult> {
        (self.run)(store)
    }
}

/// The results of the cases that have run.
#[derive(Debug, Default)]
pub(in crate::store) struct Report {
    cases: usize,
    failed: usize,
    text: String,
}

impl Report {
    /// Runs a case.
    pub(in crate::store) async fn run(
        &mut self,
        name: &str,
        case: impl Future<Output = CaseResult> + Send + 'static,
    ) {
        // Each case has its own task, so that a panic in the store fails only that case.
        let result = timeout(CASE_TIMEOUT, tokio::spawn(case)).await;
        self.cases += 1;
        let why = match result {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(CaseFailure(why)))) => why,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {CASE_TIMEOUT:?}"),
        };
        self.failed += 1;
        let _ = write!(self.text, "\n- {name}: {why}");
    }

    /// Returns the number of cases.
    ///
    /// # Panics
    /// If a case failed.
    pub(in crate::store) fn finish(self) -> usize {
        let Report { cases, failed, text } = self;
        assert!(failed == 0, "{failed} of {cases} cases failed:{text}");
        cases
    }
}

/// Returns a [`CaseFailure`] unless both values are equal.
pub(in crate::store) fn expect_equal<T: PartialEq + fmt::Debug>(
    what: &str,
    is: T,
    expected: T,
) -> CaseResult {
    if is == expected {
        return Ok(());
    }
    Err(CaseFailure(format!("{what} is {is:?}, expected {expected:?}")))
}

/// Returns an owner whom no other case uses.
pub(super) fn new_owner() -> Principal {
    Principal::new(format!("owner {}", new_number()))
}

/// Returns a text that no other case uses.
pub(in crate::store) fn new_number() -> String {
    let mut bytes = [0; 8];
    // Without random bytes the number alone separates the cases.
    let _ = getrandom::fill(&mut bytes);
    let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{random}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The time after which a case fails.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);
