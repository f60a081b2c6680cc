//! The requests of a chat: their records are made and stored in the ledger, and revoked if no page shows them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::AuditEventKind;
use super::expiry::SOON;
use super::inbox::{MAX_AUDIENCE_BYTES, MAX_AUDIENCES};
use super::inner::{Inner, random_bytes};
use super::issued_approval::{CallToApprove, IssuedApproval, RequestApprovalError};
use crate::approval::changed_input::MAX_INPUT_BYTES;
use crate::approval::reopen::{canonical_input, stateless_message_id};
use crate::approval::store::{LedgerStoreError, PendingLimit, PendingLimits, VersionedRecord};
use crate::approval::{
    ApprovalRecord, EditableInput, NewApprovalRequest, NoticeDelivery, OnNewMessage, Principal,
    RecordId, RevocationReason, UnixMillis,
};
use crate::id::{ChatId, MessageId, log_causes};
use crate::retry::{MAX_FAILURES, Retries};

/// The message whose calls need approval.
pub(super) struct AskingMessage<'a> {
    pub(super) inner: &'a Arc<Inner>,
    /// The principal that requests.
    pub(super) principal: &'a Principal,
    /// The owner of the chat.
    pub(super) owner: &'a Principal,
    pub(super) chat: &'a ChatId,
    pub(super) id: &'a MessageId,
}

type Requested = Result<IssuedApproval, RequestApprovalError>;

/// Stores the records of approval requests in the ledger and creates their approval ids.
///
/// Each operation is repeated while the ledger fails, as the operations of a turn are.
pub(super) async fn request_all(
    message: AskingMessage<'_>,
    calls: Vec<CallToApprove>,
) -> Result<Vec<Requested>, LedgerStoreError> {
    let mut retries = Retries::default();
    let now = loop {
        match message.inner.ledger.load(&[]).await {
            Ok(snapshot) => break snapshot.now,
            Err(error) => retries.pause(MAX_FAILURES, error, OPERATION).await?,
        }
    };
    // Requests that expire at the same time are listed by their ids.
    let ids = calls.iter().map(|_| RecordId::of_requester(message.owner, random_bytes()));
    let mut ids: Vec<RecordId> = ids.collect();
    ids.sort_unstable();
    let mut records = Vec::new();
    let mut with_state = HashSet::new();
    let mut issued: Vec<Requested> = Vec::new();
    for (call, id) in calls.into_iter().zip(ids) {
        let request = new_request(&message, call, id, now);
        issued.push(request.map(|(mut record, issued)| {
            if let Some(outer) = &mut record.outer
                && !with_state.insert(outer.tool_call_id.clone())
            {
                outer.state = None;
            }
            records.push(record);
            issued
        }));
    }
    let (stored, refused_by) = store_all(&message, &records, now, retries).await?;
    if let Some(limit) = refused_by {
        let refused = |issued: &IssuedApproval| !stored.contains(&issued.record);
        for issued in issued.iter_mut().filter(|issued| issued.as_ref().is_ok_and(refused)) {
            *issued = Err(too_many_pending(message.inner, limit));
        }
    }
    Ok(issued)
}

/// Creates the record of an approval request, and what is sent of it to the client.
fn new_request(
    message: &AskingMessage<'_>,
    call: CallToApprove,
    id: RecordId,
    now: UnixMillis,
) -> Result<(ApprovalRecord, IssuedApproval), RequestApprovalError> {
    let inner = message.inner;
    let is_stateless = inner.stateless.is_some();
    let CallToApprove { tool_call_id, tool_name, input, description, provider_executed, outer } =
        call;
    let Some(tool) = inner.tool(&tool_name, provider_executed) else {
        return Err(RequestApprovalError::UnknownTool(tool_name));
    };
    let limit = inner.limits.max_description_bytes();
    if description.as_ref().is_some_and(|description| description.len() > limit) {
        return Err(RequestApprovalError::DescriptionTooLong { limit });
    }
    if outer.is_some() && is_stateless {
        return Err(RequestApprovalError::NeedsLedger);
    }
    if outer.as_ref().is_some_and(|outer| outer.state_bytes() > MAX_INPUT_BYTES) {
        return Err(RequestApprovalError::StateTooLong);
    }
    // A record that nothing stores is made again from what the client sends back, without a changed input.
    let (input, message_id, editable) = if is_stateless {
        (canonical_input(&input)?, stateless_message_id(), EditableInput::Nothing)
    } else {
        (input, message.id.clone(), tool.editable)
    };
    let request = NewApprovalRequest {
        requester: message.owner.clone(),
        chat_id: message.chat.clone(),
        message_id,
        tool_call_id: tool_call_id.on_wire(),
        tool_name,
        definition: tool.definition,
        input,
        provider_executed,
        idempotent: tool.idempotent,
        on_new_message: tool.on_new_message.unwrap_or(inner.on_new_message),
        decided_by_others: tool.decided_by_others,
        editable,
        description: description.clone(),
        approval_ttl: tool.approval_ttl.unwrap_or(inner.approval_ttl),
    };
    let mut record = request.into_record(&inner.keys, id, now)?;
    if outer.is_some() {
        // The message ends the outer call, too.
        record.on_new_message = OnNewMessage::Lapse;
    }
    record.outer = outer;
    if !is_stateless {
        record.audience = (inner.audience_of)(&record);
        record.audience.sort_unstable();
        record.audience.dedup();
        let longest = record.audience.iter().map(|name| name.len()).max();
        if record.audience.len() > MAX_AUDIENCES || longest > Some(MAX_AUDIENCE_BYTES) {
            return Err(RequestApprovalError::TooManyAudiences);
        }
        record.delivery = inner.notices.as_ref().map(|_| NoticeDelivery::default());
    }
    // Never `None`: the record was made with the active key of the same key ring.
    let approval_id = record.approval_id(&inner.keys, now).ok_or(RequestApprovalError::NoKey)?;
    let descriptor = record.descriptor(now)?;
    let issued = IssuedApproval { approval_id, record: record.id, descriptor, description };
    Ok((record, issued))
}

