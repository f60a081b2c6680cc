//! Checks the inputs that approvers have changed, before anything is stored.

use super::{ApprovedCall, ChatApprovals, ToolInfo};
use crate::approval::store::{RedeemError, system_time};
use crate::approval::{ApprovalRecord, ApprovalStatus, InputError, RecordedDecision, ResumePlan};

/// Checks the inputs that the user has changed in these answers.
pub(super) async fn check_changed_inputs(
    approvals: &ChatApprovals,
    plan: &ResumePlan,
) -> Result<(), RedeemError> {
    let (inner, now) = (&approvals.inner, system_time());
    let changed = plan.unverified_responses().filter(|answer| answer.changed_input.is_some());
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() {
        return Ok(());
    }
    let id_of = |id| ApprovalRecord::record_id_from_token(id, &inner.keys, now);
    let ids: Vec<_> = changed.iter().filter_map(|answer| id_of(&answer.approval_id)).collect();
    let snapshot = inner.ledger.load(&ids).await?;
    for answer in changed {
        let record = snapshot.records.iter().map(|versioned| &versioned.record);
        let mut own = record.filter(|record| {
            let may_decide = record.requester == approvals.principal
                || inner.can_decide(&approvals.principal, record);
            record.status(snapshot.now) == ApprovalStatus::Pending
                && may_decide
                && !record.is_self_approval(&approvals.principal)
                && !(record.lapses_on_new_message()
                    && plan.has_newer_message(record, &answer.approval_id))
                && approvals.is_own_request(record, &answer.approval_id, now)
        });
        let Some(record) = own.next() else { continue };
        let changed_input = answer.changed_input.clone();
        let decision =
            approvals.decision(snapshot.now, None).with_changed_input(changed_input, record);
        if decision.changed_input.is_none() {
            continue;
        }
        // A request of a tool that is gone is revoked.
        if current_tool(approvals, record).await.is_none() {
            continue;
        }
        let checked = match check_changed_input(approvals, record, &decision).await {
            Ok(()) if is_permitted(approvals, record, decision).await => Ok(()),
            Ok(()) => Err("the tool may not run with this input".to_owned()),
            Err(problem) => Err(problem),
        };
        checked.map_err(|problem| InputError {
            approval_id: answer.approval_id.clone(),
            tool_name: record.tool_name.clone(),
            problem,
        })?;
    }
    Ok(())
}

/// Checks whether the tool accepts the input that this decision changes, if it changes one. The
/// permissions of the user are not checked, and neither is a tool that is gone or has changed.
///
/// # Errors
/// The text that the approver reads.
pub(super) async fn check_changed_input(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
    decision: &RecordedDecision,
) -> Result<(), String> {
    let Some(changed) = &decision.changed_input else { return Ok(()) };
    record.editable.check(&record.input, changed)?;
    let Some(tool) = current_tool(approvals, record).await else { return Ok(()) };
    tool.editable.check(&record.input, changed)?;
    approvals.inner.toolbox.check_input(&record.tool_name, changed)
}

/// Returns the tool of a record, if it is still the one that the user was asked about.
async fn current_tool(approvals: &ChatApprovals, record: &ApprovalRecord) -> Option<ToolInfo> {
    let toolbox = &approvals.inner.toolbox;
    let is_available = toolbox.refresh(&record.tool_name).await;
    let tool = toolbox.tool(&record.tool_name).filter(|_| is_available)?;
    (tool.definition == record.definition).then_some(tool)
}

async fn is_permitted(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
    decision: RecordedDecision,
) -> bool {
    approvals.inner.toolbox.permits(&ApprovedCall::new(record, decision, None)).await
}
