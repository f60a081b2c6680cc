//! [`ResolvedRequest`]: an approval request that has an outcome.

use crate::approval::store::RECORD_RETENTION;
use crate::approval::token::Token;
use crate::approval::{DeferredOutcome, KeyRing, UnixMillis};
use crate::id::ApprovalId;
use crate::json::Json;

/// An approval request that has an outcome.
#[derive(Debug)]
#[non_exhaustive]
pub struct ResolvedRequest {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// The outcome of its call.
    pub outcome: DeferredOutcome,
    /// The data that the client shows beside the tool call.
    pub descriptor: Option<Json>,
}

impl ResolvedRequest {
    /// The request of this server with this id, if the ledger need not keep its record any more.
    pub(super) fn without_record(
        id: &ApprovalId,
        keys: &KeyRing,
        (now, system_now): (UnixMillis, UnixMillis),
    ) -> Option<Self> {
        let (_, expires_at) = Token::open(keys, id, system_now)?.times();
        let is_removed = expires_at.after(RECORD_RETENTION) < now;
        is_removed.then(|| ResolvedRequest {
            approval_id: id.clone(),
            outcome: DeferredOutcome::OutcomeUnknown,
            descriptor: None,
        })
    }
}
