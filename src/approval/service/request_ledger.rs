//! [`RequestLedger`]: the ledger of a stateless host. It holds the records of one request, which are
//! made again from the approval ids of the request, and asks the replay guard about each.
//!
//! # Stateless approvals are a ledger that lives for one request
//!
//! A host that keeps nothing has no record, but the approval id has the digest of it. So the record is made again,
//! from the id, the server's own data and the call that the client sends back, and counts only if its digest is the
//! one in the id. It is put into a ledger in memory that lives for one request. All rules then apply unchanged:
//! expiry, lapse, claim. The replay guard is asked in one place, when a record stops being pending.
//!
//! The input of a stateless approval is stored in canonical form, because a browser does not return the bytes. The
//! keys of stateless approvals are derived for another purpose, so that a stateless host with the same secret
//! rejects the approval ids of a ledger. Without a guard it is not known whether an approval was used before.
//! Therefore an approved call that is not executed any more reads "outcome unknown", where a ledger would say
//! "expired".

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::approval::store::{
    ApprovalUse, Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords,
    PendingLimits, RECORD_RETENTION, RecordCursor, ReplayGuard, Snapshot, VersionedRecord,
    system_time,
};
use crate::approval::{
    ApprovalRecord, ApprovalState, RecordId, RecordedDecision, RevocationReason,
};
use crate::boxed::BoxFuture;

/// The records of one request. The rules of the ledger apply to them as to stored records, so that
/// a stateless host redeems approvals in the same way as any other.
#[derive(Debug, Default)]
pub(super) struct RequestLedger {
    records: Mutex<HashMap<RecordId, VersionedRecord>>,
    /// The decisions of the records that the request approves.
    approved: HashMap<RecordId, RecordedDecision>,
    guard: Option<Arc<dyn ReplayGuard>>,
}

impl RequestLedger {
    /// Creates the ledger of a request from verified records. `approved` are the approvals among
    /// its answers.
    pub(super) fn new(
        records: impl IntoIterator<Item = ApprovalRecord>,
        approved: HashMap<RecordId, RecordedDecision>,
        guard: Option<Arc<dyn ReplayGuard>>,
    ) -> Self {
        let records = records.into_iter().map(|record| {
            let id = record.id;
            (id, VersionedRecord { record, revision: 0 })
        });
        RequestLedger { records: Mutex::new(records.collect()), approved, guard }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, VersionedRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self, id: RecordId, revision: u64) -> Option<ApprovalRecord> {
        let versioned = self.lock().get(&id).cloned();
        versioned.filter(|versioned| versioned.revision == revision).map(|stored| stored.record)
    }

    /// Returns the state that an earlier request has given to a pending record, or `None` if this
    /// request is the first.
    async fn earlier_state(
        &self,
        next: &ApprovalRecord,
    ) -> Result<Option<ApprovalState>, LedgerStoreError> {
        let is_claim =
            matches!(next.state, ApprovalState::Granted { .. } | ApprovalState::Claimed { .. });
        let decision = self.approved.get(&next.id).cloned();
        let unknown = |decision| ApprovalState::OutcomeUnknown { decision };
        let keep_until = next.expires_at.after(RECORD_RETENTION);
        let Some(guard) = self.guard.as_ref().filter(|_| system_time() <= keep_until) else {
            // An earlier request with this approval may have been granted the claim, so it must not
            // be said that the call was not executed.
            return Ok(decision.filter(|_| !is_claim).map(unknown));
        };
        let this_use = ApprovalUse::from_state(&next.state);
        let first_use = guard.set_if_absent(next.id, this_use, keep_until).await?;
        let Some(first_use) = first_use else { return Ok(None) };
        if first_use == this_use && !is_claim {
            return Ok(Some(next.state.clone()));
        }
        let at = system_time();
        // The guard stores neither the decision nor its reason.
        let earlier = RecordedDecision::new(next.requester.clone(), at);
        Ok(Some(match first_use {
            ApprovalUse::Claimed => unknown(decision.unwrap_or(earlier)),
            ApprovalUse::Denied => ApprovalState::Denied { decision: earlier },
            ApprovalUse::Expired => ApprovalState::Expired,
            ApprovalUse::Superseded => ApprovalState::Superseded { at },
            ApprovalUse::Lapsed => ApprovalState::Lapsed { decision: earlier },
            ApprovalUse::Revoked => ApprovalState::Revoked { cause: RevocationReason::ByHost, at },
        }))
    }
}

impl LedgerStore for RequestLedger {
    /// Stores nothing: the approval id holds what is needed to make the record again.
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        Box::pin(ready(Ok(limits.admit(records.len(), 0, 0, 0))))
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        let stored = self.lock();
        let records = ids.iter().filter_map(|id| stored.get(id).cloned()).collect();
        Box::pin(ready(Ok(Snapshot { now: system_time(), records })))
    }

    /// All records belong to the chat and the requester of the request, whose pending ones are the only list,
    /// and are one page.
    fn read_list<'a>(
        &'a self,
        page: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        let now = system_time();
        let place = |stored: &VersionedRecord| RecordCursor::of_pending(&stored.record);
        let after = page.begins_after(now);
        let is_listed =
            |stored: &&VersionedRecord| stored.record.is_pending() && Some(place(stored)) > after;
        let mut records: Vec<VersionedRecord> =
            self.lock().values().filter(is_listed).cloned().collect();
        records.sort_by_key(place);
        Box::pin(ready(Ok(ListedRecords { now, records, next: None })))
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let Some(current) = self.current(record.id, revision) else { return Ok(false) };
            let earlier =
                if current.is_pending() { self.earlier_state(record).await? } else { None };
            let is_first = earlier.is_none();
            let next = match earlier {
                Some(state) => ApprovalRecord { state, ..record.clone() },
                None => record.clone(),
            };
            let mut records = self.lock();
            let stored = records.get(&record.id).map(|stored| stored.revision);
            if stored == Some(revision) {
                let revision = revision + 1;
                records.insert(record.id, VersionedRecord { record: next, revision });
            }
            // If it is not the first, the rule is applied again to the record as it is now.
            Ok(is_first && stored == Some(revision))
        })
    }
}
