//! [`Inner`]: the keys, the ledger, the tools and the audit of an
//! [`Approvals`](super::Approvals), and the updates of records, each with its audit event.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{ApprovalLimits, AuditEvent, AuditEventKind, AuditSink, Toolbox};
use crate::approval::store::{
    ApprovalUse, LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingQuery,
    RECORD_RETENTION, ReplayGuard, VersionedRecord, system_time, update,
};
use crate::approval::{
    ApprovalRecord, KeyRing, OnNewMessage, Principal, RecordId, RejectionReason, Transition,
    UnixMillis,
};
use crate::id::ApprovalId;
use crate::metrics::count_approval;

/// The settings and the services that all clones of an [`Approvals`](super::Approvals) share.
#[derive(Clone)]
pub(super) struct Inner {
    pub(super) keys: KeyRing,
    pub(super) ledger: Arc<dyn LedgerStore>,
    pub(super) toolbox: Arc<dyn Toolbox>,
    pub(super) audit: Arc<dyn AuditSink>,
    pub(super) can_decide: Arc<CanDecide>,
    /// The time to live of an approval request, for tools without their own.
    pub(super) approval_ttl: Duration,
    pub(super) on_new_message: OnNewMessage,
    pub(super) lease: Duration,
    pub(super) limits: ApprovalLimits,
    /// Set if this host keeps no records.
    pub(super) stateless: Option<Stateless>,
    /// Changes when an approval was requested here that expires soon.
    pub(super) requested: Arc<watch::Sender<()>>,
}

/// The settings of a host that keeps no records.
#[derive(Clone, Default)]
pub(super) struct Stateless {
    pub(super) guard: Option<Arc<dyn ReplayGuard>>,
}

impl Stateless {
    /// Returns those of these genuine approvals, each with its expiry, whose calls an earlier
    /// request may have executed. Stores nothing, because it is not known who sent them.
    pub(super) async fn possible_executions(
        &self,
        approvals: HashMap<RecordId, UnixMillis>,
    ) -> Result<HashSet<RecordId>, LedgerStoreError> {
        let mut possible = HashSet::new();
        for (id, expires_at) in approvals {
            let is_possible = match &self.guard {
                Some(guard) if system_time() <= expires_at.after(RECORD_RETENTION) => {
                    guard.first_use(id).await? == Some(ApprovalUse::Claimed)
                }
                _ => true,
            };
            possible.extend(is_possible.then_some(id));
        }
        Ok(possible)
    }
}

/// Returns whether a principal may decide on the record of another principal.
type CanDecide = dyn Fn(&Principal, &ApprovalRecord) -> bool + Send + Sync;

/// An approval request without an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PendingApproval {
    /// The approval id that the answer must carry.
    pub approval_id: ApprovalId,
    /// The record of the approval request.
    pub record: ApprovalRecord,
}

/// A page of approval requests without an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PendingApprovals {
    /// The approval requests that have not expired, in the order in which they expire. Only the last
    /// page may hold fewer than requested.
    pub approvals: Vec<PendingApproval>,
    /// Where the next page begins. `None` after the last page.
    pub next: Option<PendingCursor>,
}

/// The maximum number of records that are read from the ledger at once. An input has at most 256 KiB.
const PAGE_RECORDS: usize = 64;

