//! [`Case`]: a test case of the suite, and how it fails.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

use crate::approval::store::{LedgerStore, LedgerStoreError};
use crate::boxed::BoxFuture;

/// A test case: a name, and a function that runs it against a store.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) run: Box<dyn FnOnce(Store) -> CaseFuture + Send>,
}

pub(super) type Store = Arc<dyn LedgerStore>;
type CaseFuture = BoxFuture<'static, Result<(), CaseFailure>>;

/// The reason why a case failed.
#[derive(Debug)]
pub(super) struct CaseFailure(pub(super) String);

impl Case {
    pub(super) fn new<Fut>(
        name: impl Into<String>,
        run: impl FnOnce(Store) -> Fut + Send + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<(), CaseFailure>> + Send + 'static,
    {
        Case { name: name.into(), run: Box::new(move |store| Box::pin(run(store))) }
    }
}

impl From<LedgerStoreError> for CaseFailure {
    fn from(error: LedgerStoreError) -> Self {
        CaseFailure(format!("{error}: {:?}", error.source()))
    }
}

/// Returns a [`CaseFailure`] unless both values are equal.
pub(super) fn expect_equal<T: PartialEq + fmt::Debug>(
    what: &str,
    is: T,
    expected: T,
) -> Result<(), CaseFailure> {
    if is == expected {
        return Ok(());
    }
    Err(CaseFailure(format!("{what} is {is:?}, expected {expected:?}")))
}
