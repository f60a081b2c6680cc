//! The requests of a chat to the ledger: denies a call, lets an approval lapse, and claims an approved
//! call.
//!
//! # Calls that the provider runs
//!
//! When a provider asks before it runs a tool, the question becomes an approval like any other. This crate does not
//! run the tool. An approved response is granted, and waits in the chat until the model is called next. That can be
//! after another question was answered, and in another turn than the one that received the approval. A grant is not
//! a claim: no lease passes while the approval waits, its outcome is never unknown, and it can be granted again if
//! a server fails before the chat holds it. The next turn that calls the model claims the approval and then sends
//! it, with its first model call. So the approval is sent once or, if the server fails at that moment, not at all.
//! If the ledger fails, the turn repeats the claim; the ledger recognizes the run. Stop, or a message that the user
//! sends later, does not withdraw an approval that the user has given: the next model call sends it, beside that
//! message.
//!
//! The ledger does not learn the outcome of the call: the outcome arrives in the model's stream. If it does not
//! arrive, the user and the model read that it is unknown whether the tool ran, and never that it did not run. A
//! page that repeats its approval while the provider works waits for that outcome. The lease of such a claim is at
//! least 10 minutes, because nothing renews it and it has to be longer than a model call. After it the ledger says
//! that the outcome is unknown. A host without a chat server claims the approval when it redeems it, because it
//! sends it at once. An approval that exists only in a client's history is sent as a denial.

use std::time::Duration;

use super::inner::{Inner, LoadedRecord, RecordUpdate, random_bytes};
use super::{ApprovedCall, AuditEventKind, ChatApprovals, ToolInfo};
use crate::approval::judge::Step;
use crate::approval::store::{LedgerStoreError, system_time};
use crate::approval::{
    ApprovalRecord, EditableInput, LeaseHolderId, RecordedDecision, RejectionReason,
    RevocationReason, Stepped, ToolOutcome, UnixMillis, UnverifiedApprovalResponse,
};

/// Takes the step that a response asks for: denies a call, lets its approval lapse, or claims it.
pub(super) async fn take_step(
    approvals: &ChatApprovals,
    step: Step,
    response: &UnverifiedApprovalResponse,
    loaded: &LoadedRecord,
) -> Result<RecordUpdate<Stepped>, LedgerStoreError> {
    let inner = &approvals.inner;
    let principal = &approvals.principal;
    let decide = |now| approvals.decision(now, response.reason.clone());
    let updated = match step {
        Step::Claim => {
            let lease_holder = LeaseHolderId::from_bytes(random_bytes());
            let input = &loaded.record.input;
            let decide =
                |now| decide(now).with_changed_input(response.changed_input.clone(), input);
            return claim(approvals, loaded, lease_holder, decide).await;
        }
        Step::Lapse => {
            let lapse = |record: &ApprovalRecord, now| record.lapse(&decide(now));
            inner.update_loaded(Some(principal), loaded, lapse).await?
        }
        Step::Deny => {
            let deny = |record: &ApprovalRecord, now| record.deny(&decide(now));
            inner.update_loaded(Some(principal), loaded, deny).await?
        }
    };
    let update = updated.ok_or_else(record_missing)?;
    match update.output {
        // The audit event of the new state reports the lapse.
        Stepped::Refused(cause) if cause != RejectionReason::Lapsed => {
            let kind = AuditEventKind::Rejected { cause };
            inner.audit_record(update.at, &update.record, principal, kind);
        }
        _ => {}
    }
    Ok(update)
}