impl Inner {
    /// Returns all pending approval requests that have not expired and whose key may still be used,
    /// in the order in which they expire.
    pub(super) async fn pending(
        &self,
        filter: PendingFilter<'_>,
    ) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        let limit = usize::MAX;
        Ok(self.pending_page(PendingQuery { filter, after: None, limit }).await?.approvals)
    }

    /// Returns a page of the pending approval requests that have not expired and whose key may still
    /// be used.
    ///
    /// The ledger lists records that have expired first, for as long as it keeps them. They are not
    /// read.
    pub(super) async fn pending_page(
        &self,
        query: PendingQuery<'_>,
    ) -> Result<PendingApprovals, LedgerStoreError> {
        let now = self.ledger.load(&[]).await?.now;
        let mut after = query.after.max(Some(PendingCursor::after_expired(now)));
        let mut approvals = Vec::new();
        loop {
            let left = query.limit.saturating_sub(approvals.len());
            let limit = left.clamp(1, PAGE_RECORDS);
            let page = self.ledger.pending(PendingQuery { after, limit, ..query }).await?;
            approvals.extend(page.records.into_iter().filter_map(
                |VersionedRecord { record, .. }| {
                    let approval_id = record.approval_id(&self.keys, now)?;
                    Some(PendingApproval { approval_id, record })
                },
            ));
            after = page.next;
            if after.is_none() || approvals.len() >= query.limit {
                return Ok(PendingApprovals { approvals, next: after });
            }
        }
    }

    /// Returns all pending records, also those that have expired, and the time of the ledger.
    pub(super) async fn pending_records(
        &self,
        filter: PendingFilter<'_>,
    ) -> Result<(UnixMillis, Vec<ApprovalRecord>), LedgerStoreError> {
        let mut all = Vec::new();
        let mut query = PendingQuery { filter, after: None, limit: PAGE_RECORDS };
        loop {
            let page = self.ledger.pending(query).await?;
            all.extend(page.records.into_iter().map(|VersionedRecord { record, .. }| record));
            query.after = page.next;
            if page.next.is_none() {
                return Ok((page.now, all));
            }
        }
    }

    /// Records the rejection of a decision that this principal may not make. `record` is the record
    /// that the approval id names, if the id is genuine.
    pub(super) fn audit_unauthorized_decision(
        &self,
        at: UnixMillis,
        principal: &Principal,
        record: Option<RecordId>,
        cause: RejectionReason,
    ) {
        self.audit(&AuditEvent {
            record,
            ..AuditEvent::new(at, principal, AuditEventKind::Rejected { cause })
        });
    }

    pub(super) fn can_decide(&self, principal: &Principal, record: &ApprovalRecord) -> bool {
        (self.can_decide)(principal, record)
    }

    /// Applies a rule of the ledger to a record, and writes the new state to the audit. Returns
    /// `None` if there is no such record.
    ///
    /// The audit event names `principal`, or the requester if `principal` is `None`. There is no
    /// await point between the update and its audit event.
    pub(super) async fn update_record<T: Send>(
        &self,
        principal: Option<&Principal>,
        id: RecordId,
        rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
    ) -> Result<Option<RecordUpdate<T>>, LedgerStoreError> {
        let updated = update(&*self.ledger, id, move |record, now| {
            let Transition { output, next } = rule(record, now);
            Transition { output: (output, now, next.is_some()), next }
        });
        let Some((record, (output, at, is_changed))) = updated.await? else { return Ok(None) };
        if let Some(kind) = AuditEventKind::from_state(&record.state).filter(|_| is_changed) {
            self.audit_record(at, &record, principal.unwrap_or(&record.requester), kind);
        }
        Ok(Some(RecordUpdate { record, output, at, is_changed }))
    }

    /// Writes an event about a record to the audit.
    pub(super) fn audit_record(
        &self,
        at: UnixMillis,
        record: &ApprovalRecord,
        principal: &Principal,
        kind: AuditEventKind,
    ) {
        let event = AuditEvent::new(at, principal, kind).with_record(record);
        let event = event.with_call(&record.chat_id, &record.tool_call_id, &record.tool_name);
        self.audit(&event);
    }

    /// Writes an event to the audit, and counts it.
    pub(super) fn audit(&self, event: &AuditEvent) {
        count_approval(event.kind.name());
        self.audit.record(event);
    }
}

/// The result of applying a rule of the ledger to a record.
pub(super) struct RecordUpdate<T> {
    /// The record after the rule was applied.
    pub(super) record: ApprovalRecord,
    /// The output of the rule.
    pub(super) output: T,
    /// The time of the ledger at which the rule was applied.
    pub(super) at: UnixMillis,
    /// Whether the rule changed the record.
    pub(super) is_changed: bool,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approvals")
            .field("keys", &self.keys)
            .field("ledger", &self.ledger)
            .field("toolbox", &self.toolbox)
            .field("audit", &self.audit)
            .field("approval_ttl", &self.approval_ttl)
            .field("on_new_message", &self.on_new_message)
            .field("lease", &self.lease)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

pub(super) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    bytes
}