/// Inserts the records into the ledger, in batches. Returns the ids of those that are stored, and the limit that has
/// refused the others.
async fn store_all(
    message: &AskingMessage<'_>,
    records: &[ApprovalRecord],
    now: UnixMillis,
    mut retries: Retries,
) -> Result<(HashSet<RecordId>, Option<PendingLimit>), LedgerStoreError> {
    let inner = message.inner;
    let principal = message.principal;
    let mut unissued =
        Unissued { inner: Arc::clone(inner), principal: principal.clone(), records: Vec::new() };
    let mut stored = HashSet::new();
    let mut late = Vec::new();
    let mut refused_by = None;
    for batch in records.chunks(MAX_BATCH) {
        // Until the ledger has answered, it is not known whether it has inserted the records.
        unissued.records.extend(batch.iter().map(|record| record.id));
        let mut has_failed = false;
        let inserted = loop {
            match inner.ledger.insert_all(batch, pending_limits(inner)).await {
                Ok(inserted) => break inserted,
                Err(error) => {
                    has_failed = true;
                    if let Err(error) = retries.pause(MAX_FAILURES, error, OPERATION).await {
                        unissued.revoke().await;
                        return Err(error);
                    }
                }
            }
        };
        let (inserted_records, refused) = batch.split_at(inserted.stored.min(batch.len()));
        for record in inserted_records {
            let kind = AuditEventKind::Requested { expires_at: record.expires_at };
            inner.audit_record(now, record, principal, kind);
        }
        inner.wake_notifier();
        stored.extend(inserted_records.iter().map(|record| record.id));
        if inserted_records.iter().any(|record| record.expires_at <= now.after(SOON)) {
            inner.requested.send_replace(());
        }
        if has_failed {
            // An attempt before may still be under way, and may find room.
            late.extend(refused.iter().map(|record| record.id));
        }
        refused_by = inserted.refused_by;
        if refused_by.is_some() {
            break;
        }
    }
    unissued.records = late;
    Ok((stored, refused_by))
}

fn pending_limits(inner: &Inner) -> PendingLimits {
    let limits = &inner.limits;
    PendingLimits { chat: limits.max_chat_approvals(), requester: limits.max_user_approvals() }
}

fn too_many_pending(inner: &Inner, refused_by: PendingLimit) -> RequestApprovalError {
    let PendingLimits { chat, requester } = pending_limits(inner);
    let (limit, setting) = match refused_by {
        PendingLimit::Chat => (chat, "with_max_chat_approvals"),
        PendingLimit::Requester => (requester, "with_max_user_approvals"),
    };
    RequestApprovalError::TooManyPending { limit, setting }
}

/// The name of the operation in the log.
const OPERATION: &str = "request approvals";

/// The maximum number of records that the ledger inserts in one step. An input has at most 256 KiB.
const MAX_BATCH: usize = 64;

/// The records of requests that are not issued yet. If the requests fail, or their future is dropped,
/// the records may be stored nevertheless. No page shows them, so they must not be approved in a list
/// of pending requests.
struct Unissued {
    inner: Arc<Inner>,
    /// The principal that requests.
    principal: Principal,
    records: Vec<RecordId>,
}

impl Unissued {
    /// Revokes the records that are stored. The others may be stored late, and are revoked then.
    async fn revoke(mut self) {
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
