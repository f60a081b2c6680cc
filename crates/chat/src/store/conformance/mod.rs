//! [`check`]: tests whether a store of logs keeps the guarantees of [`LogStore`].
//!
//! Not tested is what needs a crash or minutes: that a log survives the process, and that a
//! [sweep](LogStore::sweep) removes what no reader needs 10 minutes after the end of a run.

mod appends;
mod case;
mod deliveries;
mod lists;
mod reads;
pub(super) mod report;
mod runs;

use std::sync::Arc;

use self::report::{Case, Report};
use super::LogStore;

/// Runs every case against a store, and returns the number of cases.
///
/// `store` is called once for each case. The cases use new owners, so that `store` may return the
/// same database each time, also a database that already holds logs. This needs a tokio runtime
/// whose time is not paused.
///
/// # Panics
/// If a case fails. The panic follows after all cases have run. Its message holds the name of each
/// failed case, and the reason.
pub async fn check<S: LogStore>(store: impl AsyncFn() -> S) -> usize {
    let cases =
        [appends::cases(), runs::cases(), reads::cases(), lists::cases(), deliveries::cases()];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let mut report = Report::default();
    for case in cases {
        report.run(case.name, case.run(Arc::new(store().await))).await;
    }
    report.finish()
}
