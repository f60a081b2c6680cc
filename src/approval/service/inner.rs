//! [`Inner`]: the keys, the ledger, the tools and the audit of an
//! [`Approvals`](super::Approvals), and the updates of records, each with its audit event.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::notifier::Notices;
use super::other_keys::OtherKeys;
use super::{ApprovalLimits, AuditEvent, AuditEventKind, AuditSink, ToolInfo, Toolbox};
use crate::approval::store::{
    ApprovalUse, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, RECORD_RETENTION,
    RecordList, ReplayGuard, Snapshot, VersionedRecord, system_time, update_loaded,
};
use crate::approval::{
    ApprovalRecord, DefinitionDigest, KeyRing, OnNewMessage, Principal, RecordId, Transition,
    UnixMillis,
};
use crate::json::Json;
use crate::metrics::count_approval;

/// The settings and the services that all clones of an [`Approvals`](super::Approvals) share.
#[derive(Clone)]
pub(super) struct Inner {
    pub(super) keys: KeyRing,
    pub(super) other_keys: Arc<OtherKeys>,
    pub(super) ledger: Arc<dyn LedgerStore>,
    pub(super) toolbox: Arc<dyn Toolbox>,
    pub(super) audit: Arc<dyn AuditSink>,
    pub(super) can_decide: Arc<CanDecide>,
    /// The audiences of a request, and of a principal.
    pub(super) audience_of: Arc<AudienceOf>,
    pub(super) audiences_of: Arc<AudiencesOf>,
    pub(super) notices: Option<Arc<Notices>>,
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

/// Returns whom a new request asks beside its requester.
type AudienceOf = dyn Fn(&ApprovalRecord) -> Vec<Box<str>> + Send + Sync;

/// Returns the audiences to which a principal belongs.
type AudiencesOf = dyn Fn(&Principal) -> Vec<Box<str>> + Send + Sync;

/// The maximum age of a record that is changed without another load.
const MAX_LOAD_AGE: Duration = Duration::from_secs(1);

/// The maximum number of records that are read at once. An input has at most 256 KiB.
pub(super) const PAGE_RECORDS: usize = 64;

impl Inner {
    /// Returns all pending records, also those that have expired, and the time of the ledger.
    pub(super) async fn pending_records(
        &self,
        list: &RecordList,
    ) -> Result<(UnixMillis, Vec<ApprovalRecord>), LedgerStoreError> {
        let mut all = Vec::new();
        let mut query = ListRecords { limit: PAGE_RECORDS, ..list.into() };
        loop {
            let page = self.read_pending(query).await?;
            all.extend(page.records.into_iter().map(|VersionedRecord { record, .. }| record));
            query.after = page.next;
            if page.next.is_none() {
                return Ok((page.now, all));
            }
        }
    }

    /// Reads a page of a list of pending records, and logs the keys that this server does not have.
    pub(super) async fn read_pending(
        &self,
        list: ListRecords<'_>,
    ) -> Result<ListedRecords, LedgerStoreError> {
        let page = self.ledger.read_list(list).await?;
        let records = page.records.iter().map(|versioned| &versioned.record);
        self.other_keys.note(records, &self.keys);
        Ok(page)
    }

    /// Returns these records, and the time of the ledger. Those that the ledger lacks are left out.
    pub(super) async fn records(
        &self,
        ids: &[RecordId],
    ) -> Result<(UnixMillis, Vec<LoadedRecord>), LedgerStoreError> {
        if ids.is_empty() {
            return Ok((system_time(), Vec::new()));
        }
        let Snapshot { now, records } = self.ledger.load(ids).await?;
        let at = Instant::now();
        let records = records.into_iter();
        let records = records.map(|VersionedRecord { record, revision }| LoadedRecord {
            record,
            version: Some((revision, now, at)),
        });
        Ok((now, records.collect()))
    }

    /// Returns a tool of this server, or of the provider.
    pub(super) fn tool(&self, name: &str, provider_executed: bool) -> Option<ToolInfo> {
        if provider_executed {
            return Some(ToolInfo::new(DefinitionDigest::new(name, "", &Json::null())));
        }
        self.toolbox.tool(name)
    }

    /// Has new events delivered to the notifier, if there is one.
    pub(super) fn wake_notifier(&self) {
        if let Some(notices) = self.notices.as_ref().filter(|_| self.stateless.is_none()) {
            notices.wake();
        }
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
        self.update_from(principal, id, None, rule).await
    }

    /// Does as [`update_record`](Self::update_record) does. The record is loaded again only if it has changed, or if
    /// the time of its load is no longer that of the ledger.
    pub(super) async fn update_loaded<T: Send>(
        &self,
        principal: Option<&Principal>,
        loaded: &LoadedRecord,
        rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
    ) -> Result<Option<RecordUpdate<T>>, LedgerStoreError> {
        // A lease that is granted now begins at the time of the load, at which the expiry is judged.
        let is_fresh = |at: &Instant| at.elapsed() < (self.lease / 16).min(MAX_LOAD_AGE);
        let version = loaded.version.filter(|(.., at)| is_fresh(at));
        let known = version.map(|(revision, now, _)| {
            let record = loaded.record.clone();
            (now, VersionedRecord { record, revision })
        });
        self.update_from(principal, loaded.record.id, known, rule).await
    }

    async fn update_from<T: Send>(
        &self,
        principal: Option<&Principal>,
        id: RecordId,
        loaded: Option<(UnixMillis, VersionedRecord)>,
        rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
    ) -> Result<Option<RecordUpdate<T>>, LedgerStoreError> {
        let updated = update_loaded(&*self.ledger, id, loaded, move |record, now| {
            let Transition { output, next } = rule(record, now);
            Transition { output: (output, now, next.is_some()), next }
        });
        let Some((record, (output, at, is_changed))) = updated.await? else { return Ok(None) };
        if let Some(kind) = AuditEventKind::from_state(&record.state).filter(|_| is_changed) {
            self.audit_record(at, &record, principal.unwrap_or(&record.requester), kind);
            self.wake_notifier();
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
        count_approval(event.kind.as_str());
        self.audit.record(event);
    }
}

/// A record as the ledger returned it.
#[derive(Clone)]
pub(super) struct LoadedRecord {
    pub(super) record: ApprovalRecord,
    /// Its revision, and when it was loaded, by the clock of the ledger and by that of this server. It can be replaced
    /// without being loaded again. `None` for a record of a list: it may have been decided since.
    version: Option<(u64, UnixMillis, Instant)>,
}

impl LoadedRecord {
    pub(super) fn of_list(record: ApprovalRecord) -> Self {
        LoadedRecord { record, version: None }
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

impl<T> RecordUpdate<T> {
    /// Replaces the output by that of another rule for the record after the update.
    pub(super) fn with_output_of<U>(
        self,
        rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<U>,
    ) -> RecordUpdate<U> {
        let RecordUpdate { record, at, is_changed, .. } = self;
        RecordUpdate { output: rule(&record, at).output, record, at, is_changed }
    }
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
