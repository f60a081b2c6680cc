//! [`Unissued`]: the records of approval requests that no page shows yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::inner::Inner;
use crate::approval::store::{LedgerStoreError, VersionedRecord};
use crate::approval::{ApprovalRecord, Principal, RecordId, RevocationReason};
use crate::id::log_causes;

/// The records of requests that are not issued yet. If the requests fail, or their future is dropped,
/// the records may be stored nevertheless. No page shows them, so they must not be approved in a list
/// of pending requests.
pub(super) struct Unissued {
    pub(super) inner: Arc<Inner>,
    /// The principal that requests.
    pub(super) principal: Principal,
    pub(super) records: Vec<RecordId>,
}

impl Unissued {
    /// Revokes the records that are stored. The others may be stored late, and are revoked then.
    pub(super) async fn revoke(mut self) {
        if let Err(error) = revoke_stored(&self.inner, &self.principal, &mut self.records).await {
            tracing::warn!(
                error = log_causes(&error),
                "approvals that no page shows may be pending"
            );
        }
    }
}

impl Drop for Unissued {
    fn drop(&mut self) {
        let records = std::mem::take(&mut self.records);
        if let Some(runtime) = Handle::try_current().ok().filter(|_| !records.is_empty()) {
            runtime.spawn(revoke_late(Arc::clone(&self.inner), self.principal.clone(), records));
        }
    }
}

/// Revokes requests that no page shows, which may be stored or be stored late. The ledger may
/// fail.
async fn revoke_late(inner: Arc<Inner>, principal: Principal, mut records: Vec<RecordId>) {
    let mut looks = 0;
    for _ in 0..MAX_REVOCATIONS {
        match revoke_stored(&inner, &principal, &mut records).await {
            Ok(()) if records.is_empty() || looks == MAX_LATE_LOOKS => return,
            // An insertion may still be under way.
            Ok(()) => looks += 1,
            Err(error) => {
                let requests = records.len();
                tracing::warn!(
                    requests,
                    error = log_causes(&error),
                    "approvals that no page shows may be pending"
                );
            }
        }
        sleep(REVOCATION_INTERVAL).await;
    }
    let requests = records.len();
    tracing::error!(requests, "approvals that no page shows could not be revoked");
}

/// Revokes those of these requests that the ledger has, and removes them from the list.
async fn revoke_stored(
    inner: &Inner,
    principal: &Principal,
    records: &mut Vec<RecordId>,
) -> Result<(), LedgerStoreError> {
    for VersionedRecord { record, .. } in inner.ledger.load(records).await?.records {
        let rule = |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
        inner.update_record(Some(principal), record.id, rule).await?;
        records.retain(|id| *id != record.id);
    }
    Ok(())
}

/// The time between two attempts to revoke a request that no page shows.
const REVOCATION_INTERVAL: Duration = Duration::from_secs(5);

/// How many attempts there are to revoke such a request: an hour.
const MAX_REVOCATIONS: u32 = 720;

/// How often such a request is looked for again if it is not stored: 30 s.
const MAX_LATE_LOOKS: u32 = 6;
