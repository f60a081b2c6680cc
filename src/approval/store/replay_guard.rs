//! [`ReplayGuard`]: for a host that keeps no records, the storage of which approvals were used.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::{Mutex, PoisonError};

use super::{LedgerStoreError, system_time};
use crate::approval::{RecordId, UnixMillis};
use crate::boxed::BoxFuture;

/// The storage of which approvals were used, for [stateless
/// approvals](crate::approval::Approvals::stateless_replayable): one entry for each approval.
///
/// [`InMemoryReplayGuard`] implements it for one process. In Redis, the function is the command
/// `SET key value NX GET PXAT keep_until`.
pub trait ReplayGuard: Send + Sync + fmt::Debug + 'static {
    /// Stores the first use of an approval. Returns `None` if it was stored, and the first use if
    /// there was one already.
    ///
    /// This is one atomic step: of several simultaneous calls for one approval, one stores its use.
    /// An entry is kept at least until `keep_until`.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails. It is then not known whether the use was stored, and
    /// the call is not executed.
    fn set_if_absent<'a>(
        &'a self,
        approval: RecordId,
        first_use: ApprovalUse,
        keep_until: UnixMillis,
    ) -> BoxFuture<'a, Result<Option<ApprovalUse>, LedgerStoreError>>;
}

/// The first use of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalUse {
    /// The call was claimed for execution.
    Claimed,
    /// The call was denied, or its approval request was closed. It was not executed.
    Closed,
}

/// A [`ReplayGuard`] in the memory of this process.
#[derive(Debug, Default)]
pub struct InMemoryReplayGuard(Mutex<HashMap<RecordId, (UnixMillis, ApprovalUse)>>);

impl InMemoryReplayGuard {
    /// Creates an empty guard.
    pub fn new() -> Self {
        Self::default()
    }
}

impl ReplayGuard for InMemoryReplayGuard {
    fn set_if_absent<'a>(
        &'a self,
        approval: RecordId,
        first_use: ApprovalUse,
        keep_until: UnixMillis,
    ) -> BoxFuture<'a, Result<Option<ApprovalUse>, LedgerStoreError>> {
        let now = system_time();
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = uses.get(&approval).map(|(_, first_use)| *first_use);
        if known.is_none() {
            // Few approvals are kept at the same time, and a user answers each of them.
            uses.retain(|_, (keep_until, _)| now <= *keep_until);
            uses.insert(approval, (keep_until, first_use));
        }
        Box::pin(ready(Ok(known)))
    }
}
