//! [`check`]: whether a ledger store does what [`LedgerStore`] promises, case by case.
//!
//! A case for every transition of the ledger and every refused one, through
//! [`change`](super::change); and cases for what a store does by itself: each record once, one
//! winner for each revision, the lists of what is pending, tenants kept apart.
//!
//! ```
//! use ui_message_stream::ledger_store::{MemoryLedger, conformance};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let cases = conformance::check(async || MemoryLedger::new()).await;
//! println!("{cases} cases");
//! # });
//! ```
//!
//! Left out is what takes a crash or a day: that a record outlives the process, and that it is
//! forgotten in the end.

mod keeping;
mod lists;
mod races;
mod records;
mod transitions;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{BoxFuture, LedgerStore, LedgerStoreError};

/// Runs every case against a store of its own, and says how many there were.
///
/// The cases use ids, chats and people of their own, so that `store` may give the same database
/// each time, with whatever is in it already. It needs tokio, and its real time.
///
/// # Panics
/// If a case fails, once all have run: with the names of those that failed, and why.
pub async fn check<S: LedgerStore>(store: impl AsyncFn() -> S) -> usize {
    let cases: Vec<Case> = [transitions::cases(), keeping::cases(), lists::cases(), races::cases()]
        .into_iter()
        .flatten()
        .collect();
    let count = cases.len();
    let (mut failed, mut report) = (0, String::new());
    for Case { name, run } in cases {
        // On a task of its own, so that a store that panics fails its case alone.
        let ran = timeout(PATIENCE, tokio::spawn(run(Arc::new(store().await)))).await;
        let why = match ran {
            Ok(Ok(Ok(()))) => continue,
            Ok(Ok(Err(Failed(why)))) => why,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {PATIENCE:?}"),
        };
        failed += 1;
        let _ = write!(report, "\n- {name}: {why}");
    }
    assert!(failed == 0, "{failed} of {count} cases failed:{report}");
    count
}

struct Case {
    name: String,
    run: Box<dyn FnOnce(Store) -> Running + Send>,
}

type Store = Arc<dyn LedgerStore>;
type Running = BoxFuture<'static, Result<(), Failed>>;

/// Why a case failed.
#[derive(Debug)]
struct Failed(String);

impl Case {
    fn new<Fut>(name: impl Into<String>, run: impl FnOnce(Store) -> Fut + Send + 'static) -> Self
    where
        Fut: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        Case { name: name.into(), run: Box::new(move |store| Box::pin(run(store))) }
    }
}

impl From<LedgerStoreError> for Failed {
    fn from(error: LedgerStoreError) -> Self {
        Failed(format!("{error}: {:?}", std::error::Error::source(&error)))
    }
}

/// Fails a case unless the two are equal.
fn equal<T: PartialEq + std::fmt::Debug>(what: &str, is: T, expected: T) -> Result<(), Failed> {
    if is == expected {
        return Ok(());
    }
    Err(Failed(format!("{what} is {is:?}, expected {expected:?}")))
}

const PATIENCE: Duration = Duration::from_secs(60);
