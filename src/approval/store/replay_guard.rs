//! [`ReplayGuard`]: for a host that keeps no records, the storage of which approvals were used.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::{Mutex, PoisonError};

use super::{LedgerStoreError, system_time};
use crate::approval::{ApprovalState, RecordId, UnixMillis};
use crate::boxed::BoxFuture;

/// The storage of which approvals were used, for [stateless
/// approvals](crate::approval::Approvals::stateless_replayable): one entry for each approval.
///
/// [`InMemoryReplayGuard`] implements it for one process, `RedisStore` (package
/// `ui-message-stream-redis`) and `PostgresStore` (`ui-message-stream-postgres`) for several.
/// In Redis, `set_if_absent` is the command
/// `SET key value NX GET PXAT keep_until`, and `first_use` is `GET key`.
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

    /// Returns the first use of an approval, or `None` if none is stored. Stores nothing.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails.
    fn first_use(
        &self,
        approval: RecordId,
    ) -> BoxFuture<'_, Result<Option<ApprovalUse>, LedgerStoreError>>;
}

/// The first use of an approval. After every use but [`Claimed`](Self::Claimed) the call is never
/// executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApprovalUse {
    /// The call was claimed for execution.
    Claimed,
    /// The user denied the call.
    Denied,
    /// The approval request expired.
    Expired,
    /// The user sent another message instead of a response.
    Superseded,
    /// The approval arrived with or after a newer message.
    Lapsed,
    /// The tool's definition had changed, or the call was not permitted any more.
    Revoked,
}

impl ApprovalUse {
    /// Returns the name to store, for example `"claimed"`.
    pub fn name(self) -> &'static str {
        match self {
            ApprovalUse::Claimed => "claimed",
            ApprovalUse::Denied => "denied",
            ApprovalUse::Expired => "expired",
            ApprovalUse::Superseded => "superseded",
            ApprovalUse::Lapsed => "lapsed",
            ApprovalUse::Revoked => "revoked",
        }
    }

    /// Returns the use with this name. An unknown name is [`Claimed`](Self::Claimed): a newer
    /// version may have stored it, so it is not certain that the call was not executed.
    pub fn from_name(name: &str) -> Self {
        let uses = [
            ApprovalUse::Denied,
            ApprovalUse::Expired,
            ApprovalUse::Superseded,
            ApprovalUse::Lapsed,
            ApprovalUse::Revoked,
        ];
        uses.into_iter().find(|known| known.name() == name).unwrap_or(ApprovalUse::Claimed)
    }

    /// Returns the use that gives an approval request this state.
    pub(in crate::approval) fn from_state(state: &ApprovalState) -> Self {
        match state {
            ApprovalState::Denied { .. } => ApprovalUse::Denied,
            ApprovalState::Expired => ApprovalUse::Expired,
            ApprovalState::Superseded { .. } => ApprovalUse::Superseded,
            ApprovalState::Lapsed { .. } => ApprovalUse::Lapsed,
            ApprovalState::Revoked { .. } => ApprovalUse::Revoked,
            ApprovalState::Pending
            | ApprovalState::Granted { .. }
            | ApprovalState::Claimed { .. }
            | ApprovalState::Completed { .. }
            | ApprovalState::OutcomeUnknown { .. } => ApprovalUse::Claimed,
        }
    }
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

    fn first_use(
        &self,
        approval: RecordId,
    ) -> BoxFuture<'_, Result<Option<ApprovalUse>, LedgerStoreError>> {
        let uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Box::pin(ready(Ok(uses.get(&approval).map(|(_, first_use)| *first_use))))
    }
}
