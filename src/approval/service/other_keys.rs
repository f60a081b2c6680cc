//! [`OtherKeys`]: the keys of other servers that seal approval requests of the same ledger. The log names them.

use std::sync::{Mutex, PoisonError};

use super::inner::RecordUpdate;
use super::{ChatApprovals, ResolvedRequest};
use crate::approval::store::{LedgerStoreError, system_time};
use crate::approval::token::Token;
use crate::approval::{
    ApprovalRecord, DeferredOutcome, KeyId, KeyRing, RevocationReason, Transition,
};
use crate::id::ApprovalId;

/// The keys that have sealed open approval requests of the ledger and that this server does not have.
///
/// Servers that share a ledger and not their key refuse each other's questions, and a refusal has one text
/// for all reasons. So the log says what is wrong. A key that was replaced on purpose is logged in the same
/// way: this server does not know why it lacks the key.
#[derive(Debug, Default)]
pub(super) struct OtherKeys(Mutex<Vec<KeyId>>);

impl OtherKeys {
    /// Logs the keys of these open requests that are not in the ring, each key once.
    pub(super) fn note<'r>(
        &self,
        open: impl IntoIterator<Item = &'r ApprovalRecord>,
        keys: &KeyRing,
    ) {
        let now = system_time();
        for record in open.into_iter().filter(|record| !keys.verifies(record.key_id, now)) {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.contains(&record.key_id) || known.len() == MAX_KEYS {
                continue;
            }
            known.push(record.key_id);
            let (sealed_by, key) = (record.key_id, keys.active_key_id());
            tracing::warn!(
                %sealed_by,
                %key,
                "open approval requests of the ledger were sealed by another key: this server does not list \
                 them and refuses their answers. Give all servers of the ledger the same secret \
                 (`Approvals::with_keys`), and keep an old one for a while (`KeyRing::with_retired_key`). If \
                 the secret was replaced without it, nothing is wrong"
            );
        }
    }

    /// Logs that an answer is refused whose approval id does not open, if one of these keys has sealed it.
    /// Nothing verifies the id.
    pub(super) fn warn_of_answer(&self, id: &ApprovalId, keys: &KeyRing) {
        let Some(sealed_by) = Token::unverified(id).map(|token| token.key_id()) else { return };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&sealed_by) && !keys.verifies(sealed_by, system_time()) {
            let key = keys.active_key_id();
            tracing::warn!(
                %sealed_by,
                %key,
                "an answer is refused: its approval request was sealed by another key. Give all servers of the \
                 ledger the same secret"
            );
        }
    }
}

/// Closes those of these requests that no key of this server has sealed, if they are answered or a newer message closes
/// them. The log of the chat holds their ids, so they are genuine, but this server cannot check an answer to them.
/// Returns the outcomes of those that are closed. An id of a newer format is left to a newer server.
///
/// The ledger learns it first: no other server may execute a call that this chat shows as not executed.
pub(super) async fn close_void(
    approvals: &ChatApprovals,
    ids: &[ApprovalId],
    answered: &[ApprovalId],
) -> Result<Vec<ResolvedRequest>, LedgerStoreError> {
    let (inner, now) = (&approvals.inner, system_time());
    let mut closed = Vec::new();
    for id in ids {
        if Token::open(&inner.keys, id, now).is_some() {
            continue;
        }
        let Some(token) = Token::unverified(id) else { continue };
        let is_own = |record: &ApprovalRecord| {
            approvals.is_requested_by_owner(record)
                && record.chat_id == approvals.chat
                && token == record.token()
        };
        let is_closed = |record: &ApprovalRecord| {
            is_own(record) && (answered.contains(id) || record.is_closed_by_new_message())
        };
        let revoke = |record: &ApprovalRecord, now| {
            if is_closed(record) {
                record.revoke(RevocationReason::ByHost, now)
            } else {
                Transition { output: false, next: None }
            }
        };
        let principal = Some(&approvals.principal);
        let revoked = inner.update_record(principal, token.record, revoke).await?;
        let resolved = match revoked.filter(|revoked| is_own(&revoked.record)) {
            Some(RecordUpdate { record, at, .. }) => {
                let outcome = record.outcome_at(at).filter(|outcome| {
                    let is_under_way = matches!(
                        outcome,
                        DeferredOutcome::Executing { .. } | DeferredOutcome::ForwardedToProvider
                    );
                    !is_under_way
                });
                outcome.map(|outcome| (outcome, record.descriptor(at).ok()))
            }
            None => Some((DeferredOutcome::Revoked, None)),
        };
        let resolved = resolved.map(|(outcome, descriptor)| ResolvedRequest {
            approval_id: id.clone(),
            outcome,
            descriptor,
        });
        closed.extend(resolved);
    }
    Ok(closed)
}

/// How many keys are logged. Each start of a server without a configured key makes one.
const MAX_KEYS: usize = 64;
