//! [`check`]: tests whether a ledger store keeps the guarantees of [`LedgerStore`].
//!
//! There is a case for every transition of a record and for every refused transition, through
//! [`update`](super::update). Further cases test the store itself: each record is inserted once
//! and within the limits, one caller wins for each revision, the pending records are listed, and tenants are separated.
//!
//! ```
//! use ui_message_stream::approval::store::{InMemoryLedger, conformance};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let cases = conformance::check(async || InMemoryLedger::new()).await;
//! println!("{cases} cases");
//! # });
//! ```
//!
//! Not tested is what needs a crash or a day: that a record survives the process, and that a record
//! is deleted after its retention.

mod case;
mod insertions;
mod storage;
mod pending_queries;
mod races;
mod records;
mod transitions;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use self::case::{Case, CaseFailure};
use super::LedgerStore;

/// Runs every case against a store, and returns the number of cases.
///
/// `store` is called once for each case. The cases use new record ids, chat ids and principals, so
/// that `store` may return the same database each time, also a database that already holds records.
/// This needs a tokio runtime whose time is not paused.
///
/// # Panics
/// If a case fails. The panic follows after all cases have run. Its message holds the name of each
/// failed case, and the reason.
pub async fn check<S: LedgerStore>(store: impl AsyncFn() -> S) -> usize {
    let cases = [
        transitions::cases(),
        storage::cases(),
        insertions::cases(),
        pending_queries::cases(),
        races::cases(),
    ];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let count = cases.len();
    let mut failed = 0;
    let mut report = String::new();
    for Case { name, run } in cases {
        // Each case has its own task, so that a panic in the store fails only that case.
        let result = timeout(CASE_TIMEOUT, tokio::spawn(run(Arc::new(store().await)))).await;
        let why = match result {
            Ok(Ok(Ok(()))) => continue,
            Ok(Ok(Err(CaseFailure(why)))) => why,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {CASE_TIMEOUT:?}"),
        };
        failed += 1;
        let _ = write!(report, "\n- {name}: {why}");
    }
    assert!(failed == 0, "{failed} of {count} cases failed:{report}");
    count
}

/// The time after which a case fails.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);
