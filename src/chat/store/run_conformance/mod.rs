//! [`check`]: tests whether a store of runs keeps the guarantees of [`RunStore`].
//!
//! ```
//! use ui_message_stream::chat::store::{InMemoryRunStore, run_conformance};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let cases = run_conformance::check(async || InMemoryRunStore::new()).await;
//! println!("{cases} cases");
//! # });
//! ```
//!
//! Not tested is what needs a crash or minutes:
//!
//! - that a log survives the process, and is removed at the end of its retention;
//! - that [`HolderStatus::unread`](crate::chat::log::HolderStatus::unread) grows, and begins again
//!   with each reader;
//! - that at the maximum number of live runs the oldest run that has had no reader for 30 seconds
//!   has to end, so that a new run can begin.

mod case;
mod leases;
mod logs;
mod repetitions;
mod user_runs;

use std::sync::Arc;

use self::case::Case;
use super::conformance_case::Report;
use super::run_store::RunStore;

/// Runs every case against a store, and returns the number of cases.
///
/// `store` is called once for each case. The cases use new owners, so that `store` may return the
/// same database each time, also a database that already holds logs. This needs a tokio runtime
/// whose time is not paused.
///
/// # Panics
/// If a case fails. The panic follows after all cases have run. Its message holds the name of each
/// failed case, and the reason.
pub async fn check<S: RunStore>(store: impl AsyncFn() -> S) -> usize {
    let cases = [logs::cases(), repetitions::cases(), leases::cases(), user_runs::cases()];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let mut report = Report::default();
    for case in cases {
        report.run(case, Arc::new(store().await)).await;
    }
    report.finish()
}