/// Claims a call, for the first time or because the lease of the last claim has ended.
///
/// If the call is no longer permitted, the approval request is revoked instead. If the source of its tool is not
/// available, a first claim fails at once, so that the call never runs. After a later one the outcome is unknown.
pub(super) async fn claim(
    approvals: &ChatApprovals,
    loaded: &LoadedRecord,
    lease_holder: LeaseHolderId,
    decide: impl Fn(UnixMillis) -> RecordedDecision + Send + Sync,
) -> Result<RecordUpdate<Stepped>, LedgerStoreError> {
    let record = &loaded.record;
    let inner = &approvals.inner;
    let principal = Some(&approvals.principal);
    let lease = if record.provider_executed { provider_lease(inner) } else { inner.lease };
    let is_granted_only = record.provider_executed && approvals.grants_to_providers;
    let claim = |record: &ApprovalRecord, now| {
        if is_granted_only {
            record.grant(&decide(now), lease_holder)
        } else {
            record.claim(&decide(now), lease_holder, lease)
        }
    };
    let tool = if is_checked(record) { current_tool(approvals, record).await } else { Ok(None) };
    let (tool, unavailable) = match tool {
        // It does not run, so it need not be permitted.
        Err(problem) if record.is_pending() => (None, Some(ToolOutcome::Failed(problem))),
        tool => (tool.ok().flatten(), None),
    };
    let refused = match unavailable {
        Some(_) => None,
        None => refusal(approvals, record, decide(system_time()), tool).await,
    };
    let updated = match refused {
        Some(Refusal::Input(_)) => {
            let cause = RejectionReason::InputNotAccepted;
            let kind = AuditEventKind::Rejected { cause };
            let record = record.clone();
            let at = system_time();
            inner.audit_record(at, &record, &approvals.principal, kind);
            let output = Stepped::Refused(cause);
            return Ok(RecordUpdate { record, output, at, is_changed: false });
        }
        Some(Refusal::Revoke(cause)) => {
            let revoke = |record: &ApprovalRecord, now| record.revoke(cause, now);
            let revoked = inner.update_loaded(principal, loaded, revoke).await?;
            // It cannot be granted any more.
            revoked.map(|revoked| revoked.with_output_of(claim))
        }
        None => match inner.update_loaded(principal, loaded, claim).await {
            Ok(claimed) => claimed,
            // The response of the ledger may have been lost. The same lease holder may claim
            // again.
            Err(_) => inner.update_record(principal, record.id, claim).await?,
        },
    };
    let update = updated.ok_or_else(record_missing)?;
    let RecordUpdate { record, at, .. } = &update;
    let kind = match &update.output {
        // Granted by the first attempt, whose response was lost, and with it the audit event.
        Stepped::Granted(_) if !update.is_changed => AuditEventKind::from_state(&record.state),
        Stepped::Refused(cause) => Some(AuditEventKind::Rejected { cause: *cause }),
        _ => None,
    };
    if let Some(kind) = kind {
        inner.audit_record(*at, record, &approvals.principal, kind);
    }
    if let (Stepped::Granted(granted), Some(failure)) = (&update.output, unavailable) {
        let fail = |record: &ApprovalRecord, now| record.complete(granted, &failure, now);
        let failed = inner.update_record(principal, record.id, fail).await?;
        return Ok(failed.ok_or_else(record_missing)?.with_output_of(claim));
    }
    Ok(update)
}

/// Why a call is not claimed.
pub(super) enum Refusal {
    /// The approval request has to be revoked.
    Revoke(RevocationReason),
    /// The approver has changed the input, and another one may be accepted. The text is for the approver.
    Input(String),
}

/// Returns why a call must not be claimed with this decision, or `None` if it may be claimed. `tool` is the
/// [current](current_tool) one.
pub(super) async fn refusal(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
    decision: RecordedDecision,
    tool: Option<ToolInfo>,
) -> Option<Refusal> {
    let toolbox = &approvals.inner.toolbox;
    let is_first_claim = record.is_pending();
    // A further attempt runs with the input that was claimed first.
    let decision = record.decision().cloned().unwrap_or(decision);
    let call = ApprovedCall::new(record, decision, None);
    let changed = call.changed_input.as_ref().filter(|_| is_first_claim);
    if let Some(input) = changed {
        let is_editable =
            |editable: &EditableInput| editable.check(&input.original, &input.changed);
        let accepts = |tool: &ToolInfo| {
            is_editable(&tool.editable)?;
            toolbox.check_input(&record.tool_name, input)
        };
        let is_editable = is_editable(&record.editable);
        if let Err(problem) = is_editable.and_then(|()| tool.as_ref().map_or(Ok(()), accepts)) {
            return Some(Refusal::Input(problem));
        }
    }
    if !is_checked(record) {
        return None;
    }
    if tool.is_none_or(|tool| !is_first_claim && !tool.idempotent) {
        return Some(Refusal::Revoke(RevocationReason::DefinitionChanged));
    }
    let refused = match changed {
        Some(_) => Refusal::Input("the tool may not run with this input".to_owned()),
        None => Refusal::Revoke(RevocationReason::NotPermitted),
    };
    (!toolbox.permits(&call).await).then_some(refused)
}

/// Whether this server checks the tool of a record before a claim. A provider itself checks whether its tool
/// still exists and accepts the call.
fn is_checked(record: &ApprovalRecord) -> bool {
    !record.provider_executed && (record.is_pending() || record.idempotent)
}

/// Returns the tool of a record, if it is still the one that the user was asked about.
///
/// # Errors
/// The text for the model and the user if the source of the tool is not available.
pub(super) async fn current_tool(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
) -> Result<Option<ToolInfo>, String> {
    let toolbox = &approvals.inner.toolbox;
    toolbox.refresh(&record.tool_name).await?;
    let tool = toolbox.tool(&record.tool_name);
    Ok(tool.filter(|tool| tool.definition == record.definition))
}

/// Returns the lease of an approval that is sent to a provider.
///
/// The result arrives in the model call that sends the approval, or not at all, and nothing renews
/// the lease. So the lease is longer than a model call.
pub(super) fn provider_lease(inner: &Inner) -> Duration {
    inner.lease.max(LONGEST_MODEL_CALL)
}

const LONGEST_MODEL_CALL: Duration = Duration::from_secs(600);

fn record_missing() -> LedgerStoreError {
    LedgerStoreError::new("the record is gone")
}
